"""GPUs that are counted, and cannot be used; a stand-in for `nvidia-smi` and torch's answers play
the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bsweep import launch
from bsweep.config.launch import nodes_of
from bsweep.core import gpus
from bsweep.core.ranks import World
from bsweep.train import peers_check, worker
from tests.support.running import TINY, compose, exits, imported_first, summaries, write_program

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """A function that makes this a machine with such GPUs, for a torch that counts them or can use
    them.
    """

    def be(
        *,
        name: str = "Tesla T4",
        driver: str = "580.1",
        capability: str = "7.5",
        cuda: str | None = "13.0",
        counted: int = 2,
        usable: bool = False,
    ) -> None:
        said = f'said="{name}, {capability}"; case "$1" in *driver*) said="{name}, {driver}";; esac'
        write_program(tmp_path / "nvidia-smi", f'{said}\necho "$said"; echo "$said"')
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: counted)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90", "compute_90"])
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        gpus.num_gpus.cache_clear()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # so that it is removed afterwards
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    gpus.num_gpus.cache_clear()
    yield be
    gpus.num_gpus.cache_clear()


POINT = ("local_batch=8", "strategy=single", "launch=inline")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (
            {"driver": "535.104.05"},
            r"2 GPUs \(Tesla T4\), but torch .* with driver 535.104.05 \(.+\): update .* CUDA 12.6",
        ),
        ({"counted": 0, "cuda": None}, "without CUDA: install a build with CUDA .* driver 580.1"),
        (
            {"name": "Tesla V100", "capability": "7.0", "usable": True},
            r"capability 7.5 or more: Tesla V100 \(7.0\)\. Install .* CUDA 12.6",
        ),
    ],
    ids=["old driver", "torch without CUDA", "old GPU"],
)
def test_gpus_that_torch_cannot_use_are_an_error_before_anything_starts(
    machine: Machine, what: dict[str, object], reason: str
) -> None:
    machine(**what)
    with pytest.raises(ValueError, match=reason) as raised:
        launch.check_machine(compose(*POINT))
    assert "set device=cpu" in str(raised.value)
    launch.check_machine(compose(*POINT, "device=cpu"))


def test_hidden_gpus_are_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(driver="535.104.05")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.num_gpus("auto") == 0
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "as nvidia-smi counts"


@pytest.mark.parametrize(
    "where",
    [("num_workers=3",), ("num_workers=4", "launch.hosts='localhost:3,b:3'")],
    ids=["no hosts", "this host among others"],
)
def test_more_workers_than_gpus_here_are_refused_before_anything_starts(
    machine: Machine, where: tuple[str]
) -> None:
    machine(usable=True)
    ddp = ("local_batch=8", "strategy=ddp")
    with pytest.raises(ValueError, match=r"3 workers .*here, but this machine has 2 GPUs.*no more"):
        launch.check_machine(compose(*ddp, *where))
    launch.check_machine(compose(*ddp, *where, "device=cpu"))
    fitting = ("num_workers=4", "launch.hosts='localhost:2,b:2'")
    launch.check_machine(compose(*ddp, *fitting))


def test_a_torch_without_nccl_is_not_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> tuple[int, ...]:
        raise RuntimeError("Torch was not compiled with NCCL")

    monkeypatch.setattr(torch.cuda.nccl, "version", version)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(peers_check, "driver_version", lambda: "580.1")
    monkeypatch.setattr(peers_check, "are_rounded", lambda _: False)
    facts = peers_check.equipment(torch.device("cuda"), "fp32")
    assert (facts["device"], facts["nccl"]) == ("Tesla T4", None)


def seats(**hosts: tuple[int, int]) -> list[dict[str, object]]:
    """What workers say of their places, on hosts with so many GPUs and workers."""
    return [
        peers_check.gpu_facts(World(0, 1, local_rank, 1), gpus) | {"host": host}
        for host, (gpus, workers) in hosts.items()
        for local_rank in range(workers)
    ]


def test_every_host_with_too_few_gpus_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = "^gpu7 has 2 GPUs for 4 workers, gpu8 has no GPU for 1 worker, but NCCL takes one"
    with pytest.raises(ValueError, match=lacking):
        peers_check.refuse_missing_gpus(seats(gpu6=(4, 4), gpu7=(2, 4), gpu8=(0, 1)), "auto")
    peers_check.refuse_missing_gpus(seats(a=(4, 4), b=(2, 1)), "auto")
    peers_check.refuse_missing_gpus(seats(a=(0, 4)), "auto")
    with pytest.raises(ValueError, match="a has no GPU for 4 workers"):
        peers_check.refuse_missing_gpus(seats(a=(0, 4)), "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ValueError, match=r"a has 1 GPU \(CUDA_VISIBLE_DEVICES=3\) for 2 workers"):
        peers_check.refuse_missing_gpus(seats(a=(1, 2)), "auto")
    machine(usable=True)
    its_number_on_its_host = worker.choose_device(World(5, 8, 1, 4), gpus=2)
    assert its_number_on_its_host == torch.device("cuda", 1)


def test_workers_end_before_they_take_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    """On a host of which the launching one knows nothing."""
    env = imported_first(
        tmp_path,
        "import os\n"
        "if 'RANK' in os.environ:\n"
        "    import platform, bsweep.core.gpus as gpus\n"
        "    platform.node, gpus.num_gpus = lambda: 'gpu7', lambda _: 1\n",
    )
    point = ("local_batch=8", "num_workers=2", "strategy=ddp", "model=tiny_cnn", *TINY, "study=s")
    exits(1, "run", *point, cwd=tmp_path, env=env)
    (summary,) = summaries(tmp_path).values()
    assert "failed: ValueError: gpu7 has 1 GPU for 2 workers, but NCCL" in summary["message"]


def test_servers_take_free_slots_or_run_beside_workers() -> None:
    """A slot is a GPU, and servers need none."""
    hosts = "a:4,b:4,c:2"
    assert nodes_of(hosts, 3) == [("a", 3)]
    assert nodes_of(hosts, 6, 3) == [("a", 4), ("b", 4), ("c", 1)]
    beside = [("a", 1), ("b", 1), ("c", 1), ("a", 1)]
    assert nodes_of(hosts, 10, 4) == [("a", 4), ("b", 4), ("c", 2), *beside]
    assert nodes_of("a:2", 2, 2) == [("a", 4)]
    servers = ("strategy=parameter_server", "strategy.num_servers=2")
    point = ("local_batch=8", "num_workers=8", *servers)
    (warning,) = launch.check_machine(compose(*point, "launch.hosts='a:4,b:5'"))
    assert warning == "1 of 2 servers run beside workers: launch.hosts=a:4,b:5 has no more slots"
    assert not launch.check_machine(compose(*point, "launch.hosts='a:5,b:5'"))
