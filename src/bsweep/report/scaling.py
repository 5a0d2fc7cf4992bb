"""The report's table of how costs, such as an epoch's seconds, grow with the batch size and other
quantities.

Each row has a cost, the expected exponent, and the fitted exponent with its interval or the reason
why there is none.
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
    "A cost grows with a power of a quantity, and the exponent is that power. It is fitted by "
    "least squares of logarithms to series of three or more cells that differ only in this "
    "quantity, because any two cells lie on a power law. Each series has its own factor, and all "
    "share the exponent. ± is the half-width of the exponent's 95 % t-interval, which is wider if "
    "the cells deviate from a power law. Expected over local batches: -1 if the cost of a step "
    "does not depend on its batch, 0 if the cost of an example does not; expected over workers: -1 "
    "if the exchange costs nothing."
)
_SENT = (
    "The ratio divides a worker's bytes by a ring's, 2 (p - 1) / p n, for p workers and n bytes of "
    "gradient. In this fit a series is a variant, such as a strategy, and a value is the mean of "
    "its cells with equal ring bytes and any batch."
)
_OVERHEAD = (
    "Other seconds are the seconds of completed runs outside training steps (starts, evaluations, "
    "...). The exponent of their sum is fitted to each run's seconds and its number in the order "
    "of starts, among runs with equal worker counts. If the runs started in the order of their "
    "batch sizes, the exponent shows both effects. If it is more than 1, later runs tend to take "
    "longer."
)
_EXPECTED = {"local_batch": "-1 to 0", "num_workers": "-1", "num_train": "1", "num_parameters": "1"}


def scaling(study: Study) -> Table:
    """Return a table of the exponents with which a study's costs grow, with a row for each cost and
    the quantity that it grows with.

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
        "other seconds of completed runs",
        "runs",
        analysis.overhead_growth(study),
        "up to 1",
        "runs",
    )
    caption = (
        _CAPTION,
        _SENT if ratio else "",
        _OVERHEAD if other["fitted to"] != "-" else "",
        _shared_cores(study),
    )
    return Table(" ".join(filter(None, caption)), pd.DataFrame([*rows, sent, other]), "costs", 2)


def exponent_text(exponent: float, half_width: float) -> str:
    return fixed(round(exponent, 2) + 0.0, 2, half_width)  # Adding 0.0 avoids -0.00.


def _row(
    cost: str, against: str, growth: Growth, expected: str, cells_or_points: str = "cells"
) -> dict[str, str]:
    found = exponent_text(growth.exponent, growth.exponent_ci95)
    return {
        "cost": cost,
        "against": against,
        "exponent": f"not fitted: {growth.why_not}" if growth.why_not else found,
        "fitted to": "-"
        if growth.why_not
        else f"{growth.num_points} {cells_or_points} in {growth.num_series} series",
        "expected": expected,
    }


def _ring_ratio(study: Study) -> str:
    """Return a text with the smallest and the largest ratio of the bytes that workers sent in a
    cell to the bytes of a ring all-reduce.

    The text is empty if there are no such cells.
    """
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
        "Runs with other worker counts had other numbers of threads for each worker, so the "
        "exponent over workers shows both effects."
        if is_uneven
        else ""
    )
