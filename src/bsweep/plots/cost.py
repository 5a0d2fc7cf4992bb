"""The figure of what it costs to reach a target: worker-seconds against seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.core.words import counted
from bsweep.plots import drawing
from bsweep.plots.curves import handle, looks
from bsweep.plots.surface import targets_in_words

# A worker count that no run had.
_PREDICTED: dict[str, Any] = {"color": drawing.GRAY, "marker": "P"}
_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.2}  # simulated


def several_workers(study: Study) -> pd.DataFrame:
    """Return the predicted cells of those parts of a study that have cells of several worker
    counts.

    With one worker count the fastest cell also takes the fewest worker-seconds.
    """
    cells = analysis.surface(study)
    return (
        cells[cells.groupby("where")["num_workers"].transform("nunique") > 1]
        if len(cells)
        else cells
    )


def pareto_front(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw each cell that may be recommended as a point: its worker-seconds (seconds times workers)
    against its seconds to the target.

    No cell takes less time than one on the front for at most as many worker-seconds. Cells on the
    front are named and have an interval.
    """
    cells = cells[cells["is_allowed"]]
    parts = [(str(where), rows) for where, rows in cells.groupby("where", sort=False)]
    figure, grid = drawing.grid(len(parts), 1, 3.0)
    counts = sorted(set(cells["num_workers"]))
    known = looks(study)
    shown = {count: known.get(("num_workers", count), _PREDICTED) for count in counts}
    for (axes,), (where, rows) in zip(grid, parts, strict=True):
        _draw_front(axes, rows, shown)
        axes.set_title(drawing.broken(where, 60), loc="left")
        axes.set(xlabel=f"Time to {targets_in_words(rows)} (s)", ylabel="Worker-seconds")
    handles = [
        handle({**shown[count], "linestyle": ""}, counted(count, "worker"))
        for count in counts
        if shown[count] is not _PREDICTED
    ]
    if others := [str(count) for count in counts if shown[count] is _PREDICTED]:
        handles.append(handle({**_PREDICTED, "linestyle": ""}, f"{', '.join(others)} workers"))
    is_simulated = bool(cells["is_simulated"].any())
    if is_simulated:
        hollow = {"color": drawing.GRAY, "marker": "o", "linestyle": "", **_HOLLOW}
        handles.append(handle(hollow, "simulated"))
    front = handle({"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.0}, "front")
    has_line = cells.groupby("where")["is_on_front"].sum().max() > 1
    drawing.legends(figure, ([*handles, *[front] * bool(has_line)], ""))
    return drawing.captioned(
        figure,
        f"Worker-seconds against seconds to {targets_in_words(cells)}, with one point for each "
        "cell of the grid that may be recommended. A pale cell takes longer than another cell with "
        "at most as many worker-seconds. Cells on the front are labelled with their global batch "
        "and have 90 % intervals of a typical run.",
        "Steps of hollow cells are simulated, not measured; labels there have the workers, too."
        if is_simulated
        else "",
    )


def _draw_front(axes: Axes, rows: pd.DataFrame, shown: dict[int, dict[str, Any]]) -> None:
    for count, look in shown.items():
        of = rows[rows["num_workers"] == count]
        for one, more in ((of[~of["is_simulated"]], {}), (of[of["is_simulated"]], _HOLLOW)):
            axes.plot(
                one["seconds"],
                one["worker_seconds"],
                **{**look, "linestyle": "", **more},
                alpha=0.35,
            )
    front, small = rows[rows["is_on_front"]].sort_values("seconds"), rcParams["xtick.labelsize"]
    stairs: dict[str, Any] = {"where": "post", "linestyle": (0, (4, 2)), "linewidth": 1.0}
    axes.step(front["seconds"], front["worker_seconds"], "k", **stairs)
    for cell in front.to_dict("records"):
        workers = cell["num_workers"]
        color = shown[workers]["color"]
        off = np.abs(
            [[cell["seconds"] - cell["typical_low"]], [cell["typical_high"] - cell["seconds"]]]
        )
        place = ([cell["seconds"]], [cell["worker_seconds"]])
        axes.errorbar(
            *place, xerr=off, yerr=workers * off, fmt="none", ecolor=color, elinewidth=1.0
        )
        hollow = _HOLLOW if cell["is_simulated"] else {}
        axes.plot(
            *place,
            **{**shown[workers], "linestyle": "", "markersize": 7, **hollow},
            markeredgecolor="black",
        )
        spot = cell["seconds"], cell["worker_seconds"]
        below: dict[str, Any] = {"textcoords": "offset points", "xytext": (-4, -12), "ha": "right"}
        named = f"{cell['global_batch']}" + f" on {workers}" * bool(cell["is_simulated"])
        axes.annotate(named, spot, **below, fontsize=small)
    for axis, scale, name in (
        (axes.xaxis, axes.set_xscale, "seconds"),
        (axes.yaxis, axes.set_yscale, "worker_seconds"),
    ):
        scale("log")
        axes.margins(x=0.12, y=0.1)
        drawing.plain_log_ticks(axis, *drawing.extent(rows[name]))
