"""The rule that decides when a run reaches a target accuracy or loss, for figures, tables and
predictions.

1. A run's curve is its evaluations. Each is smoothed by the median of itself and its two
   neighbours, so that one lucky evaluation reaches nothing: two of the three must be as good as the
   target. A missing neighbour, before the first and after the last evaluation, counts as worse than
   any.
2. The target is reached at the first point of the smoothed curve that is as good as it. Seconds,
   steps, epochs and examples are interpolated between that point and the one before, in proportion
   to the smoothed accuracy or loss.
3. If that point is the first evaluation, the amounts are those of this evaluation. They are then
   upper bounds (`is_bound`).
4. A run with `stop_at_target` ends at the evaluation after that point, because only then two of the
   last three are known to be as good. Its time to the target is therefore the one that it would
   have if it had gone on.
5. A run that does not reach the target is censored: it needs more than it had `trained` at the last
   evaluation that certainly does not reach the target, whatever might have followed. Such an amount
   must not be averaged. One good evaluation among the last two of a run does not reach the target,
   but leaves open whether the next evaluation would have confirmed it.

Times to a target are summarised over runs in four ways, because a censored time has no value:

- `learning.times_to_target` gives the mean over the seeds that reached the target, and counts the
  others beside it.
- `conclusions.comparing` gives the geometric mean, because it compares ratios, and only if all runs
  of a cell reached the target in both studies.
- `prediction.likelihood` fits all runs, and takes those that did not reach the target as lower
  bounds.
- The interactive page gives the median, with infinity for runs that did not reach the target. It is
  known if more than half of the runs reached it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bsweep.analysis.study.caching import cached
from bsweep.config.target import SETTINGS, Target, best_of, smoothed

if TYPE_CHECKING:
    from bsweep.analysis.study.frames import Study

AMOUNTS = {  # the amounts to a target, and the column of an evaluation for each
    "seconds": "train_seconds",
    "steps": "num_steps",
    "epochs": "epochs_done",
    "examples": "num_examples",
}
_TO_TARGET = [f"{name}_to_target" for name in AMOUNTS]
_OF_RUNS = ["reached", "is_bound", *_TO_TARGET]


@cached
def to_target(study: Study, target: Target) -> pd.DataFrame:
    """Return the seconds, steps, epochs and examples that each evaluated run needs to reach a
    target, one row for each run.

    The table is indexed by `run_id`.

    The rule is that of this module's docstring.

    Columns:
        `reached`, `is_bound`: Whether the target was reached, and whether the amounts are upper
            bounds.
        `seconds_to_target`, `steps_to_target`, `epochs_to_target`, `examples_to_target`: NaN where
            the target was not reached.
        `steps_between`: The steps between the two evaluations that were interpolated between.
        `trained_seconds` and so on: The amounts trained until the last evaluation, or, for a
            censored run, until the last one that certainly did not reach the target.
        `best`: The best median of three evaluations, see `Target.best_median`; NaN for a single
            evaluation.
        `last`: The last evaluation.

    Args:
        study: The study, of which only the table `evaluations` is read.
        target: The test accuracy or test loss to reach.

    Returns:
        The table. Times are in seconds.
    """
    return crossings(study.evaluations, target)


def best_scores(study: Study, metric: str) -> pd.Series[float]:
    """Return the best median of three successive evaluations of each evaluated run, which decides
    whether it reaches a target; NaN for a single evaluation.

    Args:
        study: The study.
        metric: `test_accuracy` or `test_loss`.

    Returns:
        The scores, by `run_id`.
    """
    target, evaluated = Target(metric, 0.0), study.evaluations.dropna(subset=metric)
    best = {
        run_id: target.best_median(curve.tolist())
        for run_id, curve in evaluated.groupby("run_id", sort=False)[metric]
    }
    return pd.Series(best, dtype=float)


def named_targets(runs: pd.DataFrame) -> dict[Target, pd.Series[str]]:
    """Return the different targets in the settings of runs, each with the ids of its runs."""
    return {
        Target(metric, float(value)): runs.loc[values == value, "run_id"]
        for metric, name in SETTINGS.items()
        for values in [pd.to_numeric(runs.get(name, pd.Series(dtype=float)), errors="coerce")]
        for value in values.dropna().unique()
    }


def with_own_targets(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs with added columns: whether a run reached the target in its
    settings, and the seconds, steps, epochs and examples that it needed, or upper bounds of them.

    The runs stay as they are if they have these columns already, as in a CSV, or if none names a
    target.
    """
    targets = named_targets(runs)
    if "reached" in runs or not targets:
        return runs
    amounts = pd.concat([
        crossings(evaluations[evaluations["run_id"].isin(run_ids)], target).reindex(run_ids)
        for target, run_ids in targets.items()
    ])[_OF_RUNS]  # fmt: skip
    flags = {name: amounts[name].eq(True) for name in ("reached", "is_bound")}
    return runs.join(amounts.assign(**flags), on="run_id")


def crossings(evaluations: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return the seconds, steps, epochs and examples that each run needs to reach a target, given a
    table of evaluations.

    The table has the form of `Study.evaluations`. `to_target` describes the columns of the result.
    """
    columns = list(AMOUNTS.values())
    evaluated = evaluations[["run_id", *columns, target.metric]].dropna(subset=target.metric)
    rows = {
        run_id: crossing(
            curve[columns].to_numpy(float), curve[target.metric].to_numpy(float), target
        )
        for run_id, curve in evaluated.groupby("run_id", sort=False)
    }
    names = [*_OF_RUNS, "steps_between", *(f"trained_{name}" for name in AMOUNTS), "best", "last"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=names)
    return table.rename_axis("run_id").astype({"reached": bool, "is_bound": bool})


def crossing(
    amounts: NDArray[np.float64], values: NDArray[np.float64], target: Target
) -> dict[str, float | bool]:
    """Return the values of the columns that the table of `to_target` has for one run, such as
    `reached`, by their names.

    Args:
        amounts: The columns of `AMOUNTS` at each evaluation, shape (evaluations, 4).
        values: The target's metric at each evaluation, shape (evaluations,).
        target: The target to reach.
    """
    wanted, scores = target.sign * target.value, target.sign * values
    curve = np.array(smoothed(scores.tolist()))
    reached = bool((curve >= wanted).any())
    first = int((curve >= wanted).argmax())
    around = slice(max(0, first - 1), first + 1)
    # One more good evaluation might have shown that the target was reached.
    is_open = not reached and bool((scores[-2:] >= wanted).any())
    to_target = [
        float(np.interp(wanted, curve[around], column[around])) if reached else np.nan
        for column in amounts.T
    ]
    trained = np.vstack([np.zeros(len(AMOUNTS)), amounts])[-1 - is_open]
    steps = amounts[around, list(AMOUNTS).index("steps")]
    return {
        "reached": reached,
        "is_bound": reached and first == 0,
        **dict(zip(_TO_TARGET, to_target, strict=True)),
        "steps_between": float(steps[-1] - steps[0]) if reached and first > 0 else np.nan,
        **{f"trained_{name}": float(x) for name, x in zip(AMOUNTS, trained, strict=True)},
        "best": target.sign * best_of(curve.tolist()),
        "last": float(values[-1]),
    }
