"""The choice of a target that at least half of a study's cells reach.

The target is chosen for runs that name no target, or several, or one that none of them reaches. It
is the highest test accuracy, in whole percents, that three quarters of the cells reach in all their
runs. These cells have at least three batch sizes, if the study has as many. The target is thus as
late in training as most cells can show, with few runs that are known by a bound only. If three
quarters reach no accuracy that is above chance, each by the chance level of its own data, half
of the cells are enough. If no accuracy was measured, the target is the lowest test loss, in
hundredths. A run reaches what the median of three evaluations reaches, so one evaluation reaches
nothing.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from bsweep.analysis.keys import RATES, cell_keys, keyed
from bsweep.analysis.loaded import Study
from bsweep.analysis.naming import evaluated_part
from bsweep.analysis.prediction.fitting import ENOUGH_BATCHES
from bsweep.analysis.statistics import beats_chance
from bsweep.analysis.targets import to_target
from bsweep.config.target import Target
from bsweep.core.words import counted

_STEP = 0.01
_SHARES = (0.75, 0.5)  # of the cells; the second if the first are not above chance


def supported_target(study: Study) -> tuple[Target, str] | None:
    """Return a target (a test accuracy or loss) that at least half of the cells reach, and a
    sentence that says so; None if there is none.

    The rule is that of this module's docstring.
    """
    metric = "test_accuracy" if study.evaluations["test_accuracy"].notna().any() else "test_loss"
    table = _scores(study, Target(metric, 1.0)).sort_values("score", ascending=False)
    cells = table["score"]
    levels = {share: _level(cells, share) for share in _SHARES}
    score = next(
        (
            level
            for share, level in levels.items()
            if metric == "test_loss" or _is_learned(table, level, share)
        ),
        -math.inf,
    )
    if not math.isfinite(score):
        return None
    target = Target(metric, round(abs(score), 2), evaluated_part(study.runs))
    num_reached = int((cells >= score - 1e-9).sum())
    best, unit = (
        ("highest", "whole percents") if metric == "test_accuracy" else ("lowest", "hundredths")
    )
    return target, (
        f"{target.said} was chosen: the {best} {target.score}, in {unit}, that {num_reached} of "
        f"{counted(len(cells), 'cell')} reach in all their runs."
    )


def _is_learned(cells: pd.DataFrame, accuracy: float, share: float) -> bool:
    """Return True if the fraction `share` of the cells reaches an accuracy that random guessing
    would hardly reach on the test set of the cell.

    A cell whose chance level or number of test examples is not known counts too.
    """
    if not math.isfinite(accuracy):
        return False
    is_beyond = beats_chance(
        np.full(len(cells), accuracy), cells["chance"], cells["num_test"]
    ).fillna(True)
    reached = is_beyond.to_numpy() & (cells["score"] >= accuracy - 1e-9).to_numpy()
    return bool(reached.sum() >= share * len(cells))


def _level(cells: pd.Series[float], share: float) -> float:
    """Return the highest score (accuracy or negative loss) that at least the fraction `share` of
    the cells reaches, rounded down to hundredths; -inf if no score is finite.

    These cells have three batch sizes, if there are as many.

    Args:
        cells: Scores in descending order.
        share: The share of the cells, 0 to 1.
    """
    batches = cells.index.get_level_values("global_batch")
    enough = min(ENOUGH_BATCHES, batches.nunique())
    places = range(max(1, math.ceil(share * len(cells))) - 1, len(cells))
    place = next((place for place in places if batches[: place + 1].nunique() >= enough), None)
    if place is None or not math.isfinite(cells.iloc[place]):
        return -math.inf
    return math.floor(float(cells.iloc[place]) / _STEP + 1e-9) * _STEP


def _scores(study: Study, any_target: Target) -> pd.DataFrame:
    """Return for each cell the best `score` (accuracy or negative loss) that all its runs reach, at
    whichever learning rates they ran, indexed by global batch and the settings that tell cells
    apart.

    More is better; -inf means that a run has no such score. `chance` and `num_test` are those
    of the cell's data.
    """
    runs = study.runs[study.runs["status"].isin(["completed", "diverged"])]
    best = to_target(study, any_target)["best"].astype(float)
    scores = (any_target.sign * runs["run_id"].map(best)).fillna(-np.inf)
    known = keyed(study.runs).loc[runs.index]
    keys = [name for name in cell_keys(study.runs) if name not in RATES]
    table = runs[["chance", "num_test"]].astype(float).assign(score=scores)
    of = table.groupby([runs["global_batch"], *(known[name] for name in keys)])
    return of.agg({"score": "min", "chance": "max", "num_test": "min"})
