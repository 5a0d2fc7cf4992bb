"""The figure of larger clusters: time and cost over the workers, with a line for each network."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bsweep.analysis import Study
from bsweep.plots.curves import COLORS, MARKERS
from bsweep.plots.surface import targets_in_words


def larger_clusters(study: Study, curves: pd.DataFrame) -> Figure:
    """Draw the time and the cost to the target over the workers, a line with a 90 % band for each
    network, and a row of panels for each part of the study.
    """
    cost, unit = ("money", "") if curves["money"].notna().any() else ("worker_hours", " (hours)")
    looks: dict[Any, dict[str, Any]] = {
        network: {
            "color": COLORS[place % len(COLORS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": "--" if lines["is_simulated"].any() else "-",
            "label": f"{network}{', simulated' * bool(lines['is_simulated'].any())}",
        }
        for place, (network, lines) in enumerate(curves.groupby("network", sort=False))
    }
    parts = [*curves.groupby("where", sort=False)]
    height = 0.4 + 2.6 * len(parts) + 0.2 * math.ceil(len(looks) / 2)
    figure = Figure(figsize=(rcParams["figure.figsize"][0], height), layout="constrained")
    panels = figure.subplots(len(parts), 2, squeeze=False)
    for row, (where, cells) in zip(panels, parts, strict=True):
        row[0].set_title(str(where), loc="left")
        for axes, name in zip(row, ("seconds", cost), strict=True):
            for network, line in cells.groupby("network", sort=False):
                _draw(axes, line, name, looks[network])
            _fit(axes, cells["num_workers"])
        row[0].set_ylabel("Time to target (s)")
        row[1].set_ylabel(f"{cost.replace('_', '-').capitalize()} to target{unit}")
    handles = [Line2D([], [], **look) for look in looks.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.set_label(
        f"Predicted time and {cost.replace('_', '-')} to {targets_in_words(curves)} on each number "
        "of workers at its best global batch, with the 90 % interval of one more run. Dashed: "
        "simulated. A ring is the knee: from there on, more workers bring less than half of the "
        "speed that they cost. Dotted: from there on, the best batch is larger than the critical "
        "batch size."
    )
    return figure


def _draw(axes: Axes, cells: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    """Draw the line of one network, with its band and its marks."""
    workers, factor, color = cells["num_workers"], cells[name] / cells["seconds"], look["color"]
    low, high = factor * cells["seconds_low"], factor * cells["seconds_high"]
    axes.fill_between(workers, low, high, color=color, alpha=0.12, linewidth=0)
    knee, wall = cells[cells["is_knee"]], cells[cells["is_wall"]]
    axes.plot(knee["num_workers"], knee[name], "o", color=color, markersize=11, fillstyle="none")
    for start in wall["num_workers"]:
        axes.axvline(start, color=color, linestyle=":")
    axes.plot(workers, cells[name], **look)


def _fit(axes: Axes, workers: pd.Series[int]) -> None:
    """Make both axes logarithmic, with a tick at each number of workers."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted(set(workers))
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("Workers")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
