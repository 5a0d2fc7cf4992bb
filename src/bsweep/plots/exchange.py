"""Figures of the parts of a step's time, and of how parameter servers share the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.numbers import spread
from bsweep.plots import drawing
from bsweep.plots.curves import common, readable
from bsweep.plots.rows import Column, bars, few_enough, write_beside

# The pale fills (Tol's light scheme) are no colours of lines.
_HATCHED = {"facecolor": "white", "edgecolor": "#999999", "hatch": "//////", "linewidth": 0}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "compute_seconds": ("computing", {"facecolor": "#DDDDDD"}),
    "codec_seconds": ("coding", {"facecolor": "#FFAABB"}),
    "exposed_exchange_seconds": ("exchange, not overlapped", {"facecolor": "#EE8866"}),
    "wait_seconds": ("waiting for others", _HATCHED),
    "unsplit_seconds": ("parts not measured", {"facecolor": drawing.PALE}),
}
"""The name in the legend and the look of each part of a step, in a bar's order."""
_WHISKERS: dict[str, Any] = {"fmt": "none", "ecolor": "#444444", "elinewidth": 0.8, "capsize": 2}


def exchange_times(study: Study) -> pd.DataFrame:
    times = analysis.step_times(study)
    return times if (times["exposed_exchange_seconds"] > 0).any() else times[:0]


def with_unsplit(times: pd.DataFrame) -> pd.DataFrame:
    """Return times of steps, with `unsplit_seconds` in place of all parts of a step whose parts
    were not measured.
    """
    is_split = times["compute_seconds"].notna()
    return times.where(is_split).assign(unsplit_seconds=times["total_seconds"].mask(is_split))


def seconds_per_step(study: Study, table: pd.DataFrame) -> Figure:
    """Draw how long each measured part of a training step takes, as a bar for each cell, at most 48
    cells.

    The parts are computing, coding, exchanging and waiting for others.
    """
    times, left_out = few_enough(table)
    seconds = with_unsplit(times)
    parts = {name: part for name, part in PARTS.items() if seconds[name].gt(0).any()}
    looks = {name: look for name, (_, look) in parts.items()}
    unit = analysis.step_unit(study)
    label = "Seconds per training step" if unit == "step" else f"Seconds per {unit}"
    figure, panels = bars(times, [(label, seconds, looks)], sorted_by="total_seconds")
    ends = times["total_seconds"] + times["total_seconds_ci95"].fillna(0)
    for (axes,), rows in panels:
        total, half = (rows[f"total_seconds{name}"].to_numpy() for name in ("", "_ci95"))
        if np.isfinite(half).any():
            axes.errorbar(total, range(len(rows)), xerr=half, **_WHISKERS)
        for place, key in enumerate(rows.index):
            write_beside(axes, ends[key], place, spread(total[place], half[place]))
        axes.set_xlim(0, 1.2 * ends.max())
    handles = [Patch(label=name, **look) for name, look in parts.values()]
    drawing.add_legend(figure, handles, common(times))
    coding = ", the time to compress and restore gradients" if "codec_seconds" in parts else ""
    return drawing.captioned(
        figure,
        f"{label}: the part of the slowest worker's exchange that does not overlap with "
        f"computing{coding}, a worker's mean wait for others before the exchange, and the rest, "
        "which is computing.",
        f"n = {drawing.span(times['n'])} per bar.",
        f"Whiskers are {analysis.SEEDS_LEVEL} t-intervals of the whole step over seeds."
        if times["total_seconds_ci95"].notna().any()
        else "",
        left_out,
    )


def server_load(study: Study, table: pd.DataFrame) -> Figure:
    """Draw which share of the parameters each server holds, and for what part of the training time
    the busiest server works.

    The fullest server is dark. Shares are left out if each cell has one server.
    """
    loads, left_out = few_enough(table)
    shares = readable(study, 100 * analysis.server_shares(study))
    is_shared = bool(shares.notna().sum(axis="columns").max() > 1)
    fullest_first = pd.DataFrame(-np.sort(-shares.to_numpy(), axis=1), shares.index)
    looks: dict[Any, dict[str, Any]] = {
        place: {"color": "#CCCCCC" if place else "#555555", "edgecolor": "white", "linewidth": 0.6}
        for place in fullest_first
    }
    held = ("Share of the parameters by\nserver, the fullest first (%)", fullest_first, looks)
    busy = "Busy time of the busiest\nserver (% of training time)"
    load = (busy, 100 * loads[["busiest_load"]], {"busiest_load": {"color": drawing.GRAY}})
    columns: list[Column] = [held, load] if is_shared else [load]
    figure, panels = bars(loads, columns, sorted_by="busiest_load")
    if is_shared:
        panels[0][0][0].set_xlim(0, 100)
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
