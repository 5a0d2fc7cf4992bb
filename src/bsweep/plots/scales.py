"""The axes of a panel: their limits and ticks, the marks on their edges, and the line of guessing.

All figures fit an axis to its quantity here: losses are logarithmic, accuracies share one range
with the accuracy of guessing, and other quantities begin at zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots.curves import handle
from bsweep.plots.drawing import GRAY, inches

CUT_WORDS = "Triangles on an edge are values beyond it."
BEYOND_WORDS = "Arrows on an edge are intervals that go beyond it."
_CUT = 1000  # A panel leaves out losses this many times above or below its median.
_FAR = 3  # An axis of losses holds intervals that go this many times beyond them.
_DIGIT = 0.071  # inches of a digit in a tick label
_WIDE = 8  # A time axis is logarithmic if the longest line takes this many times the shortest.
_EQUAL_CHANCE = 0.005  # which parts of one data set may differ by


class Side:
    """The axis of a panel that has the values. It is the vertical one beside lines, and the
    horizontal one (`flat`) of a panel with a row for each cell.
    """

    def __init__(self, axes: Axes, flat: bool = False) -> None:
        self.axes, self.flat = axes, flat
        self.letter = "x" if flat else "y"
        self.axis: Axis = axes.xaxis if flat else axes.yaxis
        self.frame = axes.get_yaxis_transform() if flat else axes.get_xaxis_transform()

    @property
    def limits(self) -> tuple[float, float]:
        return self.axes.get_xlim() if self.flat else self.axes.get_ylim()

    def fit(self, low: float, high: float, scale: str = "linear") -> None:
        self.axes.set(**{f"{self.letter}scale": scale, f"{self.letter}lim": (low, high)})

    def turned(self, places: Any, values: Any) -> tuple[Any, Any]:
        return (values, places) if self.flat else (places, values)

    def plot(self, places: Any, values: Any, **look: Any) -> None:
        self.axes.plot(*self.turned(places, values), **look)

    def mark(self, places: Sequence[float], edge: float, **look: Any) -> None:
        """Draw marks on an edge of the panel: the lower or left one (0), or the other one (1)."""
        if len(places):  # A line without points would still take room.
            look |= {"linestyle": "", "clip_on": False, "zorder": 5, "transform": self.frame}
            self.plot(places, [edge] * len(places), **look)


def extent(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def seed_values(cells: pd.DataFrame, metric: str) -> list[float]:
    """Return the values of all seeds of a metric."""
    return [*cells[f"{metric}_points"].explode().dropna().astype(float)]


def interval_ends(cells: pd.DataFrame, metric: str) -> list[float]:
    """Return both ends of the interval of each cell that has one."""
    means, half = (cells[name].to_numpy(float) for name in (metric, f"{metric}_ci95"))
    ends = np.concatenate([means - half, means + half])
    return [float(end) for end in ends[np.isfinite(ends)]]


def fit_values(
    side: Side, study: Study, metric: str, values: Sequence[float], ends: Sequence[float] = ()
) -> list[Line2D]:
    """Fit the axis of the values to a metric, and draw the line of guessing beside accuracies.

    Args:
        side: The axis.
        study: The study, which knows the accuracy of guessing.
        metric: The metric, whose name says what it is: a loss, an accuracy, or another quantity.
        values: All values that the axis shows.
        ends: The ends of their intervals.

    Returns:
        The legend's entry for the line of guessing, if it is drawn.
    """
    if metric.endswith("loss"):
        _fit_losses(side, values, ends)
    elif metric.endswith("accuracy"):
        side.fit(*_accuracy_limits(study, [*values, *ends]))
        return _chance_line(side, study)
    else:
        _fit_amounts(side, [*values, *ends])
    return []


def _fit_amounts(side: Side, values: Iterable[float]) -> None:
    """Begin an axis at zero if no value is negative, unless the smallest value is more than half of
    the largest.
    """
    low, high = extent(values)
    margin = 0.08 * (high - low)
    begin = low - margin if low > high / 2 and high > low else min(0.0, 1.08 * low)
    side.fit(begin, high + max(margin, 0.02 * abs(high), 1e-9))


def _fit_losses(side: Side, values: Iterable[float], ends: Sequence[float]) -> None:
    """Make an axis logarithmic and fit it to the losses, except those far above or below the
    median.

    Exploded losses would flatten all others. The axis also holds the ends of intervals, unless they
    are far beyond the losses; see `mark_edges`.
    """
    known = np.asarray([value for value in values if 0 < value < math.inf])
    middle = float(np.median(known)) if len(known) else 1.0
    near_losses = known[(known <= _CUT * middle) & (known >= middle / _CUT)]
    low, high = extent(near_losses) if len(near_losses) else (middle, middle)
    low, high = extent([low, high, *(end for end in ends if low / _FAR <= end <= high * _FAR)])
    margin = (high / low) ** 0.06 * 1.01
    side.fit(low / margin, high * margin, "log")
    plain_log_ticks(side.axis, low, high, few=side.flat)


def _accuracy_limits(study: Study, values: Iterable[float]) -> tuple[float, float]:
    low, high = extent(values)
    level = chance(study)
    if level is not None and low - level <= 2 * (high - low):
        low = min(low, level)
    margin = max(0.02, 0.08 * (high - low))
    return low - margin, high + margin


def _chance_line(side: Side, study: Study) -> list[Line2D]:
    level = chance(study)
    if level is None or level < side.limits[0]:
        return []
    look: dict[str, Any] = {"color": GRAY, "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
    (side.axes.axvline if side.flat else side.axes.axhline)(level, zorder=1, **look)
    return [handle(look, f"chance: {level:.3g}")]


def chance(study: Study) -> float | None:
    """Return the accuracy of guessing, or None if the runs differ in it or that of a run with
    evaluations is not known.
    """
    known = study.runs["chance"].notna()
    is_evaluated = study.runs["run_id"].isin(study.evaluations["run_id"])
    levels = study.runs.loc[known | is_evaluated, "chance"]
    if levels.empty or levels.isna().any() or levels.max() - levels.min() > _EQUAL_CHANCE:
        return None
    return float(levels.max())


def has_learned(study: Study) -> bool:
    """Return True if some cell is more accurate than random guessing, if this is unknown for some
    cell, or if no cell has a completed run.
    """
    cells = analysis.cells(study.runs)
    known = cells.loc[cells["n"] > 0, "has_learned"]
    return known.empty or bool(known.fillna(True).any())


def mark_edges(
    side: Side, values: pd.Series[float], color: str, half: pd.Series[float] | None = None
) -> set[str]:
    """Draw a triangle on the edge of a panel for each value that lies outside, and an arrow for
    each interval that goes beyond the edge, as one of losses does that contains zero.

    Args:
        side: The axis of the values, with its limits.
        values: The values; the index has their places.
        color: The colour of the marks.
        half: Half the width of each interval; None if no arrows are drawn.

    Returns:
        The sentences that say what the marks are.
    """
    low, high = side.limits
    half = values * np.nan if half is None else half
    triangles, arrows = ("v^", (CARETDOWN, CARETUP))
    if side.flat:
        triangles, arrows = ("<>", (CARETLEFT, CARETRIGHT))
    sentences = set()
    for edge, is_cut, is_beyond in (
        (0, values < low, values - half < low),
        (1, values > high, values + half > high),
    ):
        for sentence, is_marked, marker in (
            (CUT_WORDS, is_cut, triangles[edge]),
            (BEYOND_WORDS, is_beyond, arrows[edge]),
        ):
            if is_marked.any():
                side.mark([*values.index[is_marked]], edge, marker=marker, color=color)
                sentences.add(sentence)
    return sentences


def size_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """Make the horizontal axis logarithmic, with a tick at each batch size or worker count.

    Ticks for which there is room have a number, the others have none.
    """
    ticks = sorted(set(sizes))
    limits = (ticks[0] / 1.3, ticks[-1] * 1.3)
    axes.set_xscale("log", base=2)
    axes.set_xlim(limits)
    named = _with_room(ticks, inches(axes)[0] / math.log2(limits[1] / limits[0]))
    axes.set_xticks(named, [str(size) for size in named])
    axes.set_xticks([size for size in ticks if size not in named], minor=True)
    axes.xaxis.set_minor_formatter(NullFormatter())


def _with_room(sizes: Sequence[int], doubling_inches: float) -> list[int]:
    """Return the batch sizes or worker counts whose tick labels fit below an axis: all, every
    second, every third, and so on.

    If this leaves out many of unevenly spaced sizes, the result is each size whose label fits
    beside the label before it.
    """

    def fits(size: int, other: int) -> bool:
        num_letters = (len(str(size)) + len(str(other))) / 2 + 1
        return math.log2(other / size) * doubling_inches >= num_letters * _DIGIT

    fitting = [sizes[0]]
    for size in sizes[1:]:
        if fits(fitting[-1], size):
            fitting.append(size)
    evenly = next(
        every
        for every in (sizes[::step] for step in range(1, len(sizes) + 1))
        if all(map(fits, every, every[1:]))
    )
    return list(evenly) if 2 * len(evenly) > len(fitting) else fitting


def doublings_axis(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers at powers of two."""
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def epoch_axis(axes: Axes) -> None:
    ticks: dict[str, Any] = {"min_n_ticks": 1, "steps": [1, 2, 5, 10], "nbins": 6}
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, **ticks))


def time_axis(axes: Axes, seconds: Iterable[float], ends: Sequence[float], few: bool) -> None:
    """Fit the horizontal axis to times of which each line has its last one in `ends`."""
    low, high = extent(seconds)
    if max(ends) > _WIDE * min(ends):
        axes.set(xscale="log", xlim=(low / 1.15, high * 1.15))
        plain_log_ticks(axes.xaxis, low, high, few)
    else:
        axes.set_xlim(0, 1.04 * high)


def plain_log_ticks(axis: Axis, low: float, high: float, few: bool = False) -> None:
    """Label a logarithmic axis with plain numbers, even if it spans less than a power of ten."""
    ratio = high / low if low > 0 else math.inf  # a damaged record may say 0 seconds
    most, is_wide = 3 if few else 6, ratio > 6
    every = (1.0,) if ratio > 100 else (1.0, 3.0) if few else (1.0, 2.0, 5.0)
    axis.set_major_locator(
        LogLocator(subs=every, numticks=most + 1)
        if is_wide
        else MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
    )
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    )
    axis.set_minor_locator(NullLocator())
