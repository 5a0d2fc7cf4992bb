"""The figure of examples per second by batch size, beside the speed-up by number of workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.split_models import kind_of_scaling
from bsweep.core.words import counted
from bsweep.plots.curves import Curve, Panel, curves, handle, handles, readable, value_label
from bsweep.plots.drawing import GRAY
from bsweep.plots.lines import SIZES, lines, size_of, timed_cells

IDEAL: dict[str, Any] = {"color": GRAY, "linestyle": (0, (1, 2)), "linewidth": 1.2}


def throughput_and_speedup(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw examples per second over the batch size and, if there are three worker counts or more,
    the speed-up over the number of workers in a second panel.

    The speed-up is at equal local batch; the ideal speed-up is drawn too. If the study has one
    batch size, both panels are over workers, as figure 2 of the parameter-sharding study.
    """
    along, scaling = size_of(cells), readable(study, _speedups(timed_cells(study)))
    color = "num_workers" if along == "local_batch" else "variant"
    drawn = lines(
        study,
        cells,
        along,
        {"images_per_second": "Examples per second, all workers"},
        color,
        further=[] if scaling.empty else [("Workers", _speedup_label(scaling))],
    )
    speedups = [
        curve
        for row, panel in zip(drawn.grid, drawn.panels, strict=True)
        for axes in row[1:]
        for curve in _draw_speedup(axes, study, _of_panel(scaling, panel), along)
    ]
    named = {entry.get_label() for entry in drawn.handles}
    others = {entry.get_label(): entry for entry in handles(speedups)}
    return drawn.finish(
        f"Examples per second, all workers together{f', by {SIZES[along]}' if along else ''}.",
        ""
        if scaling.empty
        else f"Right: speed-up over workers at equal local batch ({kind_of_scaling(study)}).",
        analysis.unequal_threads(timed_cells(study)),
        entries=[
            *(others[label] for label in others if label not in named),
            *([handle(IDEAL, "ideal")] if speedups else []),
        ],
    )


def _speedups(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table of speed-ups; it has no rows for fewer than three worker counts, because one
    speed-up is no curve.
    """
    table = analysis.scaling(cells)
    counts = table.index.get_level_values("num_workers").nunique()
    return table if counts > 2 else table[:0]


def _draw_speedup(axes: Axes, study: Study, scaling: pd.DataFrame, along: str) -> list[Curve]:
    """Draw the measured and the ideal speed-up over the number of workers; return a `Curve` for
    each line of measured values.
    """
    color = "local_batch" if along == "local_batch" else "variant"
    series = curves(study, scaling, "num_workers", color)
    if series and series[0].colored_by == "local_batch":
        names = [value_label("local_batch", curve.key["local_batch"]) for curve in series]
        series = [replace(c, color_label=name) for c, name in zip(series, names, strict=True)]
    workers = sorted(set(scaling.index.get_level_values("num_workers")))
    for base in sorted(set(scaling["base_workers"])):
        axes.plot([base, workers[-1]], [1, workers[-1] / base], **IDEAL)
    for curve in series:
        axes.plot(curve.cells["speedup"], **curve.look)
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)
    return series


def _of_panel(scaling: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Return the rows of the table of speed-ups that belong to the cells of one panel."""
    names = [name for name in panel.curves[0].key if name != "num_workers"]
    keys = {tuple(curve.key[name] for name in names) for curve in panel.curves}
    places = zip(*(scaling.index.get_level_values(name) for name in names), strict=True)
    return scaling[[place in keys for place in places]]


def _speedup_label(scaling: pd.DataFrame) -> str:
    bases = sorted(set(scaling["base_workers"]))
    return f"Speed-up over {counted(' or '.join(map(str, bases)), 'worker')}\nat equal local batch"
