"""Figures of models split over workers: memory, and the time of each way of splitting."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.split_models import ways_in_words
from bsweep.analysis.study.naming import length_of, words
from bsweep.core.words import joined
from bsweep.plots import drawing, scales
from bsweep.plots.curves import COLORS, LINES, Curve, categorical, common, handle
from bsweep.plots.lines import draw_cells, repeats
from bsweep.plots.rows import bars, few_enough
from bsweep.plots.scales import Side

MEGA = 1_000_000
PARTS = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "stashed_bytes": "older weights",
}
"""The parts of a worker's memory in words."""
_LOOKS: dict[str, dict[str, Any]] = {
    name: {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
    for name, color, hatch in zip(PARTS, COLORS, ("", "//////", "......", "xxxxxx"), strict=False)
}
_WHOLES = {"peak_activation_bytes": "Activations", "peak_bytes": "Peak of the worker"}
_MAX_BARS = 8  # workers of a cell with a bar each
_MAX_CELLS = 24  # of the figure of memory
_MAX_PANELS = 6


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
        table = table.droplevel("local_batch")
    groups = table[[*PARTS]].sum(axis="columns").groupby(level=levels)
    most = int(groups.size().max())
    is_fullest = groups.rank(method="first", ascending=False) == 1
    megabytes = table[[*PARTS, *_WHOLES]] / MEGA
    megabytes = megabytes[is_fullest | (groups.transform("size") <= _MAX_BARS)].droplevel("worker")
    wholes = [name for name in _WHOLES if table[name].notna().any()]
    columns = [
        ("Parts of the model (MB)", megabytes, _LOOKS),
        *((f"{_WHOLES[name]} (MB)", megabytes, {name: {"color": drawing.GRAY}}) for name in wholes),
    ]
    figure, _ = bars(cells, columns, 0.1 + 0.07 * min(_MAX_BARS, most))
    parts = [name for name in PARTS if name != "stashed_bytes" or table[name].max() > 0]
    handles = [Patch(label=PARTS[name], **_LOOKS[name]) for name in parts]
    shared = common(cells, [name for name in ("num_workers", "local_batch") if name in levels])
    drawing.add_legend(figure, handles, joined([shared, batch], ", "))
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


def time_by_split(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training time over the number of workers, a line for each strategy and number of
    replicas, at its fastest settings.
    """
    shown = table[table["is_fastest"]]
    is_one_batch = shown["global_batch"].nunique() < 2
    rows = shown.reset_index()
    if not is_one_batch:
        rows = rows.sort_values("local_batch", kind="stable")
        batches = [words("local_batch", batch) for batch in rows["local_batch"]]
        rows["panel"] = [joined(pair, ", ") for pair in zip(rows["panel"], batches, strict=True)]
    groups = [*rows.groupby("panel", sort=False)]
    panels, looks, names = groups[:_MAX_PANELS], _looks(shown), ways_in_words(shown)
    figure, grid = drawing.grid(len(panels), 1, 2.6)
    label = joined(["Training time (s)", length_of(study)], ", ")
    drawing.name_panels([str(panel) for panel, _ in panels], grid, [("Workers", label)])
    for (axes,), (_, cells) in zip(grid, panels, strict=True):
        values = scales.seed_values(cells, "train_seconds")
        ends = scales.interval_ends(cells, "train_seconds")
        scales.fit_values(Side(axes), study, "train_seconds", values, ends)
        for key, line in cells.groupby(["strategy", "replicas"], sort=False):
            placed = line.set_index("num_workers").sort_index()
            draw_cells(Side(axes), Curve(looks[key], placed), "train_seconds")
        scales.size_axis(axes, rows["num_workers"])
        axes.tick_params(labelleft=True)  # each panel has its own range
    handles = [handle(look, names[key]) for key, look in looks.items()]
    title = f"global batch {shown['global_batch'].iloc[0]}" if is_one_batch else ""
    drawing.add_legend(figure, handles, title)
    return drawing.captioned(
        figure,
        "Training time by number of workers. The name 2x4 is that of two replicas of the model, "
        "each of which is split over four workers.",
        "Each way of splitting has its fastest settings, such as schedule and micro-batches."
        if len(shown) < len(table)
        else "",
        repeats(shown["n"], "point"),
        f"Shown for {_MAX_PANELS} of {len(groups)} panels. The tables have all."
        if len(groups) > _MAX_PANELS
        else "",
    )


def _looks(table: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return the look of each strategy and number of replicas: colours and markers tell strategies
    apart, dashes and open markers replicas.
    """
    looks: dict[Any, dict[str, Any]] = {}
    for place, (strategy, cells) in enumerate(table.groupby("strategy", sort=False)):
        for replicas in sorted(cells["replicas"].unique()):
            dash = LINES[max(0, int(replicas).bit_length() - 1) % len(LINES)]
            looks[strategy, replicas] = {**categorical(place), "linestyle": dash}
            if replicas > 1:
                looks[strategy, replicas]["markerfacecolor"] = "white"
    return looks
