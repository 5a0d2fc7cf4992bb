"""Exponents of the power laws by which a study's costs, in seconds and bytes, grow with quantities
such as the batch size.

The seconds of an epoch are fitted over batch size, workers, examples and parameters; the sent bytes
over those of a ring all-reduce; the overhead of a sweep over its runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from bsweep.analysis.derived import of_rounds
from bsweep.analysis.keys import levels
from bsweep.analysis.loaded import Study
from bsweep.analysis.once import once
from bsweep.analysis.tables import cell_means, ring_bytes, step_times, step_unit

GROWS_WITH = ("local_batch", "num_workers", "num_train", "num_parameters")
_ARCHITECTURE = ("model.target", "model.architecture")
_MIN_POINTS = 3  # two points lie on every power law


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The exponent of the power law by which a cost, such as an epoch's seconds, grows with a
    quantity, such as the batch size.

    All series of points share it. Each function of this module says what a series is.
    """

    exponent: float = np.nan  # NaN where it cannot be fitted
    exponent_ci95: float = np.nan  # half its 95 % t-interval
    num_points: int = 0
    num_series: int = 0  # each with a factor of its own
    why_not: str = ""  # in words, where it cannot be fitted


def fit_power(x: ArrayLike, y: ArrayLike, series: ArrayLike | None = None) -> tuple[float, float]:
    """Return the exponent k of y ~ x^k, fitted by least squares of logarithms, and half the width
    of its 95 % t-interval.

    If the points belong to several series, each series has a factor of its own and all share the
    exponent (the within-group estimator). The fit takes at least two points more than there are
    series.

    Args:
        x: Positive values, shape (n,).
        y: Positive values, shape (n,).
        series: The series of each point, shape (n,); None: one series.

    Returns:
        The exponent and half the width of its 95 % t-interval.
    """
    logarithms = pd.DataFrame(
        {"x": np.log(np.asarray(x, float)), "y": np.log(np.asarray(y, float))}
    )
    labels = np.zeros(len(logarithms)) if series is None else np.asarray(series)
    centred = logarithms - logarithms.groupby(labels).transform("mean")
    places, values = centred["x"].to_numpy(), centred["y"].to_numpy()
    square = np.sum(places**2)
    exponent = np.sum(places * values) / square
    freedom = len(places) - len(np.unique(labels)) - 1
    error = np.sqrt(np.sum((values - exponent * places) ** 2) / freedom / square)
    return float(exponent), float(stdtrit(freedom, 0.975) * error)


@once
def epoch_growth(study: Study, along: str) -> pd.DataFrame:
    """Return the exponents of the power laws by which an epoch's seconds grow with one quantity,
    such as the local batch.

    The table has one row for each series of cells that differ in this quantity only and have at
    least three values of it. Cells along `num_parameters` may differ in the sizes of one model, but
    not in its architecture. Runs that may end with a round are left out, because their last epoch
    may be a fragment.

    Columns: `exponent`, fitted to the means of cells with equal weight; `exponent_ci95`, half its
    95 % t-interval, which is the wider the more the means deviate from a power law; `num_points`.

    Args:
        study: The study.
        along: The column to fit over, one of `GROWS_WITH`.

    Returns:
        The table, indexed by the settings of a series. It is empty if no series has enough cells.
    """
    points, others = _epochs(study, along)
    rows = [
        (*key, *fit_power(series[along], series["train_seconds"]), len(series))
        for key, series in (points.groupby(level=others) if len(points) else ())
    ]
    return pd.DataFrame(
        rows, columns=[*others, "exponent", "exponent_ci95", "num_points"]
    ).set_index(others)


def common_growth(study: Study, along: str) -> Growth:
    """Return the exponent of the power law by which an epoch's seconds grow with a quantity, such
    as the local batch. One exponent is fitted to all series of `epoch_growth` together.

    Args:
        study: The study.
        along: The column to fit over, one of `GROWS_WITH`.

    Returns:
        The exponent with its interval, or the reason why there is none.
    """
    points, others = _epochs(study, along)
    if len(points):
        series = points.groupby(level=others).ngroup()
        return _fitted(points[along], points["train_seconds"], series)
    runs = study.runs[(study.runs["status"] == "completed") & ~of_rounds(study.runs)]
    count = runs[along].nunique() if along in runs else 0
    if count < _MIN_POINTS:
        return Growth(why_not=_too_few(count))
    if along == "num_parameters" and runs["model"].nunique() > 1:
        return Growth(why_not=f"{count} values, but no three sizes of one architecture")
    return Growth(why_not=f"{count} values, but no three cells differ in this value alone")


def _epochs(study: Study, along: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the mean seconds of an epoch for those cells to which a power law of one quantity can
    be fitted. These are cells for which three or more values of the quantity were measured with the
    other settings equal.

    The names of the other settings are returned too. The cells are indexed by these names.
    """
    runs = (
        study.runs[~of_rounds(study.runs)]
        .set_index("run_id")
        .reindex(columns=["num_parameters"])
        .astype(float)
    )
    seconds = study.epochs.groupby("run_id")["train_seconds"].mean()
    cells = cell_means(study, runs.join(seconds)).dropna(subset="train_seconds")
    others = [name for name in levels(cells) if not _differs(name, along)]
    cells = cells.reset_index([name for name in levels(cells) if name not in others])
    if along not in cells:
        return cells[:0], others
    points = cells.dropna(subset=along)
    places = points.groupby(level=others)[along].transform("nunique")
    return points[places >= _MIN_POINTS], others


def sent_growth(study: Study) -> Growth:
    """Return the exponent of the power law by which the bytes that a worker sends in a step grow
    with the bytes of a ring all-reduce in the same cell.

    With p workers and n bytes of gradient, a worker sends 2 (p - 1) / p n bytes in a ring.

    Each variant with three or more points is a series. A point is the mean of the variant's cells
    with equal ring bytes: cells that differ in the batch size only send the same bytes again and
    are no further evidence.

    Args:
        study: The study.

    Returns:
        The exponent with its interval, or the reason why there is none.
    """
    steps = step_times(study)
    ring = cell_means(study, ring_bytes(study.runs).rename("ring_bytes").to_frame())["ring_bytes"]
    steps = steps.assign(
        ring_bytes=ring.reindex(steps.index)
    )  # the ring may have no value for a cell
    points = steps[steps["sent_bytes"] > 0].dropna(subset="ring_bytes")
    if step_unit(study) != "step" or points.empty:
        nothing = "no sent bytes to compare with a ring"
        return Growth(why_not=nothing if points.empty else "workers take unequal steps")
    # Means over different numbers of seeds differ in their last bits.
    rounded = points["ring_bytes"].round()
    points = (
        points.assign(ring_bytes=rounded).groupby(["variant", "ring_bytes"])[["sent_bytes"]].mean()
    )
    points = points.reset_index("ring_bytes")
    series = points.groupby(level="variant")
    enough = series["ring_bytes"].transform("size") >= _MIN_POINTS
    if not enough.any():
        return Growth(why_not=_too_few(int(series.size().max())))
    return _fitted(
        points["ring_bytes"][enough], points["sent_bytes"][enough], series.ngroup()[enough]
    )


def overhead_growth(study: Study) -> Growth:
    """Return the exponent of the power law by which the total seconds outside training steps grow
    with a study's number of completed runs.

    The fit uses the overhead of each run over the run's number in the order of starts. If that
    overhead grows with the power k, its sum grows with the power k + 1. Three or more runs with
    equally many workers are a series, because more workers take longer to start and a sweep trains
    points with equally many workers one after another.

    Args:
        study: The study.

    Returns:
        The exponent k + 1 with its interval, or the reason why there is none.
    """
    launched = study.provenance.reindex(columns=["run_id", "launched_at"]).set_index("run_id")[
        "launched_at"
    ]
    runs = study.runs.assign(launched_at=pd.to_numeric(study.runs["run_id"].map(launched)))
    runs["seconds"] = runs["wall_seconds"] - runs["train_seconds"]
    runs = runs[(runs["status"] == "completed") & (runs["seconds"] > 0)]
    number = runs["launched_at"].astype(float).rank()
    if runs["launched_at"].isna().any() or number.duplicated().any():
        return Growth(why_not="the order of the runs is not known")
    enough = runs.groupby("num_workers")["run_id"].transform("size") >= _MIN_POINTS
    if not enough.any():
        return Growth(why_not=f"{len(runs)} runs, but fewer than three for each number of workers")
    runs, number = runs[enough], number[enough]
    found = _fitted(number, runs["seconds"].astype(float), runs["num_workers"])
    return replace(found, exponent=found.exponent + 1)


def _fitted(x: pd.Series[float], y: pd.Series[float], series: pd.Series[int]) -> Growth:
    exponent, half = fit_power(x, y, series)
    return Growth(
        exponent=exponent, exponent_ci95=half, num_points=len(x), num_series=series.nunique()
    )


def _too_few(count: int) -> str:
    return {0: "not on record", 1: "one value"}.get(count, "two values")


def _differs(name: str, along: str) -> bool:
    """Return True if the cells of a series over `along` may differ in the setting `name`.

    Over parameters they may differ in the sizes of one model, but not in its architecture.
    """
    is_of_model = name == "stem" or (name.startswith("model.") and name not in _ARCHITECTURE)
    return name == along or (along == "num_parameters" and is_of_model)
