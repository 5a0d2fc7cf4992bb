"""Each bench runs; its figures are for quiet machines."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from tests.support.running import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench
from benches import against, alone

pytestmark = pytest.mark.full

SHAPE = ("data.num_train=512", "data.num_test=16", "data.shape=[3,8,8]")
MODEL = ("model=tiny_cnn", "data.num_train=256", "data.num_test=16")
TINY_GRID = alone.Grid(
    (alone.Case("tiny", ("model=tiny_cnn", *SHAPE), {}),), batches=(4,), rounds=2
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory", MODEL),
        ("alone", (TINY_GRID,)),
        ("accumulation", (TINY_GRID,)),
        ("parts", (TINY_GRID,)),
        ("together", (TINY_GRID,)),
        ("noise", (TINY_GRID,)),
        ("split", (2,)),
        ("step", MODEL),
        ("exchange", ("model=tiny_cnn", *SHAPE)),
        ("start", (1, ("local_batch=8,16",))),
        ("points", ((2, 3), 80, 1)),
        ("analysis", ((1, 2, 3), 1)),
    ],
)
def test_each_bench_runs(
    name: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # of this process
    found = json.loads(json.dumps({name: getattr(bench, f"bench_{name}")(*arguments)}))
    slower, num_compared = against.compared(found, found)
    assert slower == []
    assert num_compared > 0
