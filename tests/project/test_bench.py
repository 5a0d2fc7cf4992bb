"""Each bench runs; its figures are for quiet machines."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import report
from bsweep.runlog.files import RunPaths
from tests.support import running
from tests.support.running import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench
from benches import against, alone, split, together

pytestmark = pytest.mark.full

SHAPE = ("data.num_train=512", "data.num_test=16", "data.shape=[3,8,8]")
MODEL = ("model=tiny_cnn", "data.num_train=256", "data.num_test=16")
TINY_GRID = alone.Grid(
    (alone.Case("tiny", ("model=tiny_cnn", *SHAPE), {}),), batches=(4,), rounds=2
)


AS_SCRIPT = """#!/bin/sh
while [ "${{1%bench.py}}" = "$1" ]; do shift; done
exec {python} -c 'import runpy, sys
sys.argv, sys.path[:0] = sys.argv[1:], ["{scripts}"]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""  # forks take modules and code alone


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands and their workers in forks, one epoch for all strategies, and a process that keeps
    its threads.
    """

    def run(command: list[str], folder: str) -> None:
        words = [word for word in command[1:] if not word.startswith("launch.")]
        ended = running.bsweep(
            *words, "launch=inline", "strategy=single", "data=synthetic", *SHAPE, cwd=Path(folder)
        )
        assert not ended.returncode, ended.stderr
        # As if it had been launched by itself.
        for path in list(Path(folder).glob("results/bench/b8*"))[:1]:
            RunPaths(path).launcher_log.touch()

    @functools.cache
    def one_epoch() -> dict[str, Any]:
        found = of_strategy("num_workers=1", "model=tiny_cnn")
        return {**found, "exchange_seconds": 0.1}

    def forked(name: str) -> str:
        return str(getattr(running.forks(), name))

    of_strategy, own_tools = bench.one_epoch, Path(sys.executable).parent
    monkeypatch.setattr(split, "tool", lambda name: str(own_tools / name))
    python = tmp_path / "python"
    python.write_text(AS_SCRIPT.format(python=forked("python"), scripts=ROOT / "scripts"))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(bench, "tool", forked)
    monkeypatch.setattr(together, "tool", forked)
    monkeypatch.setattr(bench, "run_command", run)
    monkeypatch.setattr(bench, "one_epoch", lambda *overrides: one_epoch())
    monkeypatch.setattr(report, "write", lambda study: None)  # has tests of its own
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory", MODEL),
        ("alone", (TINY_GRID,)),
        ("accumulation", (TINY_GRID,)),
        ("parts", (TINY_GRID,)),
        ("together", (TINY_GRID,)),
        ("noise", (TINY_GRID,)),
        pytest.param("split", (2,), marks=pytest.mark.full),
        ("step", MODEL),
        ("exchange", ("model=tiny_cnn", *SHAPE)),
        ("strategies", (1,)),
        ("start", (1, ("local_batch=8,16",))),
        ("points", ((2, 3), 80, 1)),
        ("analysis", ((1, 2, 3), 1)),
    ],
)
@pytest.mark.usefixtures("cheap")
def test_each_bench_runs(name: str, arguments: tuple[Any, ...]) -> None:
    found = json.loads(json.dumps({name: getattr(bench, f"bench_{name}")(*arguments)}))
    slower, num_compared = against.compared(found, found)
    assert slower == []
    assert num_compared > 0
