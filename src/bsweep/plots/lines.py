"""Lines in panels, and dots in rows: what draws the cells of a table by batch size, by workers, by
epoch or by time.

A figure over sizes is one over the batch size or, if the study has one batch size, over the number
of workers. If it has one of both, the figure has a row with a dot for each cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots import drawing, scales
from bsweep.plots.curves import (
    BAND,
    BEHIND,
    INK,
    Curve,
    Panel,
    alike_words,
    common,
    curves,
    handle,
    in_panels,
    panel_handles,
)
from bsweep.plots.rows import few_enough, panels_of_rows
from bsweep.plots.scales import Side

BATCH_LABEL = "Local batch (examples per worker)"
SIZES = {"local_batch": "local batch", "num_workers": "number of workers"}
X_LABELS = {
    "local_batch": BATCH_LABEL,
    "num_workers": "Workers",
    "epoch": "Epoch",
    "elapsed_seconds": "Training time (s)",
}
PUBLISHED: dict[str, Any] = {"color": drawing.GRAY, "marker": "*", "linestyle": (0, (4, 2))}
_CROSS: dict[str, Any] = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8}
_CROSSES = "Crosses on the lower edge are runs that did not complete."
_INCOMPLETE = (
    "Dotted lines are runs that did not complete; a cross marks their last recorded epoch."
)
Draw = Callable[[Side, Curve, str], set[str]]


def measured_cells(study: Study) -> pd.DataFrame:
    """Return the table of a study's cells; return a table without rows if no cell has a completed
    run.
    """
    cells = analysis.cells(study.runs)
    return cells if (cells["n"] > 0).any() else cells[:0]


def timed_cells(study: Study) -> pd.DataFrame:
    """Return the table of a study's cells, without the cells whose completed runs have no training
    time.

    The table is empty if no cell has a time.
    """
    cells = measured_cells(study)
    timed = cells[(cells["n"] == 0) | cells["train_seconds"].notna()]
    return timed if timed["train_seconds"].notna().any() else timed[:0]


def size_of(cells: pd.DataFrame) -> str:
    """Return the size on the horizontal axis: `local_batch` if the cells differ in it, else
    `num_workers` if they differ in that, else an empty text.
    """
    varying = analysis.varying(cells)
    return next((name for name in SIZES if name in varying), "")


@dataclass
class Lines:
    """A drawn figure, and what its legend and its caption say.

    `grid` has a row of axes for each of the `panels`, with one for each metric and then the
    `further` ones, which the figure itself draws.
    """

    study: Study
    table: pd.DataFrame
    along: str
    figure: Figure
    grid: list[list[Axes]]
    panels: Sequence[Panel]
    metrics: Sequence[str]
    handles: list[Line2D]
    title: str
    guess: list[Line2D] = field(default_factory=list)
    incomplete: list[Line2D] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)

    @property
    def is_course(self) -> bool:
        return self.along not in ("", *SIZES)

    def side(self, axes: Axes) -> Side:
        """Return the axis of the values of a panel."""
        return Side(axes, flat=not self.along)

    def finish(self, *first: str, more: str = "", entries: Sequence[Line2D] = ()) -> Figure:
        """Add the legend and the caption.

        Args:
            first: The first sentences of the caption.
            more: A sentence that comes after those on seeds and marks.
            entries: Entries of the legend after those of the lines.
        """
        entries = [*self.handles, *self.guess, *entries, *self.incomplete]
        drawing.add_legend(self.figure, entries, self.title)
        incomplete = _INCOMPLETE if self.is_course else _CROSSES
        level = scales.chance(self.study)
        has_accuracy = any(metric.endswith("accuracy") for metric in self.metrics)
        is_beyond = has_accuracy and level is not None and not self.guess
        return drawing.captioned(
            self.figure,
            *first,
            alike_words([curve for panel in self.panels for curve in panel.curves]),
            _courses(self.table)
            if self.is_course
            else repeats(self.table["n"], "point" if self.along else "row"),
            *(words for words in (scales.CUT_WORDS, scales.BEYOND_WORDS) if words in self.marks),
            f"Chance, {level:.3g}, lies beyond the axis." if is_beyond else "",
            more,
            incomplete if self.incomplete else "",
            self.panels[0].left_out,
        )


def lines(
    study: Study,
    table: pd.DataFrame,
    along: str,
    labels: Mapping[str, str],
    color: str,
    *,
    height: float = 2.6,
    further: Sequence[tuple[str, str]] = (),
    is_apart: bool = False,
    is_alike: bool = False,
    published: pd.DataFrame | None = None,
    draw: Draw | None = None,
) -> Lines:
    """Draw metrics of cells as lines, in a panel for each metric.

    Cells that did not complete have a cross on the lower edge, or a dotted line in a course.

    Args:
        study: The study.
        table: The cells, with names as in `readable`.
        along: The index level on the horizontal axis; empty for dots in a row for each cell.
        labels: The label of the axis of each metric.
        color: The setting that colours tell apart, unless another one has more values.
        height: The inches of a panel.
        further: The labels of further panels beside those of the metrics.
        is_apart: True if each pattern of dashes has a panel.
        is_alike: True if variants with equal values share one line.
        published: Values of another study by batch size, which are drawn in grey.
        draw: The function that draws a line; None: `draw_course` by epoch or time, else
            `draw_cells`.
    """
    metrics = [*labels]
    if along:
        series = curves(study, table, along, color, alike_in=metrics if is_alike else ())
        panels = in_panels(study, series, metrics[-1], is_apart)
        figure, grid = drawing.grid(len(panels), len(labels) + len(further), height)
        names = [*((X_LABELS[along], label) for label in labels.values()), *further]
        drawing.name_panels([panel.title for panel in panels], grid, names)
    else:
        figure, grid, panels = _dots(table, labels)
    is_batch = bool(along) and panels[0].curves[0].colored_by == "local_batch"
    title = BATCH_LABEL if is_batch and not panels[0].others else common(table)
    entries = panel_handles(panels) if along else []
    drawn = Lines(study, table, along, figure, grid, panels, metrics, entries, title)
    draw = draw or (draw_course if drawn.is_course else draw_cells)
    for row, panel in zip(grid, panels, strict=True):
        for axes, metric in zip(row, metrics, strict=False):
            side = drawn.side(axes)
            drawn.guess = _fit(drawn, side, metric, published) or drawn.guess
            if published is not None and metric in published:
                axes.plot(published[metric], **PUBLISHED)
            for curve in panel.others:
                axes.plot(curve.cells[metric].dropna(), **BEHIND)
            for curve in panel.curves:
                drawn.marks |= draw(side, curve, metric)
            _fit_across(drawn, axes, () if published is None else published.index)
            drawn.incomplete = _mark_incomplete(drawn, side, panel) or drawn.incomplete
    return drawn


def _dots(
    table: pd.DataFrame, labels: Mapping[str, str]
) -> tuple[Figure, list[list[Axes]], list[Panel]]:
    """Return a figure with a column of panels for each metric, and what they show: all rows of a
    panel are one curve without a line.

    The rows of a figure of one metric ascend in it.
    """
    shown, left_out = few_enough(table)
    sorted_by = next(iter(labels)) if len(labels) == 1 else ""
    figure, rows = panels_of_rows(shown, len(labels), sorted_by=sorted_by)
    look = {"color": INK, "marker": "o", "linestyle": ""}
    panels = []
    for row, cells in rows:
        for axes in row:
            axes.grid(visible=True, axis="y")
        numbered = cells.reset_index(drop=True)
        panels.append(Panel("", [Curve(look, numbered)], (), left_out))
    for axes, label in zip(rows[-1][0], labels.values(), strict=True):
        axes.set_xlabel(label)
    return figure, [row for row, _ in rows], panels


def _fit(drawn: Lines, side: Side, metric: str, published: pd.DataFrame | None) -> list[Line2D]:
    """Fit an axis to all values of a metric. Accuracies share a scale, which a cell at chance does
    not change: it would flatten all others.
    """
    shown, is_accuracy = drawn.table, metric.endswith("accuracy")
    if is_accuracy and "has_learned" in shown:
        shown = shown[shown["has_learned"].fillna(True).astype(bool)]
    values, ends = list[float](), list[float]()
    for name in drawn.metrics if is_accuracy else [metric]:
        if name.endswith("accuracy") == is_accuracy:
            values += [*published[name]] if published is not None and name in published else []
            values += [*shown[name]] if drawn.is_course else scales.seed_values(shown, name)
            ends += [] if drawn.is_course else scales.interval_ends(shown, name)
    return scales.fit_values(side, drawn.study, metric, values, ends)


def _fit_across(drawn: Lines, axes: Axes, also: Iterable[int]) -> None:
    """Fit the horizontal axis of a panel of lines."""
    if not drawn.along:
        return
    places = drawn.table.index.get_level_values(drawn.along)
    if drawn.along in SIZES:
        scales.size_axis(axes, [*places, *also])
    elif drawn.along == "epoch":
        scales.epoch_axis(axes)
    else:
        shown = [curve for panel in drawn.panels for curve in panel.curves]
        ends = [curve.cells.index[-1] for curve in shown]
        scales.time_axis(axes, places, ends, few=len(drawn.panels) > 3)


def draw_cells(side: Side, curve: Curve, metric: str) -> set[str]:
    """Draw a line through the means of cells, and the interval with small circles, or the two
    seeds, of each cell.

    Returns:
        The sentences on marks on the edges.
    """
    known = curve.cells[curve.cells[metric].notna()]
    # A cell of two seeds has its points drawn in place of a mean.
    shown = [int(place) for place in np.flatnonzero(known["n"] != 2)]
    side.plot(known.index, known[metric], **curve.look, markevery=shown)
    color, half = curve.look["color"], known[f"{metric}_ci95"]
    if half.notna().any():
        bars: dict[str, Any] = {f"{side.letter}err": half, "fmt": "none", "elinewidth": 1.0}
        side.axes.errorbar(*side.turned(known.index, known[metric]), ecolor=color, **bars)
    behind_the_mean = 1.9
    circles: dict[str, Any] = {"marker": "o", "markersize": 3, "markerfacecolor": "white"}
    for these, look in (
        (known["n"] > 2, {**circles, "zorder": behind_the_mean}),
        (known["n"] == 2, {"marker": curve.look["marker"]}),
    ):
        points = known.loc[these, f"{metric}_points"].explode().dropna().astype(float)
        if len(points):
            side.plot(points.index, points, linestyle="", color=color, **look)
    return scales.mark_edges(side, known[metric], color, half)


def draw_course(side: Side, curve: Curve, metric: str) -> set[str]:
    """Draw one cell's loss or accuracy over time as a line, with a band for the interval over its
    seeds.

    The line is dotted and ends at a cross if no run completed.

    Returns:
        The sentences on marks on the edges.
    """
    cells = curve.cells[curve.cells[metric].notna()]
    if cells.empty:
        return set()
    means, half, color = cells[metric], cells[f"{metric}_ci95"], curve.look["color"]
    is_complete = bool(cells.get("completed", pd.Series(True)).all())
    look = {**curve.look, "linestyle": curve.look["linestyle"] if is_complete else ":"}
    side.plot(cells.index, means, **look, markevery=max(1, math.ceil(len(cells) / 8)))
    if half.notna().any():
        side.axes.fill_between(cells.index, means - half, means + half, color=color, **BAND)
    if not is_complete:
        side.plot(cells.index[-1:], means.iloc[-1:], color=color, **_CROSS)
    return scales.mark_edges(side, means, color)


def _mark_incomplete(drawn: Lines, side: Side, panel: Panel) -> list[Line2D]:
    """Draw a cross on the lower edge at each cell with a run that did not complete, and return the
    legend's entry for crosses.
    """
    if not drawn.table.get("completed", pd.Series(True)).all():
        return [handle({"color": "#444444", "marker": "x", "linestyle": ":"}, "incomplete run")]
    if not drawn.along or "other_statuses" not in drawn.table:
        return []
    texts = ",".join(drawn.table["other_statuses"]).split(",")
    statuses = sorted({text.lstrip("0123456789 ").replace("_", " ") for text in texts if text})
    label = f"run not completed: {', '.join(statuses)}"
    return mark_cells(side, panel, 0, lambda cells: cells["other_statuses"] != "", label, **_CROSS)


def mark_cells(
    side: Side,
    panel: Panel,
    edge: float,
    is_marked: Callable[[pd.DataFrame], pd.Series[bool]],
    label: str,
    **look: Any,
) -> list[Line2D]:
    """Draw a mark on an edge of a panel at some of its cells, and return the legend's entry for
    these marks.
    """
    marked = [
        (curve, place)
        for curve in panel.curves
        for place in curve.cells.index[is_marked(curve.cells)]
    ]
    for (curve, _), place in zip(marked, _beside([place for _, place in marked]), strict=True):
        side.mark([place], edge, color=curve.look["color"], **look)
    return [handle({"color": "#444444", "linestyle": "", **look}, label)] if marked else []


def _beside(places: Sequence[float]) -> list[float]:
    """Return positions for a logarithmic axis in which equal values of `places` are moved apart, so
    that their marks do not overlap.
    """
    sharing, seen = Counter(places), Counter[float]()
    moved = []
    for place in places:
        moved.append(place * 1.1 ** (seen[place] - (sharing[place] - 1) / 2))
        seen[place] += 1
    return moved


def repeats(n: pd.Series[int], drawn_as: str) -> str:
    """Return sentences for a caption that say how many seeds each point has, and how the scatter of
    the seeds is drawn.
    """
    counts = sorted({int(count) for count in n if count})
    if not counts:
        return "No run has completed."
    sentences = [f"n = {drawing.span(counts)} per {drawn_as}."]
    if counts[-1] >= analysis.MIN_SEEDS_FOR_INTERVAL:
        bars = f"Bars are {analysis.SEEDS_LEVEL} t-intervals over seeds."
        sentences.append(f"Small circles are single seeds. {bars}")
    if 2 in counts:
        sentences.append("If a cell has two seeds, both are drawn without an interval.")
    return " ".join(sentences)


def _courses(table: pd.DataFrame) -> str:
    counts = table["n"][table.get("completed", pd.Series(True, index=table.index))]
    if counts.empty:
        return ""
    if counts.max() == 1:
        return "Each line is one run: n = 1."
    words = f"Lines are means over n = {drawing.span(counts)} seeds."
    if counts.max() < analysis.MIN_SEEDS_FOR_INTERVAL:
        return words
    bands = f"Bands are {analysis.SEEDS_LEVEL} t-intervals over seeds"
    return f"{words} {bands}, cut where they are wider than the panel."
