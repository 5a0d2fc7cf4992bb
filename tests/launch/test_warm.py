"""What sweeps in the warm processes of a horovodrun rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gpus import on_gpus
from tests.support.running import TINY, before, bsweep, forks, summaries

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
