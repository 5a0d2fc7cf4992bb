"""Each bench runs; its figures are for quiet machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

from benches import alone, exchange, start, together, watch

pytestmark = pytest.mark.full

SHAPE = ("data.num_train=512", "data.num_test=16", "data.shape=[3,8,8]")
TINY_GRID = alone.Grid(
    (alone.Case("tiny", ("model=tiny_cnn", *SHAPE), {}),), batches=(4,), rounds=2
)


@pytest.mark.parametrize(
    ("bench", "arguments"),
    [
        (alone.steps_alone, (TINY_GRID,)),
        (together.steps_together, (TINY_GRID,)),
        (exchange.exchange, ("model=tiny_cnn", *SHAPE)),
        (start.start, (1, ("local_batch=8,16",))),
        (watch.watch, (4, 1.0)),
    ],
)
def test_each_bench_runs(
    bench: Callable[..., Any], arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # of this process
    rounds = pd.json_normalize(bench(*arguments)).iloc[0]
    assert all(map(len, rounds))
    assert max(map(max, rounds)) > 0
