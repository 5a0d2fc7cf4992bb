"""Figures of models split over workers: memory, and the time of each way of splitting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.split_models import ways_in_words
from bsweep.analysis.study.naming import length_of
from bsweep.plots import drawing
from bsweep.plots.curves import COLORS, LINES, MARKERS, common, handle, said
from bsweep.plots.rows import few_enough, panels_of_rows

MEGA = 1_000_000
# The name, the colour and the hatch of each part.
MEMORY_PARTS = {
    "parameter_bytes": ("parameters", "#0072B2", ""),
    "gradient_bytes": ("gradients", "#E69F00", "//////"),
    "optimizer_bytes": ("optimizer state", "#009E73", "......"),
    "stashed_bytes": ("older weights", "#CC79A7", "xxxxxx"),
}
_MAX_BARS = 8  # workers of a cell with a bar each
_MAX_CELLS = 24  # of the figure of memory
_MAX_PANELS = 6
_SPARE = "The tables have all."


def memory_by_worker(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the memory of each worker, as a bar for each worker of a cell: the parts of the model,
    the activations if the study has pipelines, and the peak of the process or of the GPU.

    The figure has at most 24 cells, and of a cell with more than eight workers the fullest one.
    """
    levels = [name for name in analysis.levels(table) if name != "worker"]
    cells, left_out = few_enough(table.groupby(level=levels, sort=False).max(), _MAX_CELLS)
    batch = ""
    if "local_batch" in analysis.varying(cells) and cells["global_batch"].nunique() == 1:
        batch = f"global batch {cells['global_batch'].iloc[0]}"
        levels.remove("local_batch")  # It says only in which way the workers share the batch.
        cells = cells.droplevel("local_batch")
    workers = dict(list(table.groupby(level=levels, sort=False)))
    most = max(len(workers[key]) for key in cells.index)
    wholes = [name for name in _WHOLES if table[name].notna().any()]
    row_inches = 0.1 + 0.07 * min(_MAX_BARS, most)
    figure, panels = panels_of_rows(cells, 1 + len(wholes), row_inches)
    for axes, rows in panels:
        for place, key in enumerate(rows.index):
            _draw_memory(axes, place, _bars(workers[key]), wholes)
    for one, label in zip(axes, ["Parts of the model", *map(_WHOLES.get, wholes)], strict=True):
        one.set_xlabel(f"{label} (MB)")
        one.set_xlim(left=0)
    parts = [name for name in MEMORY_PARTS if name != "stashed_bytes" or table[name].max() > 0]
    handles = [Patch(label=MEMORY_PARTS[name][0], **_look(name)) for name in parts]
    shared = common(cells, [name for name in ("num_workers", "local_batch") if name in levels])
    drawing.legends(figure, (handles, ", ".join(filter(None, (shared, batch)))))
    return drawing.captioned(
        figure,
        "Memory of each worker, the first one above: the largest of all epochs.",
        "Older weights are the versions that PipeDream keeps for batches in flight."
        if "stashed_bytes" in parts
        else "",
        "Activations are what backward passes need; only pipelines and PipeDream measure them."
        if "peak_activation_bytes" in wholes
        else "",
        "The peak is that of the process, with Python and its libraries, or that of the GPU."
        if "peak_bytes" in wholes
        else "",
        f"Of cells with more than {_MAX_BARS} workers, the fullest one is shown."
        if most > _MAX_BARS
        else "",
        f"n = {drawing.span(table['n'])} per bar.",
        left_out,
    )


_WHOLES = {"peak_activation_bytes": "Activations", "peak_bytes": "Peak of the worker"}


def _look(part: str) -> dict[str, Any]:
    _, color, hatch = MEMORY_PARTS[part]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def _bars(workers: pd.DataFrame) -> pd.DataFrame:
    """Return the workers that have bars: all, or the fullest one if there are too many."""
    if len(workers) <= _MAX_BARS:
        return workers
    fullest = int(workers[[*MEMORY_PARTS]].sum(axis="columns").to_numpy().argmax())
    return workers.iloc[[fullest]]


def _draw_memory(
    axes: Sequence[Axes], place: int, workers: pd.DataFrame, wholes: Sequence[str]
) -> None:
    height = 0.84 / len(workers)
    at = place + height * (np.arange(len(workers)) - (len(workers) - 1) / 2)
    left = np.zeros(len(workers))
    for name in MEMORY_PARTS:
        megabytes = workers[name].fillna(0).to_numpy(float) / MEGA
        axes[0].barh(at, megabytes, 0.9 * height, left=left, **_look(name))
        left += megabytes
    for one, name in zip(axes[1:], wholes, strict=True):
        one.barh(at, workers[name].to_numpy(float) / MEGA, 0.9 * height, color=drawing.GRAY)
        if workers[name].isna().all():
            one.annotate("not measured", (0, place), (3, 0), **_BESIDE)


_BESIDE: dict[str, Any] = {
    "textcoords": "offset points",
    "va": "center",
    "size": 7,
    "color": drawing.GRAY,
}


def time_by_split(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training time over the number of workers, a line for each strategy and number of
    replicas, at its fastest settings.
    """
    shown = table[table["is_fastest"]]
    by_batch = ["local_batch"] if shown["global_batch"].nunique() > 1 else []
    parts, left_out = _panels(shown, ["panel", *by_batch])
    names, looks = ways_in_words(shown), _looks(shown)
    figure, grid = drawing.grid(len(parts), 1, 2.6)
    for (axes,), (_, rows) in zip(grid, parts, strict=True):
        for key, cells in rows.groupby(["strategy", "replicas"], sort=False):
            placed = cells.reset_index().set_index("num_workers").sort_index()
            drawing.draw_line(axes, looks[key], placed, "train_seconds")
        drawing.log_axis(axes, shown, "num_workers")
        drawing.fit_axis(axes, drawing.drawn_values(rows, "train_seconds"))
    label = ", ".join(filter(None, ("Training time (s)", length_of(study))))
    drawing.name_panels([title for title, _ in parts], grid, "Workers", [label])
    for (axes,) in grid:
        axes.tick_params(labelleft=True)  # each panel has its own range
    title = "" if by_batch else f"global batch {shown['global_batch'].iloc[0]}"
    strategies = [*dict.fromkeys(key[0] for key in names)]
    ordered = sorted(names, key=lambda key: (strategies.index(key[0]), key[1]))
    handles = [handle(looks[key], names[key]) for key in ordered]
    drawing.legends(figure, (handles, title))
    chosen = len(shown) < len(table)
    return drawing.captioned(
        figure,
        "Training time by number of workers. The name 2x4 is that of two replicas of the model, "
        "each of which is split over four workers.",
        "Each way of splitting has its fastest settings, such as schedule and micro-batches."
        if chosen
        else "",
        drawing.repeats(shown["n"]),
        left_out,
    )


def _panels(table: pd.DataFrame, by: Sequence[str]) -> tuple[list[tuple[str, pd.DataFrame]], str]:
    """Return the titles and the rows of a figure's panels, and a sentence if some are left out."""
    rows = table.copy()
    for name in by:
        known = name in table
        rows[f"of_{name}"] = table[name] if known else table.index.get_level_values(name)
    rows["at"] = pd.factorize(rows["of_panel"])[0]
    order = ["at", *(f"of_{name}" for name in by if name != "panel")]
    rows = rows.sort_values(order, kind="stable")
    groups = list(rows.groupby([f"of_{name}" for name in by], sort=False))
    varying = [name for name in by if rows[f"of_{name}"].nunique() > 1]
    found = []
    for key, cells in groups[:_MAX_PANELS]:
        named = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        words = [named[n] if n == "panel" else said(n, named[n]) for n in varying]
        found.append((", ".join(map(str, words)), cells))
    left = f"Shown for {_MAX_PANELS} of {len(groups)} panels. {_SPARE}"
    return found, left if len(groups) > _MAX_PANELS else ""


def _looks(table: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return the look of each strategy and number of replicas: colours and markers tell strategies
    apart, dashes and open markers replicas.
    """
    strategies = [*dict.fromkeys(table["strategy"])]
    return {
        (strategy, replicas): {
            "color": COLORS[strategies.index(strategy) % len(COLORS)],
            "marker": MARKERS[strategies.index(strategy) % len(MARKERS)],
            "linestyle": LINES[max(0, int(replicas).bit_length() - 1) % len(LINES)],
            **({"markerfacecolor": "white"} if replicas > 1 else {}),
        }
        for strategy, replicas in zip(table["strategy"], table["replicas"], strict=True)
    }
