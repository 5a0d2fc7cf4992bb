"""What sweeps in the warm processes of a horovodrun rely on."""

from __future__ import annotations

from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from bsweep.launch import inline, warm
from bsweep.launch.launcher import Outcome
from bsweep.runlog.files import RunPaths
from tests.support.gpus import on_gpus
from tests.support.running import TINY, before, bsweep, compose, forks, summaries


def test_all_knobs_that_forbid_a_restart_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    with pytest.raises(SystemExit, match="bsweep: HOROVOD_CYCLE_TIME is set in the environment"):
        warm.WarmRank().restart()
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    with pytest.raises(SystemExit, match=r"HOROVOD_\w+, HOROVOD_\w+ are set in the environment"):
        warm.WarmRank().restart()


FAILING = """
import torch
batch = first.config.local_batch
if rank == "1" and batch in (8, 6, 4):
    if first.device.type == "cuda":
        first.vector.parameters.new_empty(1 << 44)
    raise torch.OutOfMemoryError("no room on the GPU")
if rank == "1" and batch == 12:
    raise MemoryError("no room")
"""


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda", number=2)])
def test_a_sweep_goes_on_after_a_failed_point_if_its_processes_can(
    tmp_path: Path, device: str
) -> None:
    env = before(tmp_path, "train.loop", "train_epoch", FAILING)
    point = (*TINY, "model=tiny_cnn", "epochs=1", "study=s", f"device={device}")
    grid = ("-m", "local_batch=8,16,6,4,15,12,10", *point)
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    result = bsweep("run", *grid, cwd=tmp_path, prefix=prefix, env=env)
    ends = summaries(tmp_path)
    statuses = dict.fromkeys((8, 6, 4, 12), "out_of_memory")
    statuses |= {16: "completed", 15: "completed", 10: "interrupted"}
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

    monkeypatch.setattr(inline, "run_here", lambda *_: order.append("trained"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("given back"))
    monkeypatch.setattr(hvd, "allgather_object", agree)
    monkeypatch.setattr(warm, "recorded", lambda _: Outcome("completed"))
    rank = warm.WarmRank()
    ended = rank._train(compose("local_batch=8"), RunPaths(tmp_path), lambda: None)
    assert ended == Outcome("completed")
    assert order == ["trained", "given back", "agreed"]
