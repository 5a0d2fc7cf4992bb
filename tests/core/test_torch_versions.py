"""What is said of the torch and the torchvision that are installed, and torch's private names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bsweep.core import torch_versions
from bsweep.core.torch_private import NAMES, private

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs the metadata of a package, and nothing else."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").touch()

    def written(package: str, version: str, requires: str = "") -> None:
        folder = tmp_path / f"{package}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {package}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requires}"] if requires else []
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))

    return written


def test_no_torch_and_one_that_is_too_old_are_refused_with_the_command(install: Install) -> None:
    with pytest.raises(ValueError, match="torch is not installed: pip install torch torchvision"):
        torch_versions.refuse_torch()
    assert torch_versions.problems() == ["torch is not installed: pip install torch torchvision"]
    assert not torch_versions.are_tested()
    install("torch", "2.5.1+cu121")
    with pytest.raises(ValueError, match=r"torch 2\.5\.1\+cu121 is too old.* 2\.6 or newer: pip"):
        torch_versions.refuse_torch()


def test_a_torchvision_of_another_torch_is_named(install: Install) -> None:
    install("torch", "2.8.0+cpu")
    (missing,) = torch_versions.problems()
    assert missing == "torchvision is not installed: pip install torch==2.8.0 torchvision"
    install("torchvision", "0.28.0", "torch (==2.13.0)")
    (other,) = torch_versions.problems()
    assert other.startswith("torchvision 0.28.0 is for torch 2.13.0, not 2.8.0: pip install")
    assert not torch_versions.are_tested()


def test_a_torch_without_its_libraries_is_named(install: Install, tmp_path: Path) -> None:
    install("torch", "2.13.0")
    install("torchvision", "0.28.0", "torch==2.13.0")
    assert torch_versions.are_tested()
    assert torch_versions.problems() == []
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open')")
    (said,) = torch_versions.problems()
    assert "cannot be imported (OSError: libcudart.so.13: cannot open)" in said
    assert said.endswith("pip install --force-reinstall torch==2.13.0 torchvision")


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_each_private_name(name: str) -> None:
    assert callable(private(name))


def test_a_private_name_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "gone", "torch:_gone.too")
    said = re.escape(f"torch._gone.too, which torch {torch.__version__}")
    with pytest.raises(ValueError, match=said):
        private("gone")
