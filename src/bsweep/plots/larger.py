"""The figure of larger clusters: time and cost over the workers, with a line for each network."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep.analysis import Study
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.analysis.simulation.rows import LITTLE_GAIN
from bsweep.plots import drawing, scales
from bsweep.plots.curves import BAND, categorical, handle
from bsweep.plots.surface import targets_in_words


def larger_clusters(study: Study, curves: pd.DataFrame) -> Figure:
    """Draw the time and the cost to the target over the workers, a line with a 90 % band for each
    network, and a row of panels for each part of the study.
    """
    cost, unit = ("money", "") if curves["money"].notna().any() else ("worker_hours", " (hours)")
    cost_words = cost.replace("_", "-")
    is_simulated = curves.groupby("network", sort=False)["is_simulated"].any()
    looks: dict[Any, dict[str, Any]] = {
        network: {**categorical(place), "linestyle": "--" if is_simulated[network] else "-"}
        for place, network in enumerate(is_simulated.index)
    }
    parts = [*curves.groupby("where", sort=False)]
    figure, grid = drawing.grid(len(parts), 2, 2.6)
    labels = ["Time to target (s)", f"{cost_words.capitalize()} to target{unit}"]
    titles = [str(where) for where, _ in parts]
    drawing.name_panels(titles, grid, [("Workers", label) for label in labels])
    for row, (_, cells) in zip(grid, parts, strict=True):
        for axes, column in zip(row, ("seconds", cost), strict=True):
            for network, line in cells.groupby("network", sort=False):
                _draw(axes, line, column, looks[network])
            scales.size_axis(axes, curves["num_workers"])
            axes.set_yscale("log")
            scales.plain_log_ticks(axes.yaxis, *axes.get_ylim())
            axes.tick_params(labelleft=True)  # each panel has its own range
    entries = [
        handle(look, f"{network}, simulated" if is_simulated[network] else str(network))
        for network, look in looks.items()
    ]
    drawing.add_legend(figure, entries)
    return drawing.captioned(
        figure,
        f"Predicted time and {cost_words} to {targets_in_words(curves)} on each number "
        f"of workers at its best global batch, with the {LEVEL} interval of one more run. Dashed: "
        f"simulated. A ring is the knee: from there on, {LITTLE_GAIN}. Dotted: from there on, the "
        "best batch is larger than the critical batch size.",
    )


def _draw(axes: Axes, cells: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    """Draw the line of one network, with its band and its marks."""
    workers, factor, color = cells["num_workers"], cells[name] / cells["seconds"], look["color"]
    low, high = factor * cells["seconds_low"], factor * cells["seconds_high"]
    axes.fill_between(workers, low, high, color=color, **BAND)
    knee, wall = cells[cells["is_knee"]], cells[cells["is_wall"]]
    axes.plot(knee["num_workers"], knee[name], "o", color=color, markersize=11, fillstyle="none")
    for start in wall["num_workers"]:
        axes.axvline(start, color=color, linestyle=":")
    axes.plot(workers, cells[name], **look)
