"""The one target, a test accuracy or loss, that the predictions, tables and figures of a study's
report have in common.

It is the target that the runs name, if they agree on one and some run reached it. Otherwise it is
the target of `supported`, over the cells of the study at their best learning rates.
If there is none, it is the target that the runs agree on, although no run reached it.
"""

from __future__ import annotations

import pandas as pd

from bsweep.analysis.cell_tables.supported import supported_target
from bsweep.analysis.cell_tables.tuning import tuned
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.analysis.study.numbers import number
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import SETTINGS, Target


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
    named = _named(study)
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
        else f"No run reached {named[0].said}. {best_seen(study, named[0])}."
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


def _named(study: Study) -> list[Target]:
    """Return the different targets in the settings of a study's runs."""
    return [
        Target(metric, float(value), evaluated_part(study.runs))
        for metric, name in SETTINGS.items()
        if name in study.runs
        for value in pd.to_numeric(study.runs[name]).dropna().unique()
    ]
