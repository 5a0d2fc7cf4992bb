"""The figure of the training time by batch size, with fitted curves and, if they are comparable, a
published study's times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.naming import length_of
from bsweep.plots import drawing
from bsweep.plots.along import (
    CROSSES,
    PUBLISHED,
    along,
    draw_failed,
    draw_panel,
    one_quantity,
    published_cells,
)
from bsweep.plots.curves import (
    Curve,
    Panel,
    common,
    curves,
    handle,
    in_panels,
    panel_handles,
    readable,
)


def time_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the training time over the batch size b, with the fit a + c / b for each line of three
    or more batch sizes, beside published times if they are comparable.

    If the study has one batch size, the figure is over workers, without fits. The comparison is of
    times over the time at the largest batch size that both studies measured. Epochs and hardware
    differ, and cancel in this ratio.
    """
    name, label = along(cells), ", ".join(filter(None, ("Training time (s)", length_of(study))))
    if not name:
        return one_quantity(cells, "train_seconds", label, "Training time of each cell.")
    fits = (
        readable(study, analysis.seconds_fits(study.runs))
        if name == "local_batch"
        else pd.DataFrame()
    )
    reference = _reference_batch(study, cells)
    relative = analysis.relative_seconds(cells, reference) if reference else np.nan
    found = curves(study, cells.assign(relative_seconds=relative), name, "num_workers")
    panels = in_panels(study, found, "train_seconds")
    figure, grid = drawing.grid(len(panels), 2 if reference else 1, 2.6)
    failed: list[Line2D] = []
    for (left, *right), panel in zip(grid, panels, strict=True):
        failed = _draw_times(left, panel, cells, name, fits) or failed
        if reference:
            _draw_relative(right[0], panel, cells, reference)
    names = [label, f"Training time relative to\nthat of local batch {reference}"][: len(grid[0])]
    drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[name][0], names)
    title = "; ".join(filter(None, (common(cells), "b: local batch" if not fits.empty else "")))
    drawing.legends(
        figure, ([*_entries(found, panels, fits), *_published_entries(reference), *failed], title)
    )
    sentences = _sentences(cells, name, fits, reference, failed)
    return drawing.captioned(figure, *sentences, panels[0].left_out)


def _sentences(
    cells: pd.DataFrame,
    along: str,
    fits: pd.DataFrame,
    reference: int | None,
    failed: Sequence[Line2D],
) -> list[str]:
    fitted = "" if fits.empty else ", with the least-squares fit time = a + c / b"
    beside = (
        f"Right: relative to the time of local batch {reference}, with the published times of 50 "
        "epochs in grey."
    )
    return [
        f"Training time by {drawing.AXES[along][1]}{fitted}.",
        drawing.repeats(cells["n"]),
        beside if reference else "",
        CROSSES if failed else "",
    ]


def _draw_times(
    axes: Axes, panel: Panel, cells: pd.DataFrame, along: str, fits: pd.DataFrame
) -> list[Line2D]:
    """Draw the training times of one panel, with the fitted curves if there are any.

    Returns:
        The legend's entry for runs that did not complete, or an empty list.
    """
    draw_panel(axes, panel, "train_seconds") if fits.empty else _draw_fitted(axes, panel, fits)
    drawing.log_axis(axes, cells, along)
    drawing.fit_axis(axes, drawing.drawn_values(cells, "train_seconds"))
    return draw_failed([axes], panel.curves)


def _draw_fitted(axes: Axes, panel: Panel, fits: pd.DataFrame) -> None:
    """Draw the training times of each line of a panel, with the line's fitted curve if there is
    one.
    """
    for curve in panel.curves:
        key = tuple(curve.key.values())
        is_fitted = key in fits.index
        look = {**curve.look, "linestyle": ""} if is_fitted else curve.look
        drawing.draw_line(axes, look, curve.cells, "train_seconds")
        if is_fitted:
            batches = np.geomspace(
                *drawing.extent(curve.cells["train_seconds"].dropna().index), 200
            )
            seconds = fits.loc[key, "fixed_seconds"] + fits.loc[key, "batch_seconds"] / batches
            axes.plot(batches, seconds, **{**curve.look, "marker": ""})


def _entries(found: Sequence[Curve], panels: Sequence[Panel], fits: pd.DataFrame) -> list[Line2D]:
    """Return the legend's entries for the lines of training times.

    An entry also shows the formula of its line's fit if each line has an entry.
    """
    entries = panel_handles(panels)
    if fits.empty or len(found) != len(entries):
        return entries
    formulas = (_formula(fits, tuple(curve.key.values())) for curve in found)
    return [
        handle(curve.look, f"{curve.label}{formula}")
        for curve, formula in zip(found, formulas, strict=True)
    ]


def _published_entries(reference: int | None) -> list[Line2D]:
    if not reference:
        return []
    fits = analysis.seconds_fits(analysis.published().runs)
    return [
        handle(PUBLISHED, f"published, 4 workers, 50 epochs, n = 1{_formula(fits, fits.index[0])}")
    ]


def _formula(fits: pd.DataFrame, key: Any) -> str:
    """Return a text with the formula that was fitted to training times, its R squared and its
    largest errors.

    The text is empty if there is no fit for `key`.
    """
    if key not in fits.index:
        return ""
    fit = fits.loc[key]
    a, c = fit["fixed_seconds"], fit["batch_seconds"]
    terms = f"{drawing.three_digits(a)} {'-' if c < 0 else '+'} {drawing.three_digits(abs(c))} / b"
    off = (
        f"times {round(100 * fit['lowest_residual']):+d} to "
        f"{round(100 * fit['highest_residual']):+d} % off"
    )
    # No-break spaces keep this part together when the legend breaks long lines.
    share = f"R² = {fit['r_squared']:.4f}".replace(" ", "\N{NO-BREAK SPACE}")
    return f":  {terms}  ({share}, {off})".replace("-", "\N{MINUS SIGN}")


def _draw_relative(axes: Axes, panel: Panel, cells: pd.DataFrame, reference: int) -> None:
    """Draw each training time divided by the time at the batch size `reference`, beside the
    published times.
    """
    for curve in panel.curves:
        axes.plot(curve.cells["relative_seconds"].dropna(), **curve.look)
    published = published_cells()["train_seconds"]
    axes.plot(published / published[reference], **PUBLISHED)
    drawing.log_axis(axes, cells, "local_batch", also=published.index)
    axes.set_ylim(bottom=0)


def _reference_batch(study: Study, cells: pd.DataFrame) -> int | None:
    """Return the largest batch size that both this study and the published study measured.

    The result is None if the two studies are not comparable or share fewer than two batch sizes.
    """
    if not analysis.comparable(study):
        return None
    measured = set(cells.index[cells["train_seconds"].notna()].get_level_values("local_batch"))
    common = measured & set(published_cells().index)
    return max(common) if len(common) > 1 else None
