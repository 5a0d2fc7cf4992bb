"""Figures about rounds of local steps: how long workers wait for one another, and the loss over
time.
"""

from __future__ import annotations

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
from bsweep.analysis.study.numbers import spread
from bsweep.plots import drawing
from bsweep.plots.curves import INK, MAX_LINES, Panel, common, handle
from bsweep.plots.lines import X_LABELS, draw_course, lines
from bsweep.plots.rows import few_enough, panels_of_rows, within, write_beside
from bsweep.plots.scales import Side

_MAX_METHODS = 16  # cells with bars for each node
_MAX_BARS = 7  # nodes in a group of bars
_BARS: dict[str, Any] = {"ecolor": "#444444", "error_kw": {"elinewidth": 0.8, "capsize": 1.5}}
_END: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (4, 2)), "linewidth": 1.0}


def idle_by_node(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the seconds for which each worker waits for the slowest one, as a group of bars (with
    more than seven workers, a row of dots) for each cell, at most 16 cells.

    The total of a cell stands beside the bars, with its change if there is a baseline. The figure
    shows what table 3 of the paper on uneven GPUs lists.
    """
    table, left_out = few_enough(table, _MAX_METHODS)
    nodes = analysis.node_columns(table)
    halves = [f"{name}_ci95" for name in nodes]
    table = table.assign(**{name: np.nan for name in halves if name not in table})
    are_bars, has_change = len(nodes) <= _MAX_BARS, bool(table["change"].notna().any())
    row_inches = 0.12 + 0.08 * len(nodes) if are_bars else 0.25
    figure, panels = panels_of_rows(table, 1, row_inches, sorted_by="idle_seconds")
    shades = [to_hex(colormaps["Greys"](at)) for at in np.linspace(0.9, 0.25, len(nodes))]
    longest = np.nanmax(table[nodes].to_numpy() + table[halves].fillna(0).to_numpy(float))
    for (axes,), rows in panels:
        for place, (_, row) in enumerate(rows.iterrows()):
            seconds, half = (row[names].to_numpy(float) for names in (nodes, halves))
            if are_bars:
                places, heights = within(place, len(nodes))
                axes.barh(places, seconds, heights, color=shades, xerr=half, **_BARS)
            else:
                axes.plot(seconds, [place] * len(nodes), "o", color=INK, alpha=0.4)
            _write_right(axes, place, _total(row))
        _write_right(axes, -0.62, "total, change" if has_change else "total")
        axes.set_xlim(0, 1.04 * max(longest, 1e-9))
    rounds = drawing.span(table["rounds"].round().astype(int))
    axes.set_xlabel(f"Idle seconds of a node in {rounds} rounds")
    entries = [Patch(color=color, label=f"node {at + 1}") for at, color in enumerate(shades)]
    drawing.add_legend(figure, entries if are_bars else [], common(table))
    change = ", and the change of that of a round against the uniform allocation" * has_change
    has_interval = bool(table["idle_seconds_ci95"].notna().any())
    return drawing.captioned(
        figure,
        "Seconds that each node is idle until the slowest one arrives to synchronise, summed over "
        f"a run's rounds{'' if are_bars else ', with one dot for each node'}.",
        f"On the right: the total over nodes{change}.",
        f"± is the half-width of its {analysis.SEEDS_LEVEL} t-interval." * has_interval,
        f"n = {drawing.span(table['n'])} per {'bar' if are_bars else 'dot'}.",
        left_out,
    )


def _total(row: pd.Series[float]) -> str:
    """Return the total of a cell, with its interval and its change if they are known."""
    seconds, half = row["idle_seconds"], row["idle_seconds_ci95"]
    change = "" if np.isnan(row["change"]) else f", {100 * row['change']:+.0f} %"
    text = f"{spread(seconds, half, decimals=1 if seconds >= 1 else 2)} s{change}"
    return text.replace("-", "\N{MINUS SIGN}")


def _write_right(axes: Axes, place: float, text: str) -> None:
    """Write a text to the right of a panel, at the height of one of its rows."""
    frame: Any = ("axes fraction", "data")
    write_beside(axes, 1, place, text, xycoords=frame, annotation_clip=False)


def loss_by_time(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training loss of rounds over the elapsed training time, a line for each cell.

    If the cells differ in the variant only, a second panel shows the losses around the last time at
    which all are known.
    """
    ends = set(analysis.equal_time_losses(study)["elapsed_seconds"])
    # The line is drawn only if one time holds for all curves of one panel.
    cells = table.groupby(level=[*table.index.names[:-1]]).ngroups
    ends = ends if len(ends) == 1 and 1 < cells <= MAX_LINES else set()
    along = "elapsed_seconds"
    labels = {"train_loss": "Training loss"}
    zoomed = [(X_LABELS[along], "") for _ in ends]
    drawn = lines(study, table, along, labels, "variant", further=zoomed)
    for seconds in ends:
        (axes, right), panel = drawn.grid[0], drawn.panels[0]
        _draw_end(right, panel, seconds)
        for each in (axes, right):
            each.axvline(seconds, **_END)
    is_repeated = bool(table["n"].max() > 1)
    return drawn.finish(
        "Training loss of a round (the mean over its examples) against the training time at its "
        "midpoint, without evaluations.",
        "Losses are interpolated between rounds." * is_repeated,
        more="Right: the same around the last time at which the loss of all runs is known."
        if ends
        else "",
        entries=[handle(_END, "the same time for all") for _ in ends],
    )


def _draw_end(axes: Axes, panel: Panel, seconds: float) -> None:
    """Draw the lines around a time, with the losses that they reach in these times."""
    first, last = 0.75 * seconds, 1.1 * seconds
    low, high = np.inf, -np.inf
    for curve in panel.curves:
        draw_course(Side(axes), curve, "train_loss")
        loss = curve.cells["train_loss"]
        seen = np.interp(np.linspace(first, last), loss.index, loss, left=np.nan, right=np.nan)
        low, high = np.nanmin([low, *seen]), np.nanmax([high, *seen])
    axes.set(xlim=(first, last), ylim=(low - 0.1 * (high - low), high + 0.1 * (high - low)))
