"""Functions for figures over the batch size or, if the study has one batch size, over the number of
workers.

If the study has one batch size and one worker count, such a figure shows a dot for each cell.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots import drawing
from bsweep.plots.curves import Curve, Panel, common
from bsweep.plots.rows import draw_dots, few_enough, panels_of_rows

PUBLISHED: dict[str, Any] = {"color": "#7A7A7A", "marker": "*", "linestyle": (0, (4, 2))}
CROSSES = "Crosses on the lower edge are runs that did not complete."


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


def along(cells: pd.DataFrame) -> str:
    """Return the name of the horizontal axis: `local_batch` if the cells differ in it, else
    `num_workers` if they differ in that, else an empty text.
    """
    varying = analysis.varying(cells)
    return next((name for name in ("local_batch", "num_workers") if name in varying), "")


def draw_panel(axes: Axes, panel: Panel, metric: str) -> None:
    for curve in panel.others:
        axes.plot(curve.cells[metric].dropna(), **drawing.BEHIND)
    for curve in panel.curves:
        drawing.draw_line(axes, curve.look, curve.cells, metric)


def dots(
    table: pd.DataFrame, metrics: Sequence[str], sorted_by: str = ""
) -> tuple[Figure, list[tuple[list[Axes], pd.DataFrame]], str]:
    """Draw a figure with a column of panels for each metric. Each panel has a row for each of its
    cells, with dots at the cell's mean or seeds.

    Returns:
        The figure, its panels with their cells, and a sentence if cells are left out.
    """
    shown, left_out = few_enough(table)
    figure, panels = panels_of_rows(shown, len(metrics), sorted_by=sorted_by)
    for row, rows in panels:
        for axes, metric in zip(row, metrics, strict=True):
            draw_dots(axes, rows, metric)
    return figure, panels, left_out


def one_quantity(cells: pd.DataFrame, metric: str, label: str, sentence: str) -> Figure:
    """Draw one metric as dots, in a row for each cell, sorted by the metric; at most 48 cells."""
    figure, panels, left_out = dots(cells, [metric], sorted_by=metric)
    for (axes,), _ in panels:
        drawing.fit_axis(axes, drawing.drawn_values(cells, metric), flat=True)
    axes.set_xlabel(label)
    drawing.legends(figure, ([], common(cells)))
    return drawing.captioned(figure, sentence, drawing.repeats(cells["n"], "row"), left_out)


def draw_failed(panels: Sequence[Axes], curves: Sequence[Curve]) -> list[Line2D]:
    """Draw a cross on the lower edge of each panel at each cell with a run that did not complete.

    Returns:
        The legend's entry for the crosses, or an empty list.
    """
    failed = [
        (curve, batch)
        for curve in curves
        for batch in curve.cells.index[curve.cells["other_statuses"] != ""]
    ]
    look: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
    for (curve, _), place in zip(failed, beside([batch for _, batch in failed]), strict=True):
        for axes in panels:
            frame: dict[str, Any] = {
                "transform": axes.get_xaxis_transform(),
                "clip_on": False,
                "zorder": 4,
            }
            axes.plot([place], [0.0], color=curve.look["color"], **frame, **look)
    said = [
        text
        for curve in curves
        for row in curve.cells["other_statuses"]
        for text in row.split(",")
        if text
    ]
    statuses = {text.lstrip("0123456789 ").replace("_", " ") for text in said}
    label = f"run not completed: {', '.join(sorted(statuses))}"
    return [Line2D([], [], color="#444444", label=label, **look)] if statuses else []


def beside(places: Sequence[float]) -> list[float]:
    """Return positions for a logarithmic axis in which equal values of `places` are moved apart, so
    that their marks do not overlap.
    """
    sharing, seen = Counter(places), Counter[float]()
    moved = []
    for place in places:
        moved.append(place * 1.1 ** (seen[place] - (sharing[place] - 1) / 2))
        seen[place] += 1
    return moved


@functools.cache  # Each panel asks for it.
def published_cells() -> pd.DataFrame:
    cells = analysis.cells(analysis.published().runs)
    return cells.reset_index(analysis.levels(cells)[:-1])
