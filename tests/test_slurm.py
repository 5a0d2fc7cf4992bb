"""Sweeps inside an allocation of SLURM's: what it says of itself, and points on its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep import launch
from bsweep.config import slurm
from tests.running import bsweep, compose

ALLOCATION = {"SLURM_JOB_NODELIST": "n[01-02],gpu7", "SLURM_JOB_ID": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}
POINT = ("local_batch=8", "num_workers=2", "launch.hosts=slurm")


@pytest.mark.parametrize(
    ("more", "hosts"),
    [
        ({}, "n01:2,n02:2,gpu7:1"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "n01:4,n02:4,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, "n01:8,n02:8,gpu7:4"),
        ({"SLURM_TASKS_PER_NODE": "1"}, "n01:1,n02:1,gpu7:1"),
    ],
    ids=["tasks", "GPUs", "a step on one of the nodes", "nothing said"],
)
def test_nodes_and_slots_are_those_of_the_allocation(more: dict[str, str], hosts: str) -> None:
    assert slurm.hosts({**ALLOCATION, **more}) == hosts
    assert slurm.hosts({**ALLOCATION, **more, slurm.HOSTS: "a:1"}) == "a:1", "what the parent found"


def test_a_point_in_an_allocation_keeps_its_id_on_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for nodes in ("n[01-03]", "m[4-6]"):
        for name, value in {**ALLOCATION, "SLURM_JOB_NODELIST": nodes}.items():
            monkeypatch.setenv(name, value)
        ids.add(compose(*POINT).run_id)
    assert len(ids) == 1, "a job that is queued again goes on with its run"
    assert compose(*POINT).launch.named_hosts == "m4:2,m5:2,m6:1"


def test_what_an_allocation_has_too_little_or_too_much_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    assert "2 of the allocation's 3 nodes are not used (n02, gpu7): ask for fewer" in launch.check(compose(*POINT))
    with pytest.raises(ValueError, match=r"num_workers=6, but the allocation offers 5 slots .n01:2,n02:2,gpu7:1."):
        launch.check(compose(*POINT, "num_workers=6"))


@pytest.mark.parametrize("command", ["run", "plan", "doctor"])
def test_outside_an_allocation_nothing_is_started(tmp_path: Path, command: str) -> None:
    result = bsweep(command, *POINT, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "this is none (there is no SLURM_JOB_NODELIST): start it by sbatch" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_sweep_that_srun_starts_several_times_is_refused(tmp_path: Path) -> None:
    result = bsweep("run", *POINT, cwd=tmp_path, env={**ALLOCATION, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"})
    assert result.returncode == 2
    assert "srun has started it 2 times, and one leads all workers: leave srun out" in result.stderr
    assert not list(tmp_path.iterdir())
