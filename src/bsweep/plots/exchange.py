"""Figures of the parts of a step's time, and of how parameter servers share the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.numbers import spread
from bsweep.plots import drawing
from bsweep.plots.curves import common, readable
from bsweep.plots.rows import few_enough, panels_of_rows

# The name in the legend and the look of each column of `analysis.step_times`, in a bar's order. The
# pale fills (Tol's light scheme) are no colours of lines.
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "compute_seconds": ("computing", {"facecolor": "#DDDDDD"}),
    "codec_seconds": ("coding", {"facecolor": "#FFAABB"}),
    "exposed_exchange_seconds": ("exchange, not overlapped", {"facecolor": "#EE8866"}),
    "wait_seconds": (
        "waiting for others",
        {"facecolor": "white", "edgecolor": "#999999", "hatch": "//////", "linewidth": 0},
    ),
}
_WHISKERS: dict[str, Any] = {"ecolor": "#444444", "elinewidth": 0.8, "capsize": 2}


def exchange_times(study: Study) -> pd.DataFrame:
    times = analysis.step_times(study)
    return times if (times["exposed_exchange_seconds"] > 0).any() else times[:0]


def seconds_per_step(study: Study, table: pd.DataFrame) -> Figure:
    """Draw how long each measured part of a training step takes, as a bar for each cell, at most 48
    cells.

    The parts are computing, coding, exchanging and waiting for others.
    """
    times, left_out = few_enough(table)
    figure, panels = panels_of_rows(times, 1, sorted_by="total_seconds")
    parts = {
        name: part for name, part in _PARTS.items() if name in times and times[name].gt(0).any()
    }
    is_split = times["compute_seconds"].notna()
    for (axes,), rows in panels:
        left = np.zeros(len(rows))
        total = rows["total_seconds"].to_numpy()
        axes.barh(range(len(rows)), total, facecolor=drawing.PALE)
        for name, (_, look) in parts.items():
            widths = rows[name].where(rows["compute_seconds"].notna(), 0).fillna(0).to_numpy()
            axes.barh(range(len(rows)), widths, left=left, **look)
            left += widths
        _name_totals(axes, rows)
    highest = (times["total_seconds"] + times["total_seconds_ci95"].fillna(0)).max()
    unit = analysis.step_unit(study)
    label = "Seconds per training step" if unit == "step" else f"Seconds per {unit}"
    axes.set(xlabel=label, xlim=(0, 1.2 * highest))
    handles = [Patch(label=name, **look) for name, look in parts.values() if is_split.any()]
    handles += [] if is_split.all() else [Patch(facecolor=drawing.PALE, label="parts not measured")]
    drawing.legends(figure, (handles, common(times)))
    coding = ", the time to compress and restore gradients" if "codec_seconds" in parts else ""
    return drawing.captioned(
        figure,
        f"{label}: the part of the slowest worker's exchange that does not overlap with "
        f"computing{coding}, a worker's mean wait for others before the exchange, and the rest, "
        "which is computing.",
        f"n = {drawing.span(times['n'])} per bar.",
        "Whiskers are 95 % t-intervals of the whole step over seeds."
        if times["total_seconds_ci95"].notna().any()
        else "",
        left_out,
    )


def _name_totals(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the interval of each bar's whole time, and write the time beside it."""
    total = rows["total_seconds"].to_numpy()
    half = rows["total_seconds_ci95"].to_numpy()
    ends = total + np.nan_to_num(half)
    if np.isfinite(half).any():
        axes.errorbar(total, range(len(rows)), xerr=half, fmt="none", **_WHISKERS)
    for place, (seconds, end) in enumerate(zip(total, ends, strict=True)):
        axes.annotate(
            spread(seconds, half[place]),
            (end, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=7,
        )


def server_load(study: Study, table: pd.DataFrame) -> Figure:
    """Draw which share of the parameters each server holds, and for what part of the training time
    the busiest server works.

    The fullest server is dark. Shares are left out if each cell has one server.
    """
    loads, left_out = few_enough(table)
    shares = readable(study, analysis.server_shares(study))
    is_shared = bool(shares.notna().sum(axis="columns").max() > 1)
    figure, panels = panels_of_rows(loads, 1 + is_shared, sorted_by="busiest_load")
    for row, rows in panels:
        if is_shared:
            _draw_shares(row[0], rows, shares)
        row[-1].barh(range(len(rows)), 100 * rows["busiest_load"], color=drawing.GRAY)
    if is_shared:
        held = "Share of the parameters by\nserver, the fullest first (%)"
        row[0].set(xlabel=held, xlim=(0, 100))
    row[-1].set_xlabel("Busy time of the busiest\nserver (% of training time)")
    row[-1].set_xlim(left=0)
    return drawing.captioned(
        figure,
        "Left: the shares of the parameters that the servers hold, with the fullest server in "
        "dark. Right: the"
        if is_shared
        else "The",
        "part of the training time during which the busiest server receives, updates or sends.",
        f"{common(loads).capitalize()}." if common(loads) else "",
        f"n = {drawing.span(loads['n'])} per bar.",
        left_out,
    )


def _draw_shares(axes: Axes, rows: pd.DataFrame, shares: pd.DataFrame) -> None:
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
    for place, key in enumerate(rows.index):
        held = np.sort(100 * shares.loc[key].dropna().to_numpy())[::-1]
        colors = ["#555555", *["#CCCCCC"] * (len(held) - 1)]
        axes.barh([place] * len(held), held, left=np.cumsum(held) - held, color=colors, **edge)
