"""Each bench runs; its figures are for quiet machines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benches import alone, start, together, watch
from tests.support.running import ROOT

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


def test_the_command_writes_the_seconds_of_every_round(tmp_path: Path) -> None:
    file = tmp_path / "exchange.json"
    command = [sys.executable, "-m", "benches", "exchange", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads(file.read_text())
    assert results["cores"] > 0
    assert all(len(seconds) == 15 for seconds in results["exchange"].values())
