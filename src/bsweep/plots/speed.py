"""The figure of examples per second by batch size, beside the speed-up by number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables.split_models import kind_of_scaling
from bsweep.core.words import counted
from bsweep.plots import drawing
from bsweep.plots.along import (
    CROSSES,
    along,
    draw_failed,
    draw_panel,
    one_quantity,
    timed_cells,
)
from bsweep.plots.curves import (
    Curve,
    Panel,
    common,
    curves,
    handle,
    handles,
    in_panels,
    panel_handles,
    readable,
)

_IDEAL: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (1, 2)), "linewidth": 1.2}


def throughput_and_speedup(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw examples per second over the batch size and, if there are three worker counts or more,
    the speed-up over the number of workers in a second panel.

    The speed-up is at equal local batch; the ideal speed-up is drawn too. If the study has one
    batch size, both panels are over workers, as figure 2 of the parameter-sharding study.
    """
    name, scaling = along(cells), readable(study, _speedups(timed_cells(study)))
    label = "Examples per second, all workers"
    if not name:
        return one_quantity(
            cells, "images_per_second", label, "Examples per second, all workers together."
        )
    found = curves(study, cells, name, "num_workers" if name == "local_batch" else "variant")
    panels = in_panels(study, found, "images_per_second")
    figure, grid = drawing.grid(len(panels), 1 if scaling.empty else 2, 2.6)
    failed: list[Line2D] = []
    speedups: list[Curve] = []
    for (left, *right), panel in zip(grid, panels, strict=True):
        failed = _draw_speeds(left, panel, cells, name) or failed
        for axes in right:
            speedups += _draw_speedup(axes, study, _of_panel(scaling, panel), name)
    names = [label, _speedup_label(scaling)][: len(grid[0])]
    drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[name][0], names)
    for row in grid if speedups else ():
        row[1].set_xlabel("Workers")
    drawing.legends(figure, *_legends(panels, speedups, failed, common(cells)))
    return drawing.captioned(
        figure,
        f"Examples per second, all workers together, by {drawing.AXES[name][1]}.",
        ""
        if scaling.empty
        else f"Right: speed-up over workers at equal local batch ({kind_of_scaling(study)}).",
        analysis.unequal_threads(timed_cells(study)),
        drawing.repeats(cells["n"]),
        CROSSES if failed else "",
        panels[0].left_out,
    )


def _speedups(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table of speed-ups; it has no rows for fewer than three worker counts, because one
    speed-up is no curve.
    """
    table = analysis.scaling(cells)
    counts = table.index.get_level_values("num_workers").nunique()
    return table if counts > 2 else table[:0]


def _draw_speeds(axes: Axes, panel: Panel, cells: pd.DataFrame, along: str) -> list[Line2D]:
    """Draw the examples per second in one panel, and return the legend's entry for runs that did
    not complete, if there are any.
    """
    draw_panel(axes, panel, "images_per_second")
    drawing.log_axis(axes, cells, along)
    drawing.fit_axis(axes, drawing.drawn_values(cells, "images_per_second"))
    return draw_failed([axes], panel.curves)


def _draw_speedup(axes: Axes, study: Study, scaling: pd.DataFrame, along: str) -> list[Curve]:
    """Draw the measured and the ideal speed-up over the number of workers; return a `Curve` for
    each line of measured values.
    """
    lines = curves(
        study, scaling, "num_workers", "local_batch" if along == "local_batch" else "variant"
    )
    workers, bases = (
        sorted(set(scaling.index.get_level_values("num_workers"))),
        sorted(set(scaling["base_workers"])),
    )
    for base in bases:
        axes.plot([base, workers[-1]], [1, workers[-1] / base], **_IDEAL)
    for curve in lines:
        axes.plot(curve.cells["speedup"], **curve.look)
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)
    return lines


def _of_panel(scaling: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Return the rows of the table of speed-ups that belong to the cells of one panel."""
    names = [name for name in panel.curves[0].key if name != "num_workers"]
    keys = {tuple(curve.key[name] for name in names) for curve in panel.curves}
    places = zip(*(scaling.index.get_level_values(name) for name in names), strict=True)
    return scaling[[place in keys for place in places]]


def _speedup_label(scaling: pd.DataFrame) -> str:
    bases = sorted(set(scaling["base_workers"])) if len(scaling) else []
    return f"Speed-up over {counted(' or '.join(map(str, bases)), 'worker')}\nat equal local batch"


def _legends(
    panels: Sequence[Panel], speedups: Sequence[Curve], failed: Sequence[Line2D], title: str
) -> list[tuple[list[Line2D], str]]:
    """Return the legend of the lines of examples per second and, if the speed-ups have other lines,
    a second legend.
    """
    entries = [*panel_handles(panels), *failed]
    if not speedups:
        return [(entries, title)]
    named = {entry.get_label() for entry in entries}
    others = {
        entry.get_label(): entry for entry in handles(speedups) if entry.get_label() not in named
    }
    ideal = handle(_IDEAL, "ideal")
    if not others:
        return [([*entries, ideal], title)]
    batches = "Local batch (per worker)" if speedups[0].colored_by == "local_batch" else ""
    return [(entries, title), ([*others.values(), ideal], batches)]
