"""Figures over the course of training: loss and accuracy by epoch, accuracy by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.plots import drawing
from bsweep.plots.curves import (
    Curve,
    Panel,
    alike_words,
    common,
    curves,
    handle,
    in_panels,
    panel_handles,
)

PARTS = ("train", "test")
_INCOMPLETE = (
    "Dotted lines are runs that did not complete; a cross marks their last recorded epoch."
)
# The time axis is logarithmic if the longest line takes more than this many times the shortest.
_WIDE = 8
_MIN_EPOCHS = 3  # The tables have two points of a course.


def part_name(study: Study, part: str) -> str:
    """Return the word for a part of the data in a label, such as `Validation` for the examples of
    the evaluations.
    """
    return "Training" if part == "train" else evaluated_part(study.runs).capitalize()


def examples(study: Study) -> str:
    """Return in words on which examples a study was evaluated, such as `the test set`."""
    of = {"test": "the test set", "validation": "the validation examples"}
    return of.get(evaluated_part(study.runs), "the test set or the validation examples")


def accuracies_by_time(study: Study) -> pd.DataFrame:
    table = analysis.accuracy_by_time(study)
    is_enough = table.index.get_level_values("epoch").nunique() >= _MIN_EPOCHS
    return table if is_enough and drawing.has_learned(study) else table[:0]


def accuracy_by_time(study: Study, table: pd.DataFrame) -> Figure:
    """Draw the test accuracy (or that on the validation examples) over the seconds of training, a
    line for each cell.
    """
    name = f"{part_name(study, 'test')} accuracy"
    found = curves(study, table, "epoch", "local_batch")
    panels = in_panels(study, found, "test_accuracy")
    figure, grid = drawing.grid(len(panels), 1, 2.6)
    low, high = drawing.extent(table["elapsed_seconds"])
    ends = [curve.cells["elapsed_seconds"].iloc[-1] for curve in found]
    is_wide = max(ends) > _WIDE * min(ends)
    for (axes,), panel in zip(grid, panels, strict=True):
        for curve in panel.others:
            axes.plot(
                curve.cells["elapsed_seconds"], curve.cells["test_accuracy"], **drawing.BEHIND
            )
        for curve in panel.curves:
            _draw_course(axes, curve, curve.cells["elapsed_seconds"], "test_accuracy")
        axes.set_ylim(drawing.accuracy_limits(study, table["test_accuracy"]))
        guess = drawing.chance_line(axes, study)
        axes.set_xscale("log" if is_wide else "linear")
        axes.set_xlim(*((low / 1.15, high * 1.15) if is_wide else (0, 1.04 * high)))
        if is_wide:
            drawing.plain_log_ticks(axes.xaxis, low, high, few=len(panels) > 3)
    drawing.name_panels([panel.title for panel in panels], grid, "Training time (s)", [name])
    drawing.legends(figure, _legend(panels, table, guess))
    return drawing.captioned(
        figure,
        f"{name} at the end of each epoch against the training time until then, without "
        "evaluations.",
        _repeated(table),
        drawing.chance_words(study, guess),
        panels[0].left_out,
    )


def losses(study: Study) -> pd.DataFrame:
    return _courses(study, "loss")


def accuracies(study: Study) -> pd.DataFrame:
    table = _courses(study, "accuracy")
    return table if drawing.has_learned(study) else table[:0]


def _courses(study: Study, metric: str) -> pd.DataFrame:
    """Return the table of the loss or the accuracy by epoch.

    It has no rows if there are fewer than three epochs or if nothing was measured.
    """
    table = analysis.epoch_curves(study)
    if table.empty or table.index.get_level_values("epoch").nunique() < _MIN_EPOCHS:
        return table[:0]
    return (
        table if table[[f"{part}_{metric}" for part in PARTS]].notna().any(axis=None) else table[:0]
    )


def loss_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw training and test loss by epoch, a line for each cell; variants with equal values share
    one.

    The figure shows what figure 2 of the published batch-size study shows.
    """
    return _by_epoch(study, table, "loss")


def accuracy_by_epoch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw training and test accuracy by epoch, a line for each cell; variants with equal values
    share one.

    The figure shows what figure 3 of the published batch-size study shows.
    """
    return _by_epoch(study, table, "accuracy")


def _by_epoch(study: Study, table: pd.DataFrame, metric: str) -> Figure:
    """Draw the loss or the accuracy by epoch, with a panel for training and one for the test set
    (or the validation examples) in each row; a part without values has no panels.
    """
    parts = [part for part in PARTS if table[f"{part}_{metric}"].notna().any()]
    columns = [f"{part}_{metric}" for part in parts]
    found = curves(study, table, "epoch", "local_batch", alike_in=columns)
    panels = in_panels(study, found, columns[-1], apart=True)
    figure, grid = drawing.grid(len(panels), len(parts))
    is_cut, guess = False, list[Line2D]()
    for row, panel in zip(grid, panels, strict=True):
        for axes, column in zip(row, columns, strict=True):
            for curve in panel.others:
                axes.plot(curve.cells[column], **drawing.BEHIND)
            for curve in panel.curves:
                _draw_course(axes, curve, curve.cells.index, column)
            axes.xaxis.set_major_locator(
                MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10], nbins=6)
            )
            if metric == "loss":
                drawing.loss_axis(axes, table[column])
                for curve in panel.curves:
                    is_cut |= drawing.mark_cut(
                        axes, curve.cells.index, curve.cells[column], curve.look["color"]
                    )
            else:
                axes.set_ylim(
                    drawing.accuracy_limits(study, pd.concat([table[column] for column in columns]))
                )
                guess = drawing.chance_line(axes, study)
    drawing.name_panels(
        [panel.title for panel in panels],
        grid,
        "Epoch",
        [f"{part_name(study, part)} {metric}" for part in parts],
    )
    drawing.legends(figure, _legend(panels, table, guess))
    on_test = f", and on {examples(study)}" if "test" in parts else ""
    axis = ", each on its own logarithmic axis" if metric == "loss" and on_test else ""
    return drawing.captioned(
        figure,
        f"{metric.capitalize()} by epoch: mean over an epoch's training examples{on_test}{axis}.",
        alike_words(found),
        f"{_repeated(table)} {panels[0].left_out}".strip(),
        "" if table["completed"].all() else _INCOMPLETE,
        drawing.CUT_WORDS if is_cut else "",
        drawing.chance_words(study, guess) if metric == "accuracy" else "",
    )


def _draw_course(axes: Axes, curve: Curve, places: Any, metric: str) -> None:
    """Draw one cell's loss or accuracy over time as a line, with a band for the interval over its
    seeds.

    The line is dotted and ends at a cross if no run completed.
    """
    known = curve.cells[metric].notna().to_numpy()
    cells, places = curve.cells[known], places[known]
    if cells.empty:
        return
    completed = bool(cells.get("completed", pd.Series(True)).all())
    look = {**curve.look, "linestyle": curve.look["linestyle"] if completed else ":"}
    axes.plot(places, cells[metric], **look, markevery=max(1, math.ceil(len(cells) / 8)))
    half = cells[f"{metric}_ci95"]
    if half.notna().any():
        low, high = cells[metric] - half, cells[metric] + half
        axes.fill_between(places, low, high, color=look["color"], alpha=0.12, linewidth=0)
    if not completed:
        last: dict[str, Any] = {
            "marker": "x",
            "markersize": 8,
            "markeredgewidth": 1.8,
            "color": look["color"],
        }
        axes.plot(places[-1:], cells[metric].iloc[-1:], **last)


def _repeated(table: pd.DataFrame) -> str:
    counts = table["n"][table.get("completed", pd.Series(True, index=table.index))]
    if counts.empty:
        return ""
    told = (
        "Each line is one run: n = 1."
        if counts.max() == 1
        else f"Lines are means over n = {drawing.span(counts)} seeds."
    )
    bands = counts.max() >= analysis.MIN_SEEDS_FOR_INTERVAL
    return (
        told
        + " Bands are 95 % t-intervals over seeds, cut where they are wider than the panel."
        * bool(bands)
    )


def _legend(
    panels: Sequence[Panel], table: pd.DataFrame, guess: Sequence[Line2D]
) -> tuple[list[Any], str]:
    entries = [*panel_handles(panels), *guess]
    if not table.get("completed", pd.Series(True)).all():
        entries.append(
            handle({"color": "#444444", "marker": "x", "linestyle": ":"}, "incomplete run")
        )
    colored_by = panels[0].curves[0].colored_by
    if colored_by == "local_batch" and not panels[0].others:
        return entries, drawing.BATCH_LABEL
    return entries, common(table)
