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
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.core.words import counted
from bsweep.plots import drawing, scales
from bsweep.plots.curves import handle, looks
from bsweep.plots.surface import targets_in_words

# A worker count that no run had.
_PREDICTED: dict[str, Any] = {"color": drawing.GRAY, "marker": "P"}
_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.2}  # simulated
_DASHES: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.0}


def several_workers(study: Study) -> pd.DataFrame:
    """Return the predicted cells of those parts of a study that have cells of several worker
    counts.

    With one worker count the fastest cell also takes the fewest worker-seconds.
    """
    cells = analysis.surface(study)
    if cells.empty:
        return cells
    return cells[cells.groupby("where")["num_workers"].transform("nunique") > 1]


def pareto_front(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw each cell that may be recommended as a point: its worker-seconds (seconds times workers)
    against its seconds to the target.

    No cell takes less time than one on the front for at most as many worker-seconds. Cells on the
    front are named and have an interval.
    """
    cells = cells[cells["is_allowed"]]
    parts = list(cells.groupby("where", sort=False))
    figure, grid = drawing.grid(len(parts), 1, 3.0)
    known = looks(study)
    points: dict[int, dict[str, Any]] = {
        count: {**known.get(("num_workers", count), _PREDICTED), "linestyle": ""}
        for count in sorted(set(cells["num_workers"]))
    }
    for (axes,), (where, rows) in zip(grid, parts, strict=True):
        _draw_front(axes, rows, points)
        axes.set_title(drawing.broken(str(where), 60), loc="left")
        axes.set(xlabel=f"Time to {targets_in_words(rows)} (s)", ylabel="Worker-seconds")
    measured = [count for count in points if ("num_workers", count) in known]
    handles = [handle(points[count], counted(count, "worker")) for count in measured]
    if others := [str(count) for count in points if count not in measured]:
        handles.append(handle({**_PREDICTED, "linestyle": ""}, f"{', '.join(others)} workers"))
    is_simulated = bool(cells["is_simulated"].any())
    if is_simulated:
        hollow = {"color": drawing.GRAY, "marker": "o", "linestyle": "", **_HOLLOW}
        handles.append(handle(hollow, "simulated"))
    if cells.groupby("where")["is_on_front"].sum().max() > 1:
        handles.append(handle(_DASHES, "front"))
    drawing.add_legend(figure, handles)
    return drawing.captioned(
        figure,
        f"Worker-seconds against seconds to {targets_in_words(cells)}, with one point for each "
        "cell of the grid that may be recommended. A pale cell takes longer than another cell with "
        "at most as many worker-seconds. Cells on the front are labelled with their global batch "
        f"and have {LEVEL} intervals of a typical run.",
        "Steps of hollow cells are simulated, not measured; labels there have the workers, too."
        if is_simulated
        else "",
    )


def _draw_front(axes: Axes, rows: pd.DataFrame, points: dict[int, dict[str, Any]]) -> None:
    front = rows[rows["is_on_front"]].sort_values("seconds")
    axes.step(front["seconds"], front["worker_seconds"], where="post", **_DASHES)
    below: dict[str, Any] = {"textcoords": "offset points", "xytext": (-4, -12), "ha": "right"}
    for cell in rows.sort_values("is_on_front", kind="stable").to_dict("records"):
        workers, seconds, spent = (
            cell[name] for name in ("num_workers", "seconds", "worker_seconds")
        )
        look = {**points[workers], **(_HOLLOW if cell["is_simulated"] else {})}
        axes.plot(seconds, spent, **look, alpha=0.35)
        if cell["is_on_front"]:
            off = np.abs([[seconds - cell["typical_low"]], [cell["typical_high"] - seconds]])
            bars: dict[str, Any] = {"fmt": "none", "ecolor": look["color"], "elinewidth": 1.0}
            axes.errorbar([seconds], [spent], xerr=off, yerr=workers * off, **bars)
            axes.plot(seconds, spent, **look, markersize=7, markeredgecolor="black")
            name = f"{cell['global_batch']}" + f" on {workers}" * bool(cell["is_simulated"])
            axes.annotate(name, (seconds, spent), **below, fontsize=rcParams["xtick.labelsize"])
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.12, y=0.1)
    scales.plain_log_ticks(axes.xaxis, *scales.extent(rows["seconds"]))
    scales.plain_log_ticks(axes.yaxis, *scales.extent(rows["worker_seconds"]))
