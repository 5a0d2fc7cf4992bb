"""What only GPUs show: one that computes what a CPU does, and two workers or more over NCCL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep.runlog.reading import read_json, read_records
from tests.support.gpus import needs_gpus
from tests.support.running import before, bsweep, imported_first, recorded
from tests.support.training import set_up, train

IMAGES = ("data=synthetic", "data.num_train=1000", "data.num_test=100", "data.shape=[3,32,32]")
POINT = ("device=cuda", "local_batch=64", "model=resnet18", *IMAGES)

pytestmark = needs_gpus()
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA GPUs")


def run(
    cwd: Path, *overrides: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a run of two workers ended, and its records."""
    point = ("study=s", "num_workers=2", "precision=fp32", "epochs=1", *POINT, *overrides)
    result = bsweep("run", *point, cwd=cwd, env=env, fresh=True)
    found = list(cwd.glob("results/s/*/summary.json"))
    assert found, result.stderr
    return read_json(found[0]) or {}, list(read_records(found[0].parent / "metrics.jsonl")[0])


def test_three_steps_in_float64_are_those_of_a_cpu(tmp_path: Path) -> None:
    images = ("data=synthetic", "data.num_train=20", "data.num_test=8", "data.shape=[3,32,32]")
    point = ("precision=fp64", "epochs=1", "local_batch=8", *images)
    weights: list[torch.Tensor] = []
    for name in ("cpu", "cuda"):
        job = train(tmp_path / name, *point, f"device={name}")
        weights.append(job.vector.parameters.cpu())
        assert [epoch["num_steps"] for epoch in recorded(tmp_path / name, "epoch")] == [3]
    start = set_up(tmp_path, *point, "device=cpu").vector.parameters
    assert (weights[0] - start).abs().max() > 0.01, "they moved"
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-7, atol=1e-9)


@needs_two
def test_horovod_and_ddp_train_alike_over_nccl(tmp_path: Path) -> None:
    losses = []
    for strategy in ("horovod", "ddp"):
        (cwd := tmp_path / strategy).mkdir()
        summary, records = run(cwd, f"strategy={strategy}")
        assert summary["status"] == "completed", summary["message"]
        (start,) = (record for record in records if record["type"] == "start")
        assert [peer["device"] for peer in start["workers"]] == 2 * [start["device"]]
        assert start["gpu_software"]
        losses.append(summary["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


STRATEGIES = ("horovod", "ddp", "allreduce", "local_sgd", "diloco", "parameter_server")
FAILING = """
if rank == "1" and call == 3:
    open("{folder}/failed", "w").close()
    first.vector.parameters.new_empty(1 << 44)
"""


@needs_two
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_out_of_memory_on_one_worker_ends_the_run_at_once(tmp_path: Path, strategy: str) -> None:
    code = FAILING.format(folder=tmp_path)
    env = before(tmp_path, "train.step", "train_step", code)
    summary, _ = run(tmp_path, f"strategy={strategy}", env=env)
    assert summary["status"] == "out_of_memory"
    assert summary["message"].startswith("rank 1 failed")
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30


WATCHED = """
import os
if "RANK" in os.environ or "HOROVOD_RANK" in os.environ:
    import torch
    import bsweep.train.step as step
    plain = step.train_step

    def watched(*a, **k):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return plain(*a, **k)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    step.train_step = watched
"""


@needs_two
@pytest.mark.parametrize("strategy", ["horovod", "allreduce"])
def test_no_step_of_two_workers_waits_for_its_gpu(tmp_path: Path, strategy: str) -> None:
    """As torch can tell: Horovod itself waits for each sum, in its own code."""
    env = imported_first(tmp_path, WATCHED)
    summary, _ = run(tmp_path, f"strategy={strategy}", env=env)
    assert summary["status"] == "completed", summary["message"]
