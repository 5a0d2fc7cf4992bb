"""What sweeps in the warm processes of a horovodrun rely on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from bsweep.launch import warm
from bsweep.launch.outcome import Outcome
from bsweep.runlog.files import RunPaths
from tests.support.gpus import on_gpus
from tests.support.running import ROOT, TINY, bsweep, compose, forks, imported_first, summaries


@contextmanager
def both_cores_busy() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda", number=2)])
def test_ranks_meet_again_after_many_failures_on_a_busy_machine(device: str) -> None:
    restarts = [forks().python, "-m", "tests.support.one_restart", "8", device]
    command = [forks().horovodrun, "-np", "2", "--gloo", *restarts]
    with both_cores_busy():
        printed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=240)
    assert printed.count("restarted 8 times") == 2


def test_all_knobs_that_forbid_a_restart_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    with pytest.raises(SystemExit, match="bsweep: HOROVOD_CYCLE_TIME is set in the environment"):
        warm.WarmRank().restart()
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    with pytest.raises(SystemExit, match=r"HOROVOD_\w+, HOROVOD_\w+ are set in the environment"):
        warm.WarmRank().restart()


FAILING = """
import os
if os.environ.get("HOROVOD_RANK") == "1":
    import torch
    import bsweep.train.loop as loop
    plain = loop.train_epoch

    def failing(job, *a):
        if job.config.local_batch == 8:
            if job.device.type == "cuda":
                job.vector.parameters.new_empty(1 << 44)
            raise torch.OutOfMemoryError("no room on the GPU")
        if job.config.local_batch == 12:
            raise MemoryError("no room")
        return plain(job, *a)

    loop.train_epoch = failing
"""


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda", number=2)])
def test_a_sweep_goes_on_after_a_failed_point_if_its_processes_can(
    tmp_path: Path, device: str
) -> None:
    env = imported_first(tmp_path, FAILING)
    point = (*TINY, "model=tiny_cnn", "epochs=1", "study=s", f"device={device}")
    grid = ("-m", "local_batch=8,16,12,10", *point)
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    result = bsweep("run", *grid, cwd=tmp_path, prefix=prefix, env=env)
    ends = summaries(tmp_path)
    statuses = {8: "out_of_memory", 16: "completed", 12: "out_of_memory", 10: "interrupted"}
    assert {batch: end["status"] for batch, end in ends.items()} == statuses, result.stdout
    assert ends[8]["message"].startswith("rank 1 failed: OutOfMemoryError: ")
    assert "not trained" in ends[10]["message"]
    assert "rank 1 failed: MemoryError: no room" in ends[10]["message"]
    assert result.returncode != 0
    printed = result.stdout + result.stderr
    why = "probably because another process of the run has ended"
    assert f"rank 0: the exchange failed, {why}" in printed
    assert "horovod/torch/" not in printed, "where Horovod noticed it says nothing of the cause"


def test_points_leave_no_memory_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Blocks that a GPU's allocator keeps are given back before the ranks agree on how a point
    ended.
    """
    order: list[str] = []

    def agree(report: object, name: str) -> list[object]:
        order.append("agreed")
        return [report]

    monkeypatch.setattr(warm, "_attempt", lambda *_: order.append("trained"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("given back"))
    monkeypatch.setattr(hvd, "allgather_object", agree)
    monkeypatch.setattr(warm, "recorded", lambda _: Outcome("completed"))
    rank = warm.WarmRank()
    ended = rank._train(compose("local_batch=8"), RunPaths(tmp_path), lambda: None)
    assert ended == Outcome("completed")
    assert order == ["trained", "given back", "agreed"]
