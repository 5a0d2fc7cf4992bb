"""The private names of torch, and what is different between its versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bsweep.core import torch_private
from bsweep.core.torch_private import NAMES, private

PACKAGE = Path(torch_private.__file__).parents[1]


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_each_private_name(name: str) -> None:
    assert callable(private(name))


def test_a_private_name_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "gone", "torch:_gone.too")
    said = re.escape(f"torch._gone.too, which torch {torch.__version__}")
    with pytest.raises(ValueError, match=said):
        private("gone")


def test_no_other_module_names_private_parts_of_torch() -> None:
    private_parts = r"\btorch(\.\w+)*\._(?!_version__)\w|\bdistributed_c10d\b|_BatchNorm\b"
    paths = PACKAGE.rglob("*.py")
    found = [path.stem for path in paths if re.search(private_parts, path.read_text())]
    assert found == ["torch_private"]


@pytest.mark.parametrize(("version", "is_safe"), [("2.6.0+cu124", False), ("2.13.0+cpu", True)])
def test_groups_of_gloo_are_dropped_where_that_was_seen_to_end(
    monkeypatch: pytest.MonkeyPatch, version: str, is_safe: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_private.joins_gloo_safely() is is_safe
