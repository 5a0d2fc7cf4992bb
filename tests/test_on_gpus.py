"""Two workers on GPUs of their own, over NCCL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep.runlog import read_json, read_records
from tests.running import bsweep, imported_first

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]
POINT = (
    "study=s", "local_batch=64", "num_workers=2", "device=cuda", "precision=fp32", "model=resnet18", "epochs=1",
    "data=synthetic", "data.num_train=1000", "data.num_test=100", "data.shape=[3,32,32]",
)  # fmt: skip


def run(cwd: Path, *overrides: str, env: dict[str, str] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    bsweep("run", *POINT, *overrides, cwd=cwd, env=env, fresh=True)
    (summary,) = cwd.glob("results/s/*/summary.json")
    return read_json(summary) or {}, list(read_records(summary.parent / "metrics.jsonl")[0])


def test_horovod_and_ddp_train_alike_over_nccl(tmp_path: Path) -> None:
    from horovod.torch import nccl_built

    assert nccl_built()
    losses = []
    for strategy in ("horovod", "ddp"):
        cwd = tmp_path / strategy
        cwd.mkdir()
        summary, records = run(cwd, f"strategy={strategy}")
        assert summary["status"] == "completed", summary["message"]
        (start,) = (record for record in records if record["type"] == "start")
        assert start["gpu_software"] and [peer["device"] for peer in start["workers"]] == 2 * [start["device"]]
        losses.append(summary["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("strategy", ["horovod", "ddp", "allreduce", "local_sgd", "diloco", "parameter_server"])
def test_out_of_memory_on_one_gpu_ends_the_run_at_once(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('RANK', os.environ.get('HOROVOD_RANK')) == '1':\n"
        "    import bsweep.steps as steps\n"
        "    plain, calls = steps.train_step, []\n"
        "    def failing(*a, **k):\n"
        "        calls.append(1)\n"
        "        if len(calls) == 3:\n"
        f"            open({str(tmp_path / 'failed')!r}, 'w').close()\n"
        "            a[0].vector.parameters.new_empty(1 << 44)\n"
        "        return plain(*a, **k)\n"
        "    steps.train_step = failing\n"
    )
    summary, _ = run(tmp_path, f"strategy={strategy}", env=imported_first(tmp_path))
    assert summary["status"] == "out_of_memory" and summary["message"].startswith("rank 1 failed")
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30
