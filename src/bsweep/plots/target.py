"""The figure of the training time to the target of a study, by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.statistics import summarise
from bsweep.plots import drawing
from bsweep.plots.along import along, beside, draw_panel
from bsweep.plots.curves import Curve, common, curves, in_panels, panel_handles
from bsweep.plots.rows import draw_dots, few_enough, numbered, panels_of_rows


def times_to_target(study: Study) -> pd.DataFrame:
    """Return for each cell the mean seconds to the target, and how many seeds reached and missed
    the target.

    `seconds` is over the `n` seeds that reach the target. `missed` counts those that do not. The
    table has no rows if no run reaches the target.
    """
    table = analysis.time_to_target(study)
    if not table["reached"].any():
        return table[:0]
    keys = [name for name in analysis.levels(table) if name != "seed"]
    runs = table.reset_index()
    reached = table["reached"].groupby(level=keys)
    num_reached = reached.sum()
    return summarise(runs, keys, ["seconds"]).assign(
        n=num_reached, missed=reached.size() - num_reached, target=table["target"].iloc[0]
    )


def time_to_target(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training time to the target by batch size, or by workers if the study has one batch
    size.

    Seeds that do not reach the target are marked on the edge.
    """
    common = analysis.common_target(study)
    assert common is not None  # otherwise the table has no rows
    label = f"Training time to {common[0]} (s)"
    name = along(analysis.cells(study.runs))
    figure, missed, left_out = (
        _as_lines(study, table, name, label) if name else _as_dots(table, label)
    )
    return drawing.captioned(
        figure,
        f"Seconds of training until {common[0]}, by the median of three evaluations.",
        common[1],
        drawing.repeats(table["n"]),
        "Open triangles on the edge are seeds that did not reach the target." if missed else "",
        left_out,
    )


def _as_lines(
    study: Study, table: pd.DataFrame, along: str, label: str
) -> tuple[Figure, list[Line2D], str]:
    missed: list[Line2D] = []
    panels = in_panels(study, curves(study, table, along, "num_workers"), "seconds")
    figure, grid = drawing.grid(len(panels), 1, 2.6)
    for (axes,), panel in zip(grid, panels, strict=True):
        draw_panel(axes, panel, "seconds")
        missed = _mark_missed(axes, panel.curves) or missed
        drawing.log_axis(axes, table, along)
        drawing.fit_axis(axes, drawing.drawn_values(table, "seconds"))
    drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[along][0], [label])
    drawing.legends(figure, ([*panel_handles(panels), *missed], common(table)))
    return figure, missed, panels[0].left_out


def _as_dots(table: pd.DataFrame, label: str) -> tuple[Figure, list[Line2D], str]:
    missed: list[Line2D] = []
    shown, left_out = few_enough(table)
    figure, panels = panels_of_rows(shown, 1, sorted_by="seconds")
    for (axes,), rows in panels:
        draw_dots(axes, rows, "seconds")
        drawing.fit_axis(axes, drawing.drawn_values(table, "seconds"), flat=True)
        places = numbered(rows).index[rows["missed"] > 0]
        missed = (
            _draw_missed(axes, [1.0] * len(places), list(places), drawing.GRAY, flat=True) or missed
        )
    axes.set_xlabel(label)
    drawing.legends(figure, (missed, common(table)))
    return figure, missed, left_out


def _mark_missed(axes: Axes, curves: Sequence[Curve]) -> list[Line2D]:
    """Draw an open triangle on the upper edge for each cell with a run that missed the target.

    Returns:
        The legend's entry for the triangles, or an empty list.
    """
    missed = [
        (curve, place) for curve in curves for place in curve.cells.index[curve.cells["missed"] > 0]
    ]
    entry: list[Line2D] = []
    for (curve, _), place in zip(missed, beside([place for _, place in missed]), strict=True):
        entry = _draw_missed(axes, [place], [1.0], curve.look["color"])
    return entry


def _draw_missed(
    axes: Axes, x: list[float], y: list[float], color: str, flat: bool = False
) -> list[Line2D]:
    if not x:
        return []  # A line without points would still take room.
    marker: dict[str, Any] = {
        "marker": ">" if flat else "^",
        "markersize": 7,
        "markerfacecolor": "white",
    }
    frame = axes.get_yaxis_transform() if flat else axes.get_xaxis_transform()
    axes.plot(x, y, linestyle="", color=color, transform=frame, clip_on=False, zorder=5, **marker)
    return [Line2D([], [], linestyle="", color="#444444", label="not reached", **marker)]
