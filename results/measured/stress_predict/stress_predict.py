"""How far predictions hold in nine synthetic worlds, in eight of which one assumption is broken.

    python results/measured/stress_predict/stress_predict.py studies.csv [--studies 30]
    [--drift 1.13]

In each world, searches as those of `bsweep recommend` are played over a grid of 8 batch sizes on 1,
2 and 4 workers, with three seeds, and the last prediction of each is held against the world. The
worlds are in `worlds.py`. The script writes a row for each study as soon as it ends, and a second
call plays only those that have no row yet. It prints for each world:

- coverage: the share of cells with a further run inside their 90 % interval;
- within 5 %: the share of studies whose recommended cell takes at most 5 % longer than the best;
- far off: the studies whose cell takes over 20 % longer, or that recommend none;
- far off, warned: the share of them with a warning;
- warned: the share of all studies with a warning;
- cost: the median cost of the search, as a share of that of the whole grid.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[3]))

from worlds import WORLDS

from bsweep.analysis.prediction.forecast import Key
from tests.support.played_search import SEEDS, Played
from tests.support.synthetic_targets import Truth

_CLOSE, _FAR = 0.05, 0.20  # by which the recommended cell may take longer than the best


def study(world: str, number: int, drift: float = 1.0) -> dict[str, object]:
    """Play one search in a world, and return what its prediction was worth.

    Its runs are so many times as slow as the steps that were timed before them.
    """
    truth = WORLDS[world](number)
    with tempfile.TemporaryDirectory() as folder:
        search = Played(truth, Path(folder, "s"), number, drift=drift)
        prediction = search.search()
    seconds = {cell: truth.seconds(*cell[:2]) for cell in search.grid.cells}
    whole = sum(SEEDS * cell[1] * _trained(search, cell) for cell in seconds)
    row: dict[str, object] = {"world": world, "study": number, "cost_share": search.spent / whole}
    row["num_runs"] = sum(search.used.values())
    if prediction is None:
        return row | {"regret": math.inf, "coverage": math.nan, "warnings": 1}
    best = prediction.recommended
    named = seconds[int(best["global_batch"]), int(best["num_workers"]), 1, ""]
    return row | {
        "global_batch": best["global_batch"], "num_workers": best["num_workers"],
        "regret": named / min(seconds.values()) - 1,
        "coverage": _coverage(truth, prediction.cells, np.random.default_rng([number, 13])),
        "warnings": len(prediction.warnings),
    }  # fmt: skip


def _trained(search: Played, cell: Key) -> float:
    """The seconds that a run of a cell trains: to the target, or to its planned end."""
    seconds = search.truth.seconds(*cell[:2])
    whole = search.grid.most_steps[cell] * search.step_seconds(cell)
    return seconds if math.isfinite(seconds) else whole


def _coverage(truth: Truth, cells: pd.DataFrame, rng: np.random.Generator) -> float:
    """The share of cells whose interval contains the seconds of a further run of the cell."""
    names = ["global_batch", "num_workers", "seconds_low", "seconds_high"]
    inside = []
    for batch, workers, low, high in cells[names].itertuples(index=False, name=None):
        if truth.reaches(batch):
            steps = truth.steps(batch) * truth.of_seed(rng)
            step = truth.step_seconds(batch / workers, workers) * truth.of_run(rng, workers)
            inside.append(low <= steps * step <= high)
    return float(np.mean(inside))


def summary(studies: pd.DataFrame) -> pd.DataFrame:
    """A row for each world; see the top of this file."""
    marked = studies.assign(
        close=studies["regret"] <= _CLOSE, far=studies["regret"] > _FAR,
        warned=studies["warnings"] > 0,
    )  # fmt: skip
    of = marked.groupby("world", sort=False)
    return pd.DataFrame({
        "studies": of.size(), "coverage": of["coverage"].mean(), "within 5 %": of["close"].mean(),
        "far off": of["far"].sum(),
        "far off, warned": marked[marked["far"]].groupby("world")["warned"].mean(),
        "warned": of["warned"].mean(), "cost": of["cost_share"].median(),
    }).loc[list(dict.fromkeys(studies["world"]))]  # fmt: skip


def stressed(num_studies: int, csv: Path | None = None, drift: float = 1.0) -> pd.DataFrame:
    """Play so many searches in each world, and return a row for each.

    With a file, rows that it has are not played again, and each new row is written to it.
    """
    table = pd.read_csv(csv) if csv and csv.exists() else pd.DataFrame(columns=["world", "study"])
    played = set(zip(table["world"], table["study"], strict=True))
    for number, world in itertools.product(range(num_studies), WORLDS):
        if (world, number) not in played:
            row = pd.DataFrame([study(world, number, drift)])
            table = pd.concat([table, row], ignore_index=True) if len(table) else row
            if csv:
                table.to_csv(csv, index=False, float_format="%.4g")
    order = table["world"].map(list(WORLDS).index)
    return table.assign(order=order).sort_values(["order", "study"]).drop(columns="order")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path)
    parser.add_argument("--studies", type=int, default=30, help="of each world")
    parser.add_argument("--drift", type=float, default=1.0, help="of runs against timed steps")
    given = parser.parse_args()
    studies = stressed(given.studies, given.csv, given.drift)
    studies.to_csv(given.csv, index=False, float_format="%.4g")
    print(summary(studies).round(3).to_string())


if __name__ == "__main__":
    main()
