"""Figures of models split over workers: memory, a step of a pipeline, and the time of each way of
splitting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.naming import length_of
from bsweep.analysis.splitting import ways_in_words
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
# Of each kind of pass its name and its colours: of a worker's first stage, and of its others.
PASSES: dict[str, tuple[str, str, str]] = {
    "forward": ("forward", "#8CC8EE", "#3D8FC6"),
    "backward": ("backward", "#F3B95F", "#D98A1B"),
    "backward_weights": ("backward, weights", "#7CCBAF", "#2F9C79"),
}
WAITS: dict[str, tuple[str, dict[str, Any]]] = {
    "exchange": (
        "exchange",
        {"facecolor": "white", "edgecolor": "#444444", "hatch": "////////", "linewidth": 0},
    ),
    "bubble": ("bubble", {"facecolor": "#EEEEEE", "linewidth": 0}),
}
_MAX_BARS = 8  # workers of a cell with a bar each
_MAX_CELLS = 24  # of the figure of memory
_MAX_STEPS = 8  # timelines
_MAX_PANELS = 6
_ROW_INCHES = 0.19  # of a worker in a timeline
_NUMBER_POINTS = 5.5  # the size of a micro-batch's number
_INCHES_OF_DIGIT = 0.055
_LABELS_INCHES = 0.75  # beside the axes of a timeline
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


def pipeline_timeline(study: Study, table: pd.DataFrame) -> Figure:
    """Draw when each worker computed in one step of each cell of pipelines, at most eight cells,
    with the numbers of the micro-batches, or of PipeDream's batches.
    """
    cells = dict(list(table.groupby(level=analysis.levels(table), sort=False)))
    shown = [*cells][:_MAX_STEPS]
    abreast = 1 if len(shown) <= 4 else 2
    num_rows = math.ceil(len(shown) / abreast)
    num_workers = max(int(cells[key]["worker"].max()) for key in shown) + 1
    height = 0.6 + num_rows * (0.42 + _ROW_INCHES * max(2, num_workers))
    figure = Figure(figsize=(drawing.width(), height), layout="constrained")
    grid = figure.subplots(num_rows, abreast, squeeze=False, sharex=True)
    used = list(grid.flat)[: len(shown)]
    for unused in list(grid.flat)[len(shown) :]:
        unused.remove()
    longest = max(float(cells[key]["end_seconds"].max()) for key in shown)
    unit, scale = ("ms", 1000.0) if longest < 1 else ("s", 1.0)
    varying = analysis.varying(table) or ["variant"]
    inches = drawing.width() / abreast - _LABELS_INCHES
    for axes, key in zip(used, shown, strict=True):
        named = dict(zip(analysis.levels(table), key, strict=True))
        title = ", ".join(said(name, named[name]) for name in varying)
        axes.set_title(drawing.broken(title, 88 // abreast), loc="left")
        _draw_step(axes, cells[key], scale, inches / (longest * scale))
        axes.set_xlim(0, longest * scale)
    for axes in used[-abreast:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(f"Time ({unit})")
    kinds = [name for name in PASSES if (table["kind"] == name).any()]
    handles = [Patch(label=PASSES[name][0], facecolor=PASSES[name][1]) for name in kinds]
    waits = [Patch(label=label, **look) for label, look in WAITS.values()]
    drawing.legends(figure, ([*handles, *waits], common(table)))
    sentences = _timeline_sentences(study, table, len(shown), len(cells))
    return drawing.captioned(figure, *sentences)


def _timeline_sentences(
    study: Study, table: pd.DataFrame, num_shown: int, num_cells: int
) -> Iterator[str]:
    runs = study.runs[study.runs["run_id"].isin(table["run_id"])]
    of_step = " (or one of its passes)" if runs["accumulation_steps"].max() > 1 else ""
    yield (
        f"What each worker does in one step{of_step}, the last whole one of the last epoch of the "
        "first seed."
    )
    without = runs["strategy"] == "pipedream"
    if not without.all():
        yield "Numbers are those of the micro-batches."
    if without.any():
        yield "PipeDream's numbers are those of the epoch's batches."
    if table.groupby([*analysis.levels(table), "worker"])["stage"].nunique().max() > 1:
        yield "Passes of a worker's later stages are darker."
    yield (
        "Exchange is the part of a wait in which a message travels, as long as it takes if both "
        "workers are ready; the rest is the bubble."
    )
    if (off := table["clock_error_seconds"].max()) > 0:
        yield f"Clocks of different hosts are compared within {1000 * off:.2g} ms."
    if num_shown < num_cells:
        yield f"Shown for {num_shown} of {num_cells} cells."


def _draw_step(axes: Axes, spans: pd.DataFrame, scale: float, inches_of_unit: float) -> None:
    workers = sorted(spans["worker"].unique())
    first = spans.groupby("worker")["stage"].min()
    for span in spans.to_dict("records"):
        begin, width = scale * span["begin_seconds"], scale * span["end_seconds"]
        width -= begin
        at: dict[str, Any] = {"y": span["worker"], "left": begin, "width": width}
        if span["kind"] in WAITS:
            axes.barh(**at, height=0.8, **WAITS[span["kind"]][1])
            continue
        _, light, dark = PASSES[span["kind"]]
        color = light if span["stage"] == first[span["worker"]] else dark
        axes.barh(**at, height=0.8, facecolor=color, edgecolor="white", linewidth=0.3)
        number = str(span["microbatch"] + 1)
        if width * inches_of_unit > _INCHES_OF_DIGIT * len(number):
            middle = (begin + width / 2, span["worker"])
            look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": "#111111"}
            axes.text(*middle, number, size=_NUMBER_POINTS, **look)
    axes.set_yticks(workers, [f"worker {worker + 1}" for worker in workers])
    axes.set_ylim(max(workers) + 0.6, min(workers) - 0.6)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)


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
