"""Figures of times by batch size: the training time, with fitted curves and a published study's
times if they are comparable, and the time to the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.naming import length_of
from bsweep.plots import scales
from bsweep.plots.curves import Curve, Panel, handle, readable
from bsweep.plots.lines import BATCH_LABEL, PUBLISHED, SIZES, draw_cells, lines, mark_cells, size_of
from bsweep.plots.scales import Side


def time_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the training time over the batch size b, with the fit a + c / b for each line of three
    or more batch sizes, beside published times if they are comparable.

    If the study has one batch size, the figure is over workers, without fits. The comparison is of
    times over the time at the largest batch size that both studies measured. Epochs and hardware
    differ, and cancel in this ratio.
    """
    along, label = size_of(cells), ", ".join(filter(None, ("Training time (s)", length_of(study))))
    fits = analysis.seconds_fits(study.runs)
    fits = readable(study, fits if along == "local_batch" else fits[:0])
    reference = _reference_batch(study, cells)
    further = [(BATCH_LABEL, f"Training time relative to\nthat of local batch {reference}")]
    drawn = lines(
        study,
        cells.assign(relative=analysis.relative_seconds(cells, reference) if reference else np.nan),
        along,
        {"train_seconds": label},
        "num_workers",
        further=further if reference else (),
        draw=partial(_draw_fitted, fits) if len(fits) else None,
    )
    for row, panel in zip(drawn.grid, drawn.panels, strict=True):
        if reference:
            _draw_relative(row[1], panel, cells, reference)
    series = [curve for panel in drawn.panels for curve in panel.curves]
    if len(fits):
        drawn.title = "; ".join(filter(None, (drawn.title, "b: local batch")))
        if len(series) == len(drawn.handles):  # each line has an entry
            drawn.handles = [handle(c.look, f"{c.label}{_formula(fits, c.key)}") for c in series]
    theirs = f"published, 4 workers, 50 epochs, n = 1{_published_formula() if reference else ''}"
    fitted = ", with the least-squares fit time = a + c / b" if len(fits) else ""
    return drawn.finish(
        f"Training time {f'by {SIZES[along]}{fitted}' if along else 'of each cell'}.",
        more=f"Right: relative to the time of local batch {reference}, with the published times of "
        "50 epochs in grey."
        if reference
        else "",
        entries=[handle(PUBLISHED, theirs)] if reference else [],
    )


def _draw_relative(axes: Axes, panel: Panel, cells: pd.DataFrame, reference: int) -> None:
    """Draw times divided by that at the batch size `reference`, beside the published ones."""
    published = published_cells()["train_seconds"]
    for curve in panel.curves:
        axes.plot(curve.cells["relative"].dropna(), **curve.look)
    axes.plot(published / published[reference], **PUBLISHED)
    scales.size_axis(axes, [*cells.index.get_level_values("local_batch"), *published.index])
    axes.set_ylim(bottom=0)


def time_to_target(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the training time to the target by batch size, or by workers if the study has one batch
    size.

    Seeds that do not reach the target are marked on the edge.
    """
    common = analysis.common_target(study)
    assert common is not None  # otherwise the table has no rows
    target, origin = common
    label = f"Training time to {target} (s)"
    drawn = lines(study, table, size_of(table), {"seconds": label}, "num_workers")
    look = {"marker": "^" if drawn.along else ">", "markersize": 7, "markerfacecolor": "white"}
    missed: list[Line2D] = []
    for (axes,), panel in zip(drawn.grid, drawn.panels, strict=True):
        side = drawn.side(axes)
        marks = mark_cells(side, panel, 1, lambda cells: cells["missed"] > 0, "not reached", **look)
        missed = marks or missed
    return drawn.finish(
        f"Seconds of training until {target}, by the median of three evaluations.",
        origin,
        more="Open triangles on the edge are seeds that did not reach the target."
        if missed
        else "",
        entries=missed,
    )


def _draw_fitted(fits: pd.DataFrame, side: Side, curve: Curve, metric: str) -> set[str]:
    """Draw the times of a line as points beside its fitted curve, or a line if it has no fit."""
    key = tuple(curve.key.values())
    if key not in fits.index:
        return draw_cells(side, curve, metric)
    batches = np.geomspace(*scales.extent(curve.cells[metric].dropna().index), 200)
    seconds = fits.loc[key, "fixed_seconds"] + fits.loc[key, "batch_seconds"] / batches
    marks = draw_cells(side, replace(curve, look={**curve.look, "linestyle": ""}), metric)
    side.plot(batches, seconds, **{**curve.look, "marker": ""})
    return marks


def _formula(fits: pd.DataFrame, series: Mapping[Any, Any]) -> str:
    """Return a text with the formula that was fitted to the training times of a series, its R
    squared and its largest errors; an empty text if there is no fit.
    """
    key = tuple(series.values())
    if key not in fits.index:
        return ""
    fit = fits.loc[key]
    a, c = fit["fixed_seconds"], fit["batch_seconds"]
    terms = f"{_three_digits(a)} {'-' if c < 0 else '+'} {_three_digits(abs(c))} / b"
    low, high = (round(100 * fit[f"{name}_residual"]) for name in ("lowest", "highest"))
    # No-break spaces keep this part together when the legend breaks long lines.
    share = f"R² = {fit['r_squared']:.4f}".replace(" ", "\N{NO-BREAK SPACE}")
    text = f":  {terms}  ({share}, times {low:+d} to {high:+d} % off)"
    return text.replace("-", "\N{MINUS SIGN}")


def _published_formula() -> str:
    fits = analysis.seconds_fits(analysis.published().runs)
    return _formula(fits, dict(enumerate(fits.index[0])))


def _three_digits(value: float) -> str:
    """Return a number as text with three significant digits, or with more if its whole part has
    more.
    """
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


@cache  # Several figures ask for it.
def published_cells() -> pd.DataFrame:
    """Return the cells of the published study by their batch size."""
    cells = analysis.cells(analysis.published().runs)
    return cells.reset_index(analysis.levels(cells)[:-1])


def _reference_batch(study: Study, cells: pd.DataFrame) -> int | None:
    """Return the largest batch size that both this study and the published study measured.

    The result is None if the two studies are not comparable or share fewer than two batch sizes.
    """
    if not analysis.comparable(study):
        return None
    measured = set(cells.index[cells["train_seconds"].notna()].get_level_values("local_batch"))
    common = measured & set(published_cells().index)
    return max(common) if len(common) > 1 else None
