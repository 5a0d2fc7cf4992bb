"""The seconds of a step of several batches that were timed in turn, round by round.

    python scripts/rounds.py results/measured/truth/again

The folder has `records`, the compressed `metrics.jsonl` of runs of one epoch. Runs of one seed make
a round. The script prints each round's median seconds of a step, the seconds of an example relative
to the largest batch in the same round, and the spread of rounds. It reads the records alone, with
no code of bsweep. Intervals are 95 % t-intervals of the mean logarithm over rounds.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats


def main(folder: Path) -> None:
    seconds: dict[int, dict[int, float]] = {}  # by batch and round
    for path in sorted((folder / "records").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            records = [json.loads(line) for line in lines]
        (start,) = (record for record in records if record["type"] == "start")
        (epoch,) = (record for record in records if record["type"] == "epoch")
        of_batch = seconds.setdefault(start["global_batch"], {})
        of_batch[start["config"]["seed"]] = epoch["step_seconds_p50"]
    batches = sorted(seconds)
    rounds = sorted(set.intersection(*(set(of_batch) for of_batch in seconds.values())))
    table = np.array([[seconds[batch][number] for number in rounds] for batch in batches])
    print("round    " + "  ".join(f"{number:>6}" for number in rounds))
    for batch, row in zip(batches, table, strict=True):
        print(f"{batch:>5} (s)" + "  ".join(f"{value:6.3f}" for value in row))
    largest = table[-1] / batches[-1]
    for batch, row in zip(batches, table, strict=True):
        spread = np.std(np.log(row), ddof=1)
        line = f"{batch:>5}: median {np.median(row):.3f} s a step, rounds scatter by "
        line += f"{100 * np.expm1(spread):.1f} % (one standard deviation)"
        if batch != batches[-1]:
            line += "; an example costs {:.3f} ({:.3f} to {:.3f}) times that of {}".format(
                *ratio(row / batch, largest), batches[-1]
            )
        print(line)


def ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    logs = np.log(ours / theirs)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    mean, low, high = np.exp(logs.mean() + np.array([0, -half, half]))
    return float(mean), float(low), float(high)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
