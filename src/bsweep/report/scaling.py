"""The report's section on how a study's costs grow with the work.

Each cost has an exponent, its interval, and the expected exponent.
"""

from __future__ import annotations

import pandas as pd

from bsweep import analysis
from bsweep.analysis import Growth, Study
from bsweep.analysis.columns import heading
from bsweep.analysis.numbers import fixed
from bsweep.report.formats import Table

TITLE = "Cost as the work grows"
_CAPTION = (
    "A cost goes with the power of a quantity that the exponent says, by least squares of "
    "logarithms within the range of cells that differ in it alone: series of three or more, for "
    "any two lie on a power law. Each series has a factor of its own, and all have the exponent in "
    "common. ± is the half-width of its 95 % t-interval, which is as wide as they miss a power "
    "law. Expected over local batches: -1 where a step costs the same whatever its batch, 0 where "
    "an example does; over workers -1, where nothing is lost to the exchange."
)
_SENT = (
    "The ratio is that of a worker's bytes to a ring's, 2 (p - 1) / p n, of p workers and n bytes "
    "of gradient. There a series is a strategy, and a point the mean of its cells of as many ring "
    "bytes, whatever their batch."
)
_OVERHEAD = (
    "Other seconds are those of all runs together that are no training steps (starts, evaluations, "
    "...), by each run's seconds and its number in the order of starts, among runs of as many "
    "workers; where that order is one of batch sizes too, it tells of both. Beyond 1, each further "
    "run takes longer than the one before."
)
_EXPECTED = {"local_batch": "-1 to 0", "num_workers": "-1", "num_train": "1", "num_parameters": "1"}


def scaling(study: Study) -> Table:
    """Return a table of how a study's costs grow, with a row for each cost.

    If an exponent cannot be fitted, the row says why in words.
    """
    rows = [
        _row(
            "seconds of an epoch",
            heading(along),
            analysis.common_growth(study, along),
            _EXPECTED[along],
        )
        for along in analysis.GROWS_WITH
    ]
    sent = _row(
        "bytes a worker sends in a step",
        "2 (p - 1) / p n",
        analysis.sent_growth(study),
        "1",
        "points",
    )
    if ratio := _ring_ratio(study):
        sent.update(exponent=f"{sent['exponent']}; ratio {ratio}", expected="1; ratio 1")
    other = _row(
        "other seconds of all runs", "runs", analysis.overhead_growth(study), "up to 1", "runs"
    )
    caption = (
        _CAPTION,
        _SENT if ratio else "",
        _OVERHEAD if other["fitted to"] != "-" else "",
        _shared_cores(study),
    )
    return Table(" ".join(filter(None, caption)), pd.DataFrame([*rows, sent, other]))


def exponent_text(exponent: float, half_width: float) -> str:
    return fixed(round(exponent, 2) + 0.0, 2, half_width)  # Adding 0.0 avoids -0.00.


def _row(
    cost: str, against: str, growth: Growth, expected: str, what: str = "cells"
) -> dict[str, str]:
    found = exponent_text(growth.exponent, growth.exponent_ci95)
    return {
        "cost": cost,
        "against": against,
        "exponent": f"not fitted: {growth.why_not}" if growth.why_not else found,
        "fitted to": "-"
        if growth.why_not
        else f"{growth.num_points} {what} in {growth.num_series} series",
        "expected": expected,
    }


def _ring_ratio(study: Study) -> str:
    """Return the range over all cells of a worker's bytes over those of a ring, as text."""
    ratios = analysis.step_times(study)["sent_of_ring"]
    sent = ratios[ratios > 0]
    return (
        " to ".join(dict.fromkeys(f"{ratio:.3f}" for ratio in (sent.min(), sent.max())))
        if len(sent)
        else ""
    )


def _shared_cores(study: Study) -> str:
    is_uneven = analysis.unequal_threads(analysis.cells(study.runs))
    return (
        "Here more workers had fewer threads each: the exponent over workers is of both."
        if is_uneven
        else ""
    )
