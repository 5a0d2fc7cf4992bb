"""What has learned, what learned fastest, and how long it takes to a target accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bsweep.analysis.keys import cell_keys, keyed
from bsweep.analysis.once import once
from bsweep.analysis.statistics import over_seeds
from bsweep.analysis.study import Study
from bsweep.analysis.tables import cells

ACCURACY_MARGIN = 0.01  # of the best accuracy, absolute: within it, what is faster is preferred
TARGET_SHARE = 0.9  # of the best mean final test accuracy: the target where none is given


def fastest_accurate(cells: pd.DataFrame, margin: float = ACCURACY_MARGIN) -> pd.DataFrame:
    """The cells whose mean accuracy is within `margin` of the best one's, the fastest first.

    Test accuracy, or training accuracy where no cell has one; where none was recorded at all, every measured cell
    counts. Cells that are at chance are no candidates, see `cells`.
    """
    known = cells[(cells["n"] > 0) & cells["has_learned"].fillna(True)]
    accuracy = next((known[name] for name in ("test_accuracy", "train_accuracy") if known[name].notna().any()), None)
    if accuracy is not None:
        known = known[accuracy >= accuracy.max() - margin]
    return known.dropna(subset="train_seconds").sort_values("train_seconds", kind="stable")


@once
def accuracy_by_time(study: Study) -> pd.DataFrame:
    """Test accuracy at the end of each epoch by the seconds trained until then, indexed by `cell_keys` and `epoch`.

    Columns: `n` seeds; `elapsed_seconds`, without evaluations, and `test_accuracy`, means over seeds with intervals as
    in `cells`. Completed runs only.
    """
    keys, curves = cell_keys(study.runs), _curves(study)
    curves = curves[curves["status"] == "completed"]
    return over_seeds(curves, [*keys, "epoch"], ["elapsed_seconds", "test_accuracy"])


@once
def time_to_target(study: Study, target: float | None = None) -> pd.DataFrame:
    """Seconds of training until a test accuracy is reached, indexed by `cell_keys` and `seed`.

    Columns: `target`; `reached`; `seconds`, interpolated between the evaluation that first reaches it and the one
    before; of one reached at the first evaluation that evaluation's time, an upper bound; NaN where it is not reached.
    Of a seed that was run again the mean, if all runs reach it. Runs that diverged count as not reaching it unless
    they did before; others that did not complete are left out.

    Args:
        target: a fraction; None: `TARGET_SHARE` of the best cell's mean final test accuracy, in whole percents. The
            table is empty where no cell has learned.
    """
    keys, curves, runs = cell_keys(study.runs), _curves(study), keyed(study.runs)
    wanted = _default_target(study) if target is None else target
    is_evaluated = (runs["status"] == "completed") & runs["run_id"].isin(curves["run_id"])
    runs = runs[(is_evaluated | (runs["status"] == "diverged")) & np.isfinite(wanted)]
    seconds = {run_id: _seconds_to(of_run, wanted) for run_id, of_run in curves.groupby("run_id")}
    grouped = runs.assign(target=wanted, seconds=runs["run_id"].map(seconds)).groupby([*keys, "seed"])
    table = pd.DataFrame({"target": grouped["target"].first(), "reached": grouped["seconds"].count() == grouped.size()})
    return table.assign(seconds=grouped["seconds"].mean().where(table["reached"]))


def _default_target(study: Study) -> float:
    table = cells(study.runs)
    best = table.loc[table["has_learned"].fillna(True), "test_accuracy"].max()
    return round(TARGET_SHARE * float(best), 2)


def _curves(study: Study) -> pd.DataFrame:
    """The evaluations of all runs that have any, a row each, in their order: when, how accurate, and of which cell."""
    times = study.epochs[["run_id", "epoch", "train_seconds", "test_accuracy"]]
    elapsed = times.groupby("run_id")["train_seconds"].cumsum()
    known = keyed(study.runs)[["run_id", "status", "seed", *cell_keys(study.runs)]]
    evaluated = times.assign(elapsed_seconds=elapsed)[times["test_accuracy"].notna()]
    return evaluated.drop(columns="train_seconds").merge(known, on="run_id")


def _seconds_to(run: pd.DataFrame, target: float) -> float:
    seconds, accuracy = run["elapsed_seconds"].to_numpy(float), run["test_accuracy"].to_numpy(float)
    if not (accuracy >= target).any():
        return float("nan")
    first = int((accuracy >= target).argmax())
    around = slice(max(0, first - 1), first + 1)
    return float(np.interp(target, accuracy[around], seconds[around]))
