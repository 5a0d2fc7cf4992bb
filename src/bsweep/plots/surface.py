"""The map of the predicted time to a target by batch size and worker count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from bsweep.analysis import Study
from bsweep.plots import drawing
from bsweep.plots.curves import handle

GLOBAL_BATCH = "Global batch (examples)"
_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
_MOST_COLUMNS = 14  # columns of a map of seven inches that leave text readable
_MOST_ROOMY = 9  # columns of such a map that leave room for a line of two words
_DARK = 0.45  # Text is white on a colour whose luminance is lower.
_DARKEST, _LIGHTEST = 0.2, 0.97  # ends of the colour map of times
_FRAME: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 1.0}
_DASHED: dict[str, Any] = {**_FRAME, "linestyle": (0, (3, 2))}  # of a simulated cell


def time_surface(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the predicted time to the target by global batch and number of workers, with 90 %
    intervals.

    Measured cells are framed.
    """
    unit, seconds = _unit(cells["seconds"])
    norm, colors = LogNorm(*_ends(cells["seconds"] / seconds)), colormaps["Blues_r"]
    is_told = _has_text(cells)
    figure, panels = _maps(
        cells,
        f"Time to {targets_in_words(cells)} ({unit}){', with its 90 % interval' * is_told}",
    )
    for axes, rows in panels:
        for x, y, cell in _placed(rows):
            value = cell["seconds"] / seconds
            _draw_cell(
                axes,
                x,
                y,
                colors(_LIGHTEST + (_DARKEST - _LIGHTEST) * (1 - norm(value))),
                _time_text(cell, seconds),
                cell,
            )
    legend = [
        *_marks(cells),
        Patch(
            facecolor="white",
            edgecolor="#888888",
            linestyle=":",
            label="cannot be trained, or did not reach the target",
        ),
    ]
    has_problem = (cells["problem"] != "").any()
    drawing.legends(figure, (legend if has_problem else legend[:-1], ""))
    return drawing.captioned(
        figure,
        f"Predicted time ({unit}) to {targets_in_words(cells)} by global batch and workers"
        f"{', with the 90 % interval of one more run below it' * is_told}; a darker cell is "
        f"faster. {_marked(cells)}",
    )


def _maps(cells: pd.DataFrame, title: str) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure with an empty map for each prediction of the study, and the cells that belong
    on each map.

    Batch sizes run across and worker counts upwards. Cells are equal rectangles on a grid.
    """
    parts = [(str(where), rows) for where, rows in cells.groupby("where", sort=False)]
    heights = [0.42 * rows["num_workers"].nunique() + 0.1 for _, rows in parts]
    height = sum(heights) + 0.75 + 0.25 * sum(where != "" for where, _ in parts)
    figure = Figure(figsize=(drawing.width(), height + 0.2), layout="constrained")
    size = rcParams["axes.titlesize"]
    title = drawing.broken(title, 100)
    figure.suptitle(title, x=0.01, ha="left", fontsize=size)
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (where, rows) in zip(grid, parts, strict=True):
        batches, workers = _sizes(rows, "global_batch"), _sizes(rows, "num_workers")
        every = math.ceil(len(batches) / _most_columns())
        axes.set_xticks(range(0, len(batches), every), [str(batch) for batch in batches[::every]])
        axes.set_yticks(range(len(workers)), [str(count) for count in workers])
        axes.set(xlim=(-0.5, len(batches) - 0.5), ylim=(-0.5, len(workers) - 0.5), ylabel="Workers")
        axes.set_title(drawing.broken(where, 80), loc="left")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    grid[-1].set_xlabel(GLOBAL_BATCH)
    return figure, list(zip(grid, (rows for _, rows in parts), strict=True))


def _most_columns() -> int:
    """Return how many columns of a map leave text readable in the width that is drawn."""
    return max(1, math.floor(_MOST_COLUMNS * drawing.width() / 7))


def _has_text(cells: pd.DataFrame) -> bool:
    """Return True if at least one heat map has few enough columns for numbers in its fields."""
    return bool(cells.groupby("where")["global_batch"].nunique().min() <= _most_columns())


def _sizes(rows: pd.DataFrame, name: str) -> list[int]:
    return sorted({int(value) for value in rows[name]})


def _placed(rows: pd.DataFrame) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the column, the row and the values of each cell of a map."""
    columns = {batch: place for place, batch in enumerate(_sizes(rows, "global_batch"))}
    lines = {count: place for place, count in enumerate(_sizes(rows, "num_workers"))}
    for cell in rows.to_dict("records"):
        yield (
            columns[int(cell["global_batch"])],
            lines[int(cell["num_workers"])],
            {str(k): v for k, v in cell.items()},
        )


def _draw_cell(axes: Axes, x: int, y: int, color: Any, text: str, cell: dict[str, Any]) -> None:
    """Draw one cell of a map as a rectangle, with a text in it if the map has at most 14 columns.

    It has a frame if the cell was measured, a dashed one if it is simulated, and a star if the cell
    is recommended, or better than the recommended one with a probability of 5 % or more.
    """
    corner, is_lost = (x - 0.48, y - 0.46), cell["problem"] != ""
    look: dict[str, Any] = {"facecolor": color, "edgecolor": "none"}
    if is_lost:
        look, text = (
            {"facecolor": "white", "edgecolor": "#888888", "linestyle": ":"},
            _broken_words(cell["problem"]),
        )
    axes.add_patch(Rectangle(corner, 0.96, 0.92, **look))
    if cell["num_runs"] or (cell["is_simulated"] and not is_lost):
        frame = _FRAME if cell["num_runs"] else _DASHED
        axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, **frame))
    ink = "black" if is_lost or _luminance(color) > _DARK else "white"
    columns = axes.get_xlim()[1] + 0.5
    is_dense = columns > _MOST_ROOMY * drawing.width() / 7
    if columns <= _most_columns():
        size = 5.5 if is_dense else 7
        text = text.replace(" ", "\n") if is_dense else text
        axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=size, linespacing=1.1)
    if cell["is_recommended"] or cell["is_alternative"]:
        face = ink if cell["is_recommended"] else "none"
        star: dict[str, Any] = {
            "markersize": 5 if is_dense else 7,
            "markeredgewidth": 0.8,
            "clip_on": False,
        }
        axes.plot(
            [x + 0.38],
            [y + (0.34 if is_dense else 0.25)],
            "*",
            color=ink,
            markerfacecolor=face,
            **star,
        )


def _broken_words(text: str) -> str:
    return text.replace("out of memory", "out of\nmemory").replace("not reached", "not\nreached")


def _luminance(color: Any) -> float:
    return float(np.dot(to_rgb(color), (0.299, 0.587, 0.114)))


def _time_text(cell: dict[str, Any], unit: float) -> str:
    """Return a cell's predicted time and, on a second line, its interval, as in `12` above `9-16`.

    The digits are as many as the interval leaves known, and at least two.
    """
    value, low, high = (cell[name] / unit for name in ("seconds", "seconds_low", "seconds_high"))
    decimals = max(
        0, -math.floor(math.log10(max(high - low, 1e-9) / 2)), 1 - math.floor(math.log10(value))
    )
    return f"{value:.{decimals}f}\n{low:.{decimals}f}\N{EN DASH}{high:.{decimals}f}"


def _unit(seconds: pd.Series[float]) -> tuple[str, float]:
    """Return the largest unit of time (s, min, h or days) that is at most a third of the median
    cell's time.

    Also return the unit's seconds.
    """
    return [one for one in _UNITS if seconds.median() >= 3 * one[1] or one[1] == 1][-1]


def _ends(values: pd.Series[float]) -> tuple[float, float]:
    low, high = drawing.extent(values)
    return low, max(high, 1.01 * low)


def _marks(cells: pd.DataFrame) -> list[Patch | Line2D]:
    """Return the legend's entries for cells that are measured, simulated, recommended, or maybe
    better than the recommended one.
    """
    star: dict[str, Any] = {"linestyle": "", "marker": "*", "markersize": 8, "color": "black"}
    entries: list[Patch | Line2D] = (
        [Patch(**_FRAME, label="measured")] if cells["num_runs"].any() else []
    )
    entries += [Patch(**_DASHED, label="simulated")] * bool(cells["is_simulated"].any())
    entries.append(handle(star, "recommended"))
    if cells["is_alternative"].any():
        entries.append(
            handle({**star, "markerfacecolor": "none"}, "better with a probability of 5 % or more")
        )
    return entries


def _marked(cells: pd.DataFrame) -> str:
    framed = "Measured cells are framed; the others are predicted from them."
    if cells["is_simulated"].any():
        framed += " Steps of cells with a dashed frame are simulated, not measured."
    return framed if (cells["num_runs"] == 0).any() else "All cells were measured."


def targets_in_words(cells: pd.DataFrame) -> str:
    """Return a phrase that names the target of all cells; it is `each part's target` if cells have
    different targets.

    Args:
        cells: A table of `bsweep.analysis.surface`.

    Returns:
        A phrase for captions and axis labels.
    """
    found: Sequence[str] = list(dict.fromkeys(cells["target"]))
    return found[0] if len(found) == 1 else "each part's target"
