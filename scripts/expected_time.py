"""Does it pay to choose the cell with the least expected time, and not that with the least median?

    python scripts/expected_time.py expected_time.csv 40 66

In each of the synthetic worlds of `stress_predict.py`, in turn, three to five runs of random cells
are given to `bsweep predict`, without timed steps. Of its predictions of all 24 cells, three rules
choose one: the least median, the least mean over the draws, and the least mean in which the slowest
5 % of a cell's draws count as its 95 % quantile. The script writes by how much longer each choice
takes than the best cell, as a fraction, and prints a summary. The numbers draw world and cells.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

import bsweep
from bsweep.analysis.prediction import fit, predict_from
from bsweep.analysis.prediction.objectives import log_objective, parse_objective
from bsweep.analysis.prediction.selection import observed
from bsweep.config.target import target_of
from tests.support.played_search import BATCHES, WORKERS
from tests.support.synthetic_targets import TARGET, write_target_run
from tests.support.worlds import WORLDS

_CELLS = [(batch, workers, 1, "") for workers in WORKERS for batch in BATCHES]
_DRAWS, _CLOSE, _FAR = 800, 0.05, 0.20


def choices(logs: np.ndarray) -> dict[str, int]:
    """The place of the cell that each rule chooses, of draws of shape (draws, cells)."""
    seconds = np.exp(logs - np.median(logs))
    clipped = np.minimum(seconds, np.quantile(seconds, 0.95, axis=0))
    scores = {
        "median": np.median(logs, axis=0),
        "mean": seconds.mean(axis=0),
        "clipped mean": clipped.mean(axis=0),
    }
    return {rule: int(np.argmin(score)) for rule, score in scores.items()}


def row(number: int) -> dict[str, object] | None:
    """What the three rules choose in one world; None if its runs are too few to predict from."""
    world = list(WORLDS)[number % len(WORLDS)]
    truth, rng = WORLDS[world](number), np.random.default_rng([number, 77])
    num_runs = int(rng.integers(3, 6))
    most = 2 * max(truth.steps(batch) * batch for batch in BATCHES if truth.reaches(batch))
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder, "s")
        for place in rng.permutation(len(_CELLS))[:num_runs]:
            batch, workers, *_ = _CELLS[place]
            write_target_run(
                study, truth, batch=batch, workers=workers, seed=number, most_examples=most
            )
        seen = observed(bsweep.load(study), target_of(accuracy=TARGET))
        try:
            fits = fit(seen, (), _DRAWS)
            told = predict_from(seen, fits, parse_objective("fastest"), _CELLS)
        except ValueError:
            return None
    seconds = np.array([truth.seconds(batch, workers) for batch, workers, *_ in _CELLS])
    allowed = np.flatnonzero(told.cells["is_allowed"])
    chosen = choices(log_objective(told.forecast, told.objective)[:, allowed])
    regrets = {rule: seconds[allowed[place]] / seconds.min() - 1 for rule, place in chosen.items()}
    return {"world": world, "number": number, "num_runs": num_runs, **regrets}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int, help="the number after the last one")
    given = parser.parse_args()
    rows = [row(number) for number in range(given.first, given.end)]
    table = pd.DataFrame([one for one in rows if one])
    table.to_csv(given.csv, index=False, float_format="%.4g")
    regrets = table.drop(columns=["world", "number", "num_runs"])
    print(pd.DataFrame({
        "within 5 %": (regrets <= _CLOSE).sum(), "over 20 % off": (regrets > _FAR).sum(),
        "typical": np.expm1(np.log1p(regrets).mean()),
    }).round(3).to_string())  # fmt: skip


if __name__ == "__main__":
    main()
