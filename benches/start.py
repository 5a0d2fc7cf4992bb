"""How soon points start: in processes of the points before, and with a launch each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benches.common import Seconds, medians
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from tests.support.running import tool

TWELVE = ("local_batch=8,16,32,64,128,256", "num_workers=1,2")
SHORT = ("data.subset=512", "model=tiny_cnn", "epochs=1", "launch.threads_per_worker=1")


def start(rounds: int = 3, points: Sequence[str] = TWELVE) -> Seconds:
    """Return the seconds from launch to first step, and the overheads of all points."""
    overheads = {"true": "overhead, reused", "false": "overhead, a launch each"}
    seconds: Seconds = {name: [] for name in ("cold start", "warm start", *overheads.values())}
    for _ in range(rounds):
        for reuse, name in overheads.items():
            with tempfile.TemporaryDirectory() as folder:
                words = (*points, *SHORT, f"launch.reuse={reuse}", "study=bench")
                began = time.perf_counter()
                run_bsweep(folder, "run", "-m", *words, "log_every_steps=1")
                wall = time.perf_counter() - began
                metrics = Path(folder).glob("results/bench/*/metrics.jsonl")
                runs = [RunPaths(path.parent) for path in metrics]
                seconds[name].append(wall - sum(map(spent_on_results, runs)))
                for run in runs:
                    kind = "cold start" if run.launcher_log.exists() else "warm start"
                    seconds[kind].append(first_step_seconds(run))
    middle = medians(seconds)
    reused, launched = (middle[name] for name in overheads.values())
    print(
        f"launch to first step, 1 and 2 workers: {middle['cold start']:.2f} s (target: 4), in "
        f"processes of the point before {middle['warm start']:.2f} s (target: 0.5)"
    )
    print(
        f"overhead of twelve points: {reused:.1f} s, with a launch each {launched:.1f} s: "
        f"{launched / reused:.1f}x (target: 3x)"
    )
    return seconds


def run_bsweep(folder: str, *words: str) -> None:
    command = [tool("bsweep"), *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
        result.check_returncode()


def first_step_seconds(run: RunPaths) -> float:
    launched_at: float = json.loads(run.meta.read_text())["launched_at"]
    steps = (record for record in read_records(run.metrics)[0] if record["type"] == "step")
    first: float = next(steps)["time"]
    return first - launched_at


def spent_on_results(run: RunPaths) -> float:
    """Return the seconds of training steps and evaluations, each of which follows an epoch's last
    step at once.
    """
    seconds, last_step = 0.0, 0.0
    for record in read_records(run.metrics)[0]:
        if record["type"] == "step":
            last_step = record["time"]
        elif record["type"] == "epoch":
            seconds += record["train_seconds"] + record["time"] - last_step
    return seconds
