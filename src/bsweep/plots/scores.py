"""The figure of final accuracy and loss by batch size, beside those of a published study if they
are comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    dots,
    draw_failed,
    draw_panel,
    measured_cells,
    published_cells,
)
from bsweep.plots.curves import (
    INK,
    Curve,
    alike_words,
    common,
    curves,
    handle,
    in_panels,
    panel_handles,
)
from bsweep.plots.epochs import PARTS, examples, part_name
from bsweep.plots.rows import numbered


def final_scores(study: Study) -> pd.DataFrame:
    """Return the table of a study's cells with their final losses and accuracies.

    It has no rows if no loss or accuracy of a completed run is known, or if no cell has learned.
    """
    cells = measured_cells(study)
    is_known = (
        cells[[f"{part}_{quantity}" for part in PARTS for quantity in ("accuracy", "loss")]]
        .notna()
        .any(axis=None)
    )
    return cells if is_known and drawing.has_learned(study) else cells[:0]


def accuracy_and_loss_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Draw the final accuracy and loss, in training and on the test set (or the validation
    examples), by batch size, or by workers if the study has one batch size.

    Published training values are added if they are comparable.
    """
    name, trained = along(cells), length_of(study)
    metrics = [f"{part}_{quantity}" for quantity in ("accuracy", "loss") for part in PARTS]
    metrics = [metric for metric in metrics if cells[metric].notna().any()]
    found = curves(study, cells, name, "num_workers", alike_in=metrics) if name else []
    published = (
        published_cells()
        if name == "local_batch" and analysis.comparable(study)
        else pd.DataFrame()
    )
    drawn = _as_lines(study, cells, name, found, metrics, published) if name else None
    figure, failed, guess, edges = drawn or _as_dots(study, cells, metrics)
    along_what = f"by {drawing.AXES[name][1]}" if name else "of each cell"
    on_test = f" and on {examples(study)}" if "test_loss" in metrics else ""
    shown = f"{along_what}, in training{on_test}"
    has_accuracy = not all(metric.endswith("loss") for metric in metrics)
    quantities, axes = ("Accuracy and loss", "losses on") if has_accuracy else ("Loss", "on")
    return drawing.captioned(
        figure,
        f"{quantities}{f' after {trained}' if trained else ''} {shown}, {axes} separate "
        "logarithmic axes.",
        alike_words(found),
        drawing.repeats(cells["n"], "point" if name else "row"),
        edges,
        drawing.chance_words(study, guess) if has_accuracy else "",
        ""
        if published.empty
        else "The published training accuracy and loss after 50 epochs are grey.",
        CROSSES if failed else "",
        in_panels(study, found, metrics[-1])[0].left_out if found else "",
    )


def _as_dots(
    study: Study, cells: pd.DataFrame, metrics: Sequence[str]
) -> tuple[Figure, list[Line2D], list[Line2D], str]:
    figure, panels, left_out = dots(cells, metrics)
    guess, is_cut, is_beyond = list[Line2D](), False, False
    for row, rows in panels:
        for axes, metric in zip(row, metrics, strict=True):
            guess = _score_axis(axes, study, cells, metric, flat=True) or guess
            at = numbered(rows)
            is_cut |= drawing.mark_cut(axes, at.index, at[metric], INK, flat=True)
            is_beyond |= drawing.mark_beyond(axes, at, metric, INK, flat=True)
    for axes, name in zip(panels[-1][0], _named(study, metrics), strict=True):
        axes.set_xlabel(name)
    drawing.legends(figure, (guess, common(cells)))
    return figure, [], guess, f"{_edges(is_cut, is_beyond)} {left_out}".strip()


def _as_lines(
    study: Study,
    cells: pd.DataFrame,
    along: str,
    found: Sequence[Curve],
    metrics: Sequence[str],
    published: pd.DataFrame,
) -> tuple[Figure, list[Line2D], list[Line2D], str]:
    """Draw the losses and accuracies over the batch size as lines, in a panel for each metric.

    The panels are two side by side. If the lines are in several groups, each group has a row of
    panels.

    Returns:
        The figure, the legend's entries for runs that did not complete and for guessing, and the
        sentences on marks on the edges.
    """
    panels = in_panels(study, found, metrics[-1])
    figure, grid = (
        drawing.grid(len(panels), len(metrics)) if len(panels) > 1 else _two_abreast(len(metrics))
    )
    guess, is_cut, is_beyond = list[Line2D](), False, False
    for axes, panel, metric in (
        (a, p, m)
        for row, p in zip(grid, panels, strict=True)
        for a, m in zip(row, metrics, strict=True)
    ):
        draw_panel(axes, panel, metric)
        guess = _scale(axes, study, cells, metric, along, published) or guess
        for curve in panel.curves:
            of, color = curve.cells, curve.look["color"]
            is_cut |= drawing.mark_cut(axes, of.index, of[metric], color)
            is_beyond |= drawing.mark_beyond(axes, of, metric, color)
    if len(panels) > 1:
        drawing.name_panels(
            [panel.title for panel in panels], grid, drawing.AXES[along][0], _named(study, metrics)
        )
    for axes, name in zip(grid[0], _named(study, metrics), strict=True):
        axes.set_ylabel(name)
    failed = draw_failed([axes for row in grid for axes in row], found)
    stars = handle(PUBLISHED, "published, 4 workers, 50 epochs, n = 1 (training only)")
    entries = [*panel_handles(panels), *guess, *([stars] if len(published) else []), *failed]
    drawing.legends(figure, (entries, common(cells)))
    return figure, failed, guess, _edges(is_cut, is_beyond)


def _edges(is_cut: bool, is_beyond: bool) -> str:
    """Return the sentences of a caption on marks on the edges of panels."""
    return " ".join([*[drawing.CUT_WORDS] * is_cut, *[drawing.BEYOND_WORDS] * is_beyond])


def _scale(
    axes: Axes, study: Study, cells: pd.DataFrame, metric: str, along: str, published: pd.DataFrame
) -> list[Line2D]:
    """Set both axes of a panel, and draw the published values of the panel's metric if there are
    any.

    Returns:
        The legend's entry for guessing.
    """
    if metric.startswith("train") and len(published):
        axes.plot(published[metric], **PUBLISHED)
    shown = metric.replace("test_accuracy", "train_accuracy")  # accuracies share a scale
    guess = _score_axis(axes, study, cells, metric, published.get(shown, ()))
    drawing.log_axis(axes, cells, along, published.index)
    return guess


def _two_abreast(num_parts: int) -> tuple[Figure, list[list[Axes]]]:
    figure, grid = drawing.grid((num_parts + 1) // 2, min(2, num_parts))
    return figure, [[axes for row in grid for axes in row][:num_parts]]


def _named(study: Study, metrics: Sequence[str]) -> list[str]:
    return [
        f"{part_name(study, part)} {quantity}"
        for part, _, quantity in (metric.partition("_") for metric in metrics)
    ]


def _score_axis(
    axes: Axes,
    study: Study,
    cells: pd.DataFrame,
    metric: str,
    also: Iterable[float] = (),
    flat: bool = False,
) -> list[Line2D]:
    """Set the scale of the axis that shows a loss or an accuracy.

    Accuracies in training and on the test set share a scale, with the accuracy of guessing. Cells
    that have not learned may lie beyond it.
    """
    if metric.endswith("loss"):
        points = cells[f"{metric}_points"].explode().dropna().astype(float)
        ends = drawing.interval_ends(cells, metric)
        drawing.loss_axis(axes, [*points, *also], ends, flat, few=flat)
        return []
    # A cell at chance would flatten all others.
    shown = cells[cells["has_learned"].fillna(True).astype(bool)]
    both = [drawing.drawn_values(shown, f"{part}_accuracy") for part in PARTS]
    limits = drawing.accuracy_limits(study, [*both[0], *both[1], *also])
    (axes.set_xlim if flat else axes.set_ylim)(limits)
    return drawing.chance_line(axes, study, flat)
