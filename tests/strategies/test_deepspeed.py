"""DeepSpeed's ZeRO (`strategy=deepspeed`) ends with the weights of DDP, and resumes bit for bit.

The tests of real runs need DeepSpeed, and are skipped without it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import bsweep as bsweep_package
from bsweep.runlog.files import RunPaths
from tests.study.test_run import runs
from tests.support.running import TINY, exits, ran_ok, struck
from tests.train.test_resume import check_equal

POINT = (
    *TINY,
    "data.num_train=91",
    "model=tiny_cnn",
    "precision=fp32",
    "channels_last=false",
    "epochs=2",
    "optimizer.lr=0.5",
    "optimizer.weight_decay=0.01",
    "global_batch=24",
    "num_workers=2",
)
ADAMW = ("optimizer=adamw", "optimizer.lr=0.01")
IS_HERE = importlib.util.find_spec("deepspeed") is not None
with_deepspeed = pytest.mark.skipif(not IS_HERE, reason="DeepSpeed is not installed")


@pytest.mark.skipif(IS_HERE, reason="DeepSpeed is installed")
def test_without_deepspeed_its_extra_is_named(tmp_path: Path) -> None:
    result = exits(2, "run", *POINT, "strategy=deepspeed", cwd=tmp_path)
    assert "pip install 'bsweep[deepspeed]'" in result.stderr, result.stderr


def weights(paths: RunPaths) -> dict[str, torch.Tensor]:
    return dict(bsweep_package.load_model(paths.folder).state_dict())


@with_deepspeed
@pytest.mark.parametrize(
    ("stage", "more"),
    [(1, ("accumulation_steps=2",)), (2, ("accumulation_steps=2",)), (3, ()), (2, ADAMW)],
)
def test_workers_reach_the_weights_of_ddp(
    tmp_path: Path, stage: int, more: tuple[str, ...]
) -> None:
    ours, theirs = (f"strategy=deepspeed strategy.stage={stage}".split(), ["strategy=ddp"])
    for study, how in (("ours", ours), ("theirs", theirs)):
        words = (*POINT, *how, *more, "keep_weights=true", f"study={study}")
        ran_ok("run", *words, cwd=tmp_path)
    (ours_paths,), (theirs_paths,) = runs(tmp_path, "ours"), runs(tmp_path, "theirs")
    found, expected = weights(ours_paths), weights(theirs_paths)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


@with_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, stage: int) -> None:
    point = (*POINT, "strategy=deepspeed", f"strategy.stage={stage}", *ADAMW, "epochs=4")
    env = struck(tmp_path, (1,), "train.step", "train_step", 11)
    exits(1, "run", *point, "study=s", "checkpoint_every=1", cwd=tmp_path, env=env)
    for study in ("s", "whole"):
        ran_ok("run", *point, f"study={study}", "checkpoint_every=1", cwd=tmp_path)
    check_equal(tmp_path)
