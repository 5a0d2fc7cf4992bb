"""The figure of larger clusters: the time and the cost to a target on each number of workers, for
each network that a study simulates.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bsweep.analysis import Study
from bsweep.analysis.prediction.networks import OWN_LINKS
from bsweep.plots import drawing
from bsweep.plots.curves import COLORS, INK, MARKERS, handle
from bsweep.plots.surface import targets_in_words

_KNEE: dict[str, Any] = {"marker": "o", "markersize": 10, "fillstyle": "none", "linestyle": ""}
_WALL: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2}


def larger_clusters(study: Study, curves: pd.DataFrame) -> Figure:
    """Draw the time and the cost to the target over workers, a line for each network, with bands.

    Simulated lines are dashed. A ring marks the knee, and a dotted line the critical batch size.
    """
    parts = [(str(where), rows) for where, rows in curves.groupby("where", sort=False)]
    figure, grid = drawing.grid(len(parts), 2, 2.8)
    networks = [name for name in dict.fromkeys(curves["network"]) if name != OWN_LINKS]
    looks = {
        name: {
            "color": COLORS[at % len(COLORS)],
            "marker": MARKERS[at % len(MARKERS)],
            "linestyle": (0, (4, 2)),
        }
        for at, name in enumerate(networks)
    }
    looks[OWN_LINKS] = {"color": INK, "marker": "*", "linestyle": "-"}
    cost, label = (
        ("money", "Money") if curves["money"].notna().any() else ("worker_hours", "Worker-hours")
    )
    for panels, (where, rows) in zip(grid, parts, strict=True):
        panels[0].set_title(drawing.broken(where, 60), loc="left")
        panels[0].set_ylabel(f"Time to {targets_in_words(rows)} (s)")
        panels[1].set_ylabel(label)
        for axes, name in zip(panels, ("seconds", cost), strict=True):
            for network, of in rows.groupby("network", sort=False):
                _draw_curve(axes, of, name, looks[str(network)])
            _label_axes(axes, rows, name)
    for axes in grid[-1]:
        axes.set_xlabel("Workers")
    marks = [handle(looks[name], f"{name}, simulated") for name in networks]
    if (curves["network"] == OWN_LINKS).any():
        marks.append(handle(looks[OWN_LINKS], OWN_LINKS))
    marks += [handle({**_KNEE, "color": INK}, "knee")] * bool(curves["is_knee"].any())
    marks += [handle({**_WALL, "color": INK}, "critical batch")] * bool(_walls(curves))
    drawing.legends(figure, (marks, ""))
    return drawing.captioned(
        figure,
        f"Time and cost to {targets_in_words(curves)} on each number of workers at its best global "
        "batch. Bands are 90 % prediction intervals of one more run. Steps of dashed lines are "
        "simulated, not measured. A single worker needs no link and is not simulated.",
        "Knee: from there on, more workers bring less than half of the speed that they cost."
        if curves["is_knee"].any()
        else "",
        "Dotted: from there on, the best batch is larger than the critical batch size, so more "
        "workers save few steps."
        if _walls(curves)
        else "",
    )


def _draw_curve(axes: Axes, of: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    axes.plot(of["num_workers"], of[name], **look)
    low, high = of[f"{name}_low"], of[f"{name}_high"]
    axes.fill_between(of["num_workers"], low, high, color=look["color"], alpha=0.12, linewidth=0)
    knees = of[of["is_knee"]]
    axes.plot(knees["num_workers"], knees[name], color=look["color"], **_KNEE)
    for place in _walls(of):
        axes.axvline(place, color=look["color"], **_WALL)


def _walls(of: pd.DataFrame) -> list[int]:
    """Return the numbers of workers from which on the best batch is larger than the critical batch
    size.
    """
    return [int(count) for count in of.loc[of["is_wall"], "num_workers"]]


def _label_axes(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    counts = sorted(set(rows["num_workers"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts[:: -(-len(counts) // 8)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yscale("log")
    drawing.plain_log_ticks(
        axes.yaxis, *drawing.extent([*rows[f"{name}_low"], *rows[f"{name}_high"]])
    )
