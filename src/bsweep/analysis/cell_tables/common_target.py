"""The one target, a test accuracy or loss, that the predictions, tables and figures of a study's
report have in common.

It is the target that the runs name, if they agree on one and some run reached it. Otherwise it is
chosen over the cells of the study at their best learning rates: the highest test accuracy, in whole
percents, that three quarters of the cells reach in all their runs. These cells have at least three
batch sizes, if the study has as many. The target is thus as late in training as most cells can
show, with few runs that are known by a bound only. If three quarters reach no accuracy that is
above chance, each by the chance level of its own data, half of the cells are enough. If no accuracy
was measured, the target is the lowest test loss, in hundredths. A run reaches what the median of
three evaluations reaches, so one evaluation reaches nothing.

If no target can be chosen, it is the target that the runs agree on, although no run reached it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.keys import RATES, cell_keys, keyed
from bsweep.analysis.cell_tables.statistics import beats_chance
from bsweep.analysis.cell_tables.tuning import tuned
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.analysis.study.numbers import number
from bsweep.analysis.study.targets import best_scores, named_targets, to_target
from bsweep.config.target import Target
from bsweep.core.words import counted

# Batch sizes that must reach the target for steps to give the critical batch without help.
ENOUGH_BATCHES = 3
_STEP = 0.01
_ROUNDING = 1e-9
SHARES = (0.75, 0.5)  # of the cells; the second if the first are not above chance


@cached
def common_target(study: Study) -> tuple[Target, str] | None:
    """Return the target that the parts of a study's report have in common, and a text that says
    where it comes from if the runs do not name it.

    Args:
        study: The study.

    Returns:
        The target and its origin, which is empty if the runs name this target; None if the runs
        name no single target and `supported_target` finds none.
    """
    part = evaluated_part(study.runs)
    named = [replace(target, part=part) for target in named_targets(study.runs)]
    if len(named) == 1 and to_target(study, named[0])["reached"].any():
        return named[0], ""
    # Only the best rates count: a rate that does not suit a batch says nothing of what it reaches.
    supported = supported_target(tuned(study))
    if supported is None:
        return (named[0], "") if len(named) == 1 else None
    target, why = supported
    if not named:
        return target, f"The runs name no target: {why}"
    problem = (
        f"The runs name {len(named)} targets."
        if len(named) > 1
        else f"No run reached {named[0]}. {best_seen(study, named[0])}."
    )
    return target, f"{problem} So {why}"


def best_seen(study: Study, target: Target) -> str:
    """Return a clause with the best median of three successive evaluations among the runs of a
    study, which decides about targets, and with the best last evaluation.

    Args:
        study: The study.
        target: The target whose metric is meant.

    Returns:
        The clause.
    """
    scores = target.sign * to_target(study, target)[["best", "last"]].astype(float)
    median, last = (number(float(target.sign * value)) for value in scores.max())
    return f"The best median of three evaluations is {median} (best last evaluation: {last})"


def supported_target(study: Study) -> tuple[Target, str] | None:
    """Return a target (a test accuracy or loss) that at least half of the cells reach, and a
    sentence that says so; None if there is none.

    The rule is that of this module's docstring.
    """
    metric = "test_accuracy" if study.evaluations["test_accuracy"].notna().any() else "test_loss"
    cells = _scores(study, metric).sort_values("score", ascending=False)
    for share in SHARES:
        score = _level(cells["score"], share)
        if math.isfinite(score) and (metric == "test_loss" or _is_learned(cells, score, share)):
            break
    else:
        return None
    value = round(score if metric == "test_accuracy" else -score, 2) or 0.0  # not minus zero
    target = Target(metric, value, evaluated_part(study.runs))
    num_reached = int((cells["score"] >= score - _ROUNDING).sum())
    best, unit = (
        ("highest", "whole percents") if metric == "test_accuracy" else ("lowest", "hundredths")
    )
    return target, (
        f"{target} was chosen: the {best} {target.score}, in {unit}, that {num_reached} of "
        f"{counted(len(cells), 'cell')} reach in all their runs."
    )


def _is_learned(cells: pd.DataFrame, accuracy: float, share: float) -> bool:
    """Return True if the fraction `share` of the cells reaches an accuracy that random guessing
    would hardly reach on the test set of the cell.

    A cell whose chance level or number of test examples is not known counts too.
    """
    accuracies = np.full(len(cells), accuracy)
    is_beyond = beats_chance(accuracies, cells["chance"], cells["num_test"]).fillna(True)
    reached = is_beyond.to_numpy() & (cells["score"] >= accuracy - _ROUNDING).to_numpy()
    return bool(reached.sum() >= share * len(cells))


def _level(scores: pd.Series[float], share: float) -> float:
    """Return the highest score (accuracy or negative loss) that at least the fraction `share` of
    the cells reaches, rounded down to hundredths; -inf if no score is finite.

    These cells have three batch sizes, if there are as many.

    Args:
        scores: The scores of cells in descending order, indexed by the global batch and others.
        share: The share of the cells, 0 to 1.
    """
    batches = scores.index.get_level_values("global_batch")
    num_seen = np.cumsum(~batches.duplicated())  # the batch sizes of the cells down to each one
    is_enough = num_seen >= min(ENOUGH_BATCHES, batches.nunique())
    is_enough &= np.arange(1, 1 + len(scores)) >= share * len(scores)
    level = float(scores[is_enough].max())
    return math.floor(level / _STEP + _ROUNDING) * _STEP if math.isfinite(level) else -math.inf


def _scores(study: Study, metric: str) -> pd.DataFrame:
    """Return for each cell the best `score` (accuracy or negative loss) that all its runs reach, at
    whichever learning rates they ran, indexed by global batch and the settings that tell cells
    apart.

    More is better; -inf means that a run has no such score. `chance` and `num_test` are those
    of the cell's data.
    """
    runs = study.runs[study.runs["status"].isin(["completed", "diverged"])]
    best = runs["run_id"].map(best_scores(study, metric))
    filled = keyed(study.runs).loc[runs.index]
    keys = [name for name in cell_keys(study.runs) if name not in RATES]
    table = runs[["chance", "num_test"]].astype(float)
    table["score"] = (best if metric == "test_accuracy" else -best).fillna(-np.inf)
    groups = table.groupby([runs["global_batch"], *(filled[name] for name in keys)])
    return groups.agg({"score": "min", "chance": "max", "num_test": "min"})
