"""The map of the predicted time to a target by batch size and worker count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bsweep.analysis import Study
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.analysis.prediction.objectives import TELLS_APART
from bsweep.plots import drawing, scales
from bsweep.plots.curves import handle

_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
_MOST_COLUMNS = 14  # columns of a map of seven inches that leave text readable
_MOST_ROOMY = 9  # columns of such a map that leave room for a line of two words
DARK = 0.36  # Text is white on a colour whose luminance is lower.
_DARKEST, _LIGHTEST = 0.2, 0.97  # ends of the colour map of times
_FRAME: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 1.0}
_DASHED: dict[str, Any] = {**_FRAME, "linestyle": (0, (3, 2))}  # of a simulated cell
_LOST: dict[str, Any] = {"facecolor": "white", "edgecolor": "#888888", "linestyle": ":"}
_STAR: dict[str, Any] = {"linestyle": "", "marker": "*"}


def time_surface(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the predicted time to the target by global batch and number of workers, with 90 %
    intervals.

    Batch sizes run across and worker counts upwards, on a map for each prediction of the study.
    Measured cells are framed.
    """
    unit, unit_seconds = _unit(cells["seconds"])
    low, high = scales.extent(cells["seconds"])
    norm = LogNorm(low, max(high, 1.01 * low))
    parts = list(cells.groupby("where", sort=False))
    heights = [0.42 * rows["num_workers"].nunique() + 0.1 for _, rows in parts]
    height = sum(heights) + 0.95 + 0.25 * sum(where != "" for where, _ in parts)
    figure = Figure(figsize=(drawing.width(), height), layout="constrained")
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (where, rows) in zip(grid, parts, strict=True):
        axes.set_title(drawing.broken(str(where), 80), loc="left")
        places = _prepare(axes, rows)
        for spot, cell in zip(places, rows.to_dict("records"), strict=True):
            share = _LIGHTEST + (_DARKEST - _LIGHTEST) * (1 - norm(cell["seconds"]))
            text = _time_text(cell, unit_seconds)
            _draw_cell(axes, spot, cell, colormaps["Blues_r"](share), text)
    grid[-1].set_xlabel("Global batch (examples)")
    fewest = int(cells.groupby("where")["global_batch"].nunique().min())
    has_text = fewest <= _fitting(_MOST_COLUMNS)
    target = targets_in_words(cells)
    with_interval = f", with its {LEVEL} interval" * has_text
    title = drawing.broken(f"Time to {target} ({unit}){with_interval}", 100)
    figure.suptitle(title, x=0.01, ha="left", fontsize=rcParams["axes.titlesize"])
    drawing.add_legend(figure, _entries(cells))
    interval = f", with the {LEVEL} interval of one more run below it" * has_text
    is_measured = bool((cells["num_runs"] > 0).all())
    framed = "Measured cells are framed; the others are predicted from them."
    dashed = "Steps of cells with a dashed frame are simulated, not measured."
    return drawing.captioned(
        figure,
        f"Predicted time ({unit}) to {target} by global batch and workers{interval}; a darker cell "
        "is faster.",
        "All cells were measured." if is_measured else framed,
        dashed if cells["is_simulated"].any() and not is_measured else "",
    )


def _prepare(axes: Axes, rows: pd.DataFrame) -> list[tuple[float, float]]:
    """Prepare the axes of a map, and return the column and the row of each of its cells."""
    batches, workers = (sorted(set(rows[name])) for name in ("global_batch", "num_workers"))
    every = math.ceil(len(batches) / _fitting(_MOST_COLUMNS))
    axes.set_xticks(range(0, len(batches), every), [str(batch) for batch in batches[::every]])
    axes.set_yticks(range(len(workers)), [str(count) for count in workers])
    axes.set(xlim=(-0.5, len(batches) - 0.5), ylim=(-0.5, len(workers) - 0.5), ylabel="Workers")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    pairs = zip(rows["global_batch"], rows["num_workers"], strict=True)
    return [(batches.index(batch), workers.index(count)) for batch, count in pairs]


def _fitting(columns: int) -> int:
    """Return how many columns fit in the width that is drawn, of as many as fit in seven inches."""
    return max(1, math.floor(columns * drawing.width() / 7))


def _draw_cell(
    axes: Axes, spot: tuple[float, float], cell: dict[Any, Any], color: Any, text: str
) -> None:
    """Draw one cell of a map as a rectangle, with a text in it if the map has at most 14 columns.

    It has a frame if the cell was measured, a dashed one if it is simulated, and a star if the cell
    is recommended, or better than the recommended one with a probability of 5 % or more.
    """
    (x, y), is_lost = spot, cell["problem"] != ""
    look = _LOST if is_lost else {"facecolor": color, "edgecolor": "none"}
    axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, **look))
    if cell["num_runs"] or (cell["is_simulated"] and not is_lost):
        frame = _FRAME if cell["num_runs"] else _DASHED
        axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, **frame))
    ink = "black" if is_lost or _luminance(color) > DARK else "white"
    columns = axes.get_xlim()[1] + 0.5
    is_dense = columns > _MOST_ROOMY * drawing.width() / 7
    if columns <= _fitting(_MOST_COLUMNS):
        said = cell["problem"].replace("out of memory", "out of\nmemory")
        said = said.replace("not reached", "not\nreached") if is_lost else text
        said = said.replace(" ", "\n") if is_dense else said
        size: dict[str, Any] = {"fontsize": 5.5 if is_dense else 7, "linespacing": 1.1}
        axes.text(x, y, said, ha="center", va="center", color=ink, **size)
    if cell["is_recommended"] or cell["is_alternative"]:
        look = {"color": ink, "markerfacecolor": ink if cell["is_recommended"] else "none"}
        look |= {"markersize": 5 if is_dense else 7, "markeredgewidth": 0.8, "clip_on": False}
        axes.plot(x + 0.38, y + (0.34 if is_dense else 0.25), **look, **_STAR)


def _luminance(color: Any) -> float:
    """Return the relative luminance of a colour, from 0 to 1, as WCAG 2 defines it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _time_text(cell: dict[Any, Any], unit_seconds: float) -> str:
    """Return a cell's predicted time and, on a second line, its interval, as in `12` above `9-16`.

    The digits are as many as the interval leaves known, and at least two.
    """
    value, low, high = (
        cell[name] / unit_seconds for name in ("seconds", "seconds_low", "seconds_high")
    )
    known = -math.floor(math.log10(max(high - low, 1e-9) / 2))
    digits = f".{max(0, known, 1 - math.floor(math.log10(value)))}f"
    return f"{value:{digits}}\n{low:{digits}}\N{EN DASH}{high:{digits}}"


def _unit(seconds: pd.Series[float]) -> tuple[str, float]:
    """Return the largest unit of time (s, min, h or days) that is at most a third of the median
    cell's time.

    Also return the unit's seconds.
    """
    fitting = [unit for unit in _UNITS if seconds.median() >= 3 * unit[1]]
    return fitting[-1] if fitting else _UNITS[0]


def _entries(cells: pd.DataFrame) -> list[Artist]:
    """Return the legend's entries, for those kinds of cells that the map has."""
    black = {**_STAR, "markersize": 8, "color": "black"}
    hollow = {**black, "markerfacecolor": "none"}
    kinds: list[tuple[Any, Artist]] = [
        (cells["num_runs"].any(), Patch(**_FRAME, label="measured")),
        (cells["is_simulated"].any(), Patch(**_DASHED, label="simulated")),
        (True, handle(black, "recommended")),
        (
            cells["is_alternative"].any(),
            handle(hollow, f"better with a probability of {100 * TELLS_APART:g} % or more"),
        ),
        (
            (cells["problem"] != "").any(),
            Patch(**_LOST, label="cannot be trained, or did not reach the target"),
        ),
    ]
    return [entry for is_drawn, entry in kinds if is_drawn]


def targets_in_words(cells: pd.DataFrame) -> str:
    """Return a phrase that names the target of all cells; it is `each part's target` if cells have
    different targets.

    Args:
        cells: A table of `bsweep.analysis.surface`.

    Returns:
        A phrase for captions and axis labels.
    """
    targets = list(dict.fromkeys(cells["target"]))
    return str(targets[0]) if len(targets) == 1 else "each part's target"
