"""When each run reaches a target: one rule for all figures, tables and predictions, and for runs
that end at it.

1. A run's curve is its evaluations, each smoothed by the median of itself and its two neighbours,
    so that one lucky
   evaluation reaches nothing: a target is reached at an evaluation if two of these three are as
   good. Where a neighbour is missing, before the first and after the last, it counts as worse than
   any.
2. The target is reached at the first point of the smoothed curve that is as good as it. Seconds,
    steps, epochs and
   examples are interpolated between that point and the one before, in proportion to accuracy or
   loss.
3. Where that is the first evaluation, they are that evaluation's: upper bounds, `is_bound`.
4. A run with `stop_at_target` ends at the evaluation after that point, the first one that tells: by
    what came until
   then, two of the last three are as good. So it has the time to the target that it would have had
   if it had gone on.
5. A run that does not reach it is censored: it needs more than what it `trained` until the last
    evaluation of which it
   is certain that it does not reach it, whatever would have come after. That is no number to
   average. One good evaluation at the end of a run reaches nothing, but it leaves open whether the
   target was reached just there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bsweep.analysis.once import once
from bsweep.config import Target

AMOUNTS = {  # what it takes to a target, and the column of an evaluation that has it
    "seconds": "train_seconds",
    "steps": "num_steps",
    "epochs": "epochs_done",
    "examples": "num_examples",
}
_STEPS = list(AMOUNTS).index("steps")
_TO_TARGET = [f"{name}_to_target" for name in AMOUNTS]
_OF_RUNS = ["reached", "is_bound", *_TO_TARGET]
_TARGETS = {"target_accuracy": "test_accuracy", "target_loss": "test_loss"}


class _Evaluated(Protocol):
    """What a study is to this module, which `bsweep.analysis.loaded` imports."""

    @property
    def evaluations(self) -> pd.DataFrame: ...


@once
def to_target(study: _Evaluated, target: Target) -> pd.DataFrame:
    """What each run needs to a target, a row a run that was evaluated, indexed by `run_id`.

    Columns: `reached`; `is_bound`; `seconds_to_target`, `steps_to_target`, `epochs_to_target` and
    `examples_to_target`, NaN where it was not reached; `steps_between` the two evaluations that it
    was interpolated between; `trained_seconds` and so on, what it trained until the last
    evaluation, or of a censored run until the last that certainly did not reach it; `best`, of the
    smoothed curve. The rule is this module's first lines.
    """
    return crossings(study.evaluations, target)


def with_own_targets(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """The runs with `_OF_RUNS`, of those that name a target; unless they have them, as in a CSV, or
    none names one.
    """
    named = {key: pd.to_numeric(runs[key], errors="coerce") for key in _TARGETS if key in runs}
    if "reached" in runs or not any(values.notna().any() for values in named.values()):
        return runs
    parts = []
    for key, values in named.items():
        for value in values.dropna().unique():
            run_ids = runs.loc[values == value, "run_id"]
            of = evaluations[evaluations["run_id"].isin(run_ids)]
            found = crossings(of, Target(_TARGETS[key], float(value)))[_OF_RUNS].reindex(run_ids)
            parts.append(
                found.assign(**{name: found[name].eq(True) for name in ("reached", "is_bound")})
            )
    return runs.join(pd.concat(parts), on="run_id")


def crossings(evaluations: pd.DataFrame, target: Target) -> pd.DataFrame:
    """The table of `to_target`, of evaluations such as `Study.evaluations`."""
    known = evaluations[["run_id", *AMOUNTS.values(), target.metric]].dropna(subset=target.metric)
    rows = {
        run_id: dict(
            _of_run(
                curve[list(AMOUNTS.values())].to_numpy(float),
                curve[target.metric].to_numpy(float),
                target,
            )
        )
        for run_id, curve in known.groupby("run_id", sort=False)
    }
    names = [*_OF_RUNS, "steps_between", *(f"trained_{name}" for name in AMOUNTS), "best"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=names)
    return table.rename_axis("run_id").astype({"reached": bool, "is_bound": bool})


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each value, of which more is better, and its two neighbours; one that is
    missing is the worst.
    """
    padded = np.concatenate([[-np.inf], values, [-np.inf]])
    return np.asarray(np.sort([padded[:-2], padded[1:-1], padded[2:]], axis=0)[1])


def _of_run(
    amounts: NDArray[np.float64], values: NDArray[np.float64], target: Target
) -> Iterator[tuple[str, float | bool]]:
    """A row of `to_target`, from amounts of shape (evaluations, 4)."""
    wanted = target.sign * target.value
    curve = smoothed(target.sign * values)
    reached = bool((curve >= wanted).any())
    first = int((curve >= wanted).argmax())
    yield from (("reached", reached), ("is_bound", reached and first == 0))
    yield "best", float(target.sign * curve.max() if len(curve) > 1 else values[0])
    interpolated = reached and first > 0
    yield (
        "steps_between",
        float(amounts[first, _STEPS] - amounts[first - 1, _STEPS]) if interpolated else np.nan,
    )
    # The next may be as good.
    is_open = not reached and bool((target.sign * values[-2:] >= wanted).any())
    for name, column in zip(AMOUNTS, amounts.T, strict=True):
        around = slice(max(0, first - 1), first + 1)
        yield (
            f"{name}_to_target",
            float(np.interp(wanted, curve[around], column[around])) if reached else np.nan,
        )
        yield f"trained_{name}", float(np.concatenate([[0.0], column])[-1 - is_open])
