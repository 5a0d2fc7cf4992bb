"""Figures about rounds of local steps: how long workers wait for one another, and the loss over
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots import drawing
from bsweep.plots.curves import (
    INK,
    Curve,
    common,
    curves,
    handle,
    in_panels,
    panel_handles,
)
from bsweep.plots.rows import few_enough, panels_of_rows

_MAX_METHODS = 16  # cells with bars for each node
_MAX_BARS = 7  # nodes in a group of bars


_BARS: dict[str, Any] = {"ecolor": "#444444", "error_kw": {"elinewidth": 0.8, "capsize": 1.5}}


def idle_by_node(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the seconds for which each worker waits for the slowest one, as a group of bars (with
    more than seven workers, a row of dots) for each cell, at most 16 cells.

    The total of a cell stands beside the bars, with its change if there is a baseline. The figure
    shows what table 3 of the paper on uneven GPUs lists.
    """
    table, left_out = few_enough(table, _MAX_METHODS)
    idle = table[analysis.node_columns(table)].to_numpy()
    num_nodes = idle.shape[1]
    errors = [f"{name}_ci95" for name in analysis.node_columns(table)]
    whiskers = table.reindex(columns=errors).to_numpy(float)
    are_bars = num_nodes <= _MAX_BARS
    row_inches = 0.12 + 0.08 * num_nodes if are_bars else 0.25
    figure, panels = panels_of_rows(table, 1, row_inches, sorted_by="idle_seconds")
    shades = [to_hex(colormaps["Greys"](at)) for at in np.linspace(0.9, 0.25, num_nodes)]
    for (axes,), rows in panels:
        for place, (_, row) in enumerate(rows.iterrows()):
            seconds = row[analysis.node_columns(table)].to_numpy(float)
            if are_bars:
                height = 0.8 / num_nodes
                places = place + height * (np.arange(num_nodes) - (num_nodes - 1) / 2)
                half = row.reindex(errors).to_numpy(float)
                axes.barh(places, seconds, height, color=shades, xerr=half, **_BARS)
            else:
                axes.plot(seconds, [place] * num_nodes, "o", color=INK, alpha=0.4)
            _name_total(axes, place, row)
        _beside(axes, -0.62, "total, change" if table["change"].notna().any() else "total")
        axes.set_xlim(0, 1.04 * max(np.nanmax(idle + np.nan_to_num(whiskers)), 1e-9))
    axes.set_xlabel(
        f"Idle seconds of a node in {drawing.span(table['rounds'].round().astype(int))} rounds"
    )
    nodes = [Patch(color=color, label=f"node {at + 1}") for at, color in enumerate(shades)]
    drawing.legends(figure, (nodes if are_bars else [], common(table)))
    interval = (
        " ± is the half-width of its 95 % t-interval."
        if table["idle_seconds_ci95"].notna().any()
        else ""
    )
    return drawing.captioned(
        figure,
        "Seconds that each node is idle until the slowest one arrives to synchronise, summed over "
        f"a run's rounds{'' if are_bars else ', with one dot for each node'}.",
        f"On the right: the total over nodes{_and_change(table)}.{interval}",
        f"n = {drawing.span(table['n'])} per {'bar' if are_bars else 'dot'}.",
        left_out,
    )


def loss_by_time(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training loss of rounds over the elapsed training time, a line for each cell.

    If the cells differ in the variant only, a second panel shows the losses around the last time at
    which all are known.
    """
    found = curves(study, table, "elapsed_seconds", "variant")
    panels = in_panels(study, found, "train_loss")
    ends = set(analysis.equal_time_losses(study)["elapsed_seconds"])
    # The line is drawn only if one time holds for all curves.
    ends = ends if len(ends) == 1 and len(found) > 1 and len(panels) == 1 else set()
    figure, grid = drawing.grid(len(panels), 1 + len(ends), 2.6)
    end: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (4, 2)), "linewidth": 1.0}
    for row, panel in zip(grid, panels, strict=True):
        for axes in row:
            for curve in panel.curves:
                _draw_loss(axes, curve)
            for seconds in ends:
                axes.axvline(seconds, **end)
            axes.set_xlim(left=0)
        drawing.loss_axis(row[0], table["train_loss"])
    names = ["Training loss", ""][: len(grid[0])]
    drawing.name_panels([panel.title for panel in panels], grid, "Training time (s)", names)
    for seconds in ends:
        _zoom(
            grid[0][1],
            [curve.cells["train_loss"] for curve in found],
            0.75 * seconds,
            1.1 * seconds,
        )
    entries = panel_handles(panels) + [handle(end, "the same time for all") for _ in ends]
    drawing.legends(figure, (entries, common(table)))
    repeated = table["n"].max() >= analysis.MIN_SEEDS_FOR_INTERVAL
    return drawing.captioned(
        figure,
        "Training loss of a round (the mean over its examples) against the training time at its "
        "midpoint, without evaluations.",
        f"Lines are means over n = {drawing.span(table['n'])} seeds, interpolated between rounds."
        if table["n"].max() > 1
        else "n = 1.",
        "Bands are 95 % t-intervals." if repeated else "",
        "Right: the same around the last time at which the loss of all runs is known."
        if ends
        else "",
        panels[0].left_out,
    )


def _draw_loss(axes: Axes, curve: Curve) -> None:
    cells, half = curve.cells["train_loss"], curve.cells["train_loss_ci95"]
    axes.plot(cells, **curve.look, markevery=max(1, math.ceil(len(cells) / 8)))
    axes.fill_between(
        cells.index, cells - half, cells + half, color=curve.look["color"], alpha=0.12, linewidth=0
    )


def _zoom(axes: Axes, losses: Sequence[pd.Series[float]], first: float, last: float) -> None:
    """Limit the axes to the times from `first` to `last`, and to the losses that the lines reach in
    these times.
    """
    seen = [
        np.interp(np.linspace(first, last), loss.index, loss, left=np.nan, right=np.nan)
        for loss in losses
    ]
    low, high = np.nanmin(seen), np.nanmax(seen)
    axes.set(xlim=(first, last), ylim=(low - 0.1 * (high - low), high + 0.1 * (high - low)))


def _name_total(axes: Axes, place: int, row: pd.Series[float]) -> None:
    decimals = 1 if row["idle_seconds"] >= 1 else 2
    half = (
        ""
        if math.isnan(row["idle_seconds_ci95"])
        else f" ± {row['idle_seconds_ci95']:.{decimals}f}"
    )
    change = "" if math.isnan(row["change"]) else f", {100 * row['change']:+.0f} %"
    _beside(
        axes,
        place,
        f"{row['idle_seconds']:.{decimals}f}{half} s{change}".replace("-", "\N{MINUS SIGN}"),
    )


def _beside(axes: Axes, place: float, text: str) -> None:
    """Write a text to the right of a panel, at the height of one of its rows."""
    frame: Any = ("axes fraction", "data")
    look: dict[str, Any] = {
        "xycoords": frame,
        "textcoords": "offset points",
        "annotation_clip": False,
    }
    axes.annotate(text, (1, place), (4, 0), va="center", size=7, **look)


def _and_change(table: pd.DataFrame) -> str:
    if table["change"].isna().all():
        return ""
    return ", and the change of that of a round against the uniform allocation"
