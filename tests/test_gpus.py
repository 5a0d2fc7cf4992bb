"""GPUs that are counted, and cannot be used; a stand-in for `nvidia-smi` and torch's answers play the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bsweep import gpus, launch, worker
from bsweep.place import Place
from tests.running import bsweep, compose

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """A function that makes this a machine with such GPUs, for a torch that counts them or can use them."""

    def be(name: str, driver: str, capability: str, *, cuda: str | None = "13.0", counted: int, usable: bool) -> None:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(
            "#!/bin/sh\n"
            f'case "$1" in *driver*) said="{name}, {driver}";; *) said="{name}, {capability}";; esac\n'
            'echo "$said"; echo "$said"\n'
        )
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: counted)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90", "sm_120", "compute_120"])
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        gpus.num_gpus.cache_clear()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus.num_gpus.cache_clear()
    yield be
    gpus.num_gpus.cache_clear()


POINT = ("local_batch=8", "strategy=single", "launch=inline")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (
            {"name": "Tesla T4", "driver": "535.104.05", "capability": "7.5", "counted": 2, "usable": False},
            r"2 GPUs \(Tesla T4\), but their driver 535.104.05 is too old for torch .* needs 580 or newer.*CUDA 12.6",
        ),
        (
            {"name": "Tesla T4", "driver": "580.1", "capability": "7.5", "counted": 2, "usable": False},
            r"torch .* cannot use them with driver 580.1 \(.+\): repair or update the driver",
        ),
        (
            {"name": "Tesla T4", "driver": "580.1", "capability": "7.5", "counted": 0, "usable": False, "cuda": None},
            r"torch .* is built without CUDA: install a build with it that suits driver 580.1",
        ),
        (
            {"name": "Tesla V100-SXM2-16GB", "driver": "580.1", "capability": "7.0", "counted": 2, "usable": True},
            r"below 7.5, with which torch .* begins: Tesla V100-SXM2-16GB \(7.0\)\. Install .* CUDA 12.6",
        ),
    ],
)
def test_gpus_that_torch_cannot_use_are_an_error_before_anything_starts(
    machine: Machine, what: dict[str, object], reason: str
) -> None:
    machine(**what)
    with pytest.raises(ValueError, match=reason) as raised:
        launch.check(compose(*POINT))
    assert "set device=cpu" in str(raised.value)
    launch.check(compose(*POINT, "device=cpu"))


def test_hidden_gpus_are_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("Tesla T4", "535.104.05", "7.5", counted=2, usable=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.num_gpus("auto") == 0


def test_more_workers_than_gpus_on_a_host_are_named(machine: Machine) -> None:
    machine("NVIDIA A100", "580.1", "8.0", counted=2, usable=True)
    config = compose("local_batch=8", "num_workers=3", "strategy=ddp", "launch.hosts='a:3'")
    assert worker.choose_device(config, Place(1, 3, 1, 3)) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match=r"has 2 GPUs, and rank 2 is worker 3 there.*no more slots than GPUs"):
        worker.choose_device(config, Place(2, 3, 2, 3))


def test_a_host_without_gpus_is_named_where_they_are_asked_for(machine: Machine) -> None:
    machine("none", "580.1", "8.0", counted=0, usable=True)
    with pytest.raises(ValueError, match=r"device=cuda, but .* shows no GPU"):
        worker.choose_device(compose(*POINT, "device=cuda"), Place())


def test_the_command_ends_with_2(tmp_path: Path) -> None:
    """Where nvidia-smi lists a GPU, and torch, as it is, has none."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho Tesla T4, 535.104.05\n")
    smi.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = bsweep("run", *POINT, "study=s", cwd=tmp_path, env=env)
    assert result.returncode == 2
    assert "has 1 GPU (Tesla T4), but" in result.stderr and "535.104.05" in result.stderr
    assert not list(tmp_path.glob("results/s/*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)", "580.65.06"),
        ("", None),
    ],
)
def test_the_driver_on_record_is_the_one_that_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, release: str | None
) -> None:
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "version")
    assert gpus.driver_version() is None
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert gpus.driver_version() == release
