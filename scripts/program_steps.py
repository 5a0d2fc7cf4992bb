"""The processor time that `run.steps` adds to each step of a training program, in microseconds.

python scripts/program_steps.py [--steps N] [--rounds N]

The same loop over N empty batches runs with and without `run.steps`, in turns, and the difference
of each pair is divided by N. Reports are written to a file, as under `bsweep run program=own`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bsweep.programs.joined import Run
from bsweep.programs.loop import Facts


def joined(folder: Path) -> Run:
    """Return the client of a lone worker, whose reports go to a file."""
    point: dict[str, object] = {
        "local_batch": 64,
        "global_batch": 64,
        "num_workers": 1,
        "rank": 0,
        "local_rank": 0,
        "seed": 0,
        "epochs": 1,
        "lr": None,
        "options": {},
        "checkpoint_folder": str(folder),
        "first_epoch": 1,
        "most_steps": None,
        "stop_file": str(folder / "stop"),
        "target": None,
        "scores": [],
        "num_train": None,
    }
    return Run(point, Facts(num_train=2**62), folder)


def seconds(batches: Iterable[object]) -> float:
    """Return the processor time of a loop that does nothing with its batches, which other work on
    the machine does not lengthen.
    """
    begun = time.process_time()
    for _ in batches:
        pass
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what run.steps adds to each step.")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=15, help="rounds, of which the median counts")
    given = parser.parse_args()
    batches = [[0] * 64] * given.steps
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = joined(Path(folder))
        for _ in range(given.rounds):
            plain = seconds(batches)
            found.append((seconds(run.steps(batches)) - plain) / given.steps * 1e6)
    least, *_, most = sorted(found)
    print(
        f"run.steps adds {statistics.median(found):.2f} microseconds of processor time to a step "
        f"(median of {given.rounds} rounds of {given.steps} steps, {least:.2f} to {most:.2f})"
    )


if __name__ == "__main__":
    main()
