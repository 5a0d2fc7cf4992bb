"""Figures over batch sizes, or over workers where there is one batch size, or a dot for each cell where one of both.

Seconds to a target accuracy, training time, loss and accuracy, speed and speed-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.statistics import over_seeds, seed_points
from bsweep.plots import drawing
from bsweep.plots.curves import (
    Curve,
    Panel,
    alike_words,
    common,
    curves,
    handle,
    handles,
    in_panels,
    panel_handles,
    readable,
)
from bsweep.plots.epochs import PARTS
from bsweep.plots.rows import draw_dots, few_enough, numbered, panels_of_rows

PUBLISHED: dict[str, Any] = {"color": "#7A7A7A", "marker": "*", "linestyle": (0, (4, 2))}
_CROSSES = "Crosses on the lower edge are runs that did not complete."


def _cells(study: Study) -> pd.DataFrame:
    """The cells of a study of which something was measured."""
    cells = analysis.cells(study.runs)
    return cells if (cells["n"] > 0).any() else cells[:0]


def _along(cells: pd.DataFrame) -> str:
    """What runs along the horizontal axis: the batch sizes, or the workers; nothing where there is one of both."""
    varying = analysis.varying(cells)
    return next((name for name in ("local_batch", "num_workers") if name in varying), "")


def _times_to_target(study: Study) -> pd.DataFrame:
    """By cell: `seconds` over the seeds that reach the target, `n` of them, and `missed`, those that do not."""
    table = analysis.time_to_target(study)
    if not table["reached"].any():
        return table[:0]
    keys = [name for name in analysis.levels(table) if name != "seed"]
    runs = table.reset_index()
    cells = over_seeds(runs[runs["reached"]], keys, ["seconds"]).join(seed_points(runs, keys, ["seconds"]), how="right")
    missed = (~table["reached"]).groupby(level=keys).sum()
    return cells.assign(n=cells["n"].fillna(0).astype(int), missed=missed, target=table["target"].iloc[0])


@drawing.drawn_from(_times_to_target)
def time_to_target(study: Study, table: pd.DataFrame) -> Figure:
    """Training time to a target accuracy by batch size, with those that do not reach it on the edge."""
    along, target = _along(_cells(study)), 100 * table["target"].iloc[0]
    label = f"Training time to {target:.0f} % test accuracy (s)"
    highest = 1.08 * drawing.extent(table["seconds_points"].explode().dropna().astype(float))[1]
    missed: list[Line2D] = []
    if along:
        found = curves(table, along, "num_workers")
        panels = in_panels(found)
        figure, grid = drawing.grid(len(panels), 1, 2.6)
        for (axes,), panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, "seconds")
            missed = _mark_missed(axes, panel.curves) or missed
            drawing.log_axis(axes, table, along)
            axes.set_ylim(0, highest)
        drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[along][0], [label])
        drawing.legends(figure, ([*panel_handles(panels), *missed], common(table)))
    else:
        shown, _ = few_enough(table)
        figure, rows_of_panels = panels_of_rows(shown, 1)
        for (axes,), rows in rows_of_panels:
            draw_dots(axes, rows, "seconds")
            axes.set_xlim(0, highest)
            places = numbered(rows).index[rows["missed"] > 0]
            missed = _draw_missed(axes, [1.0] * len(places), list(places), drawing.GRAY, flat=True) or missed
        axes.set_xlabel(label)
        drawing.legends(figure, (missed, common(table)))
    return drawing.captioned(
        figure,
        f"Seconds of training until a test accuracy of {target:.0f} %, "
        f"{100 * analysis.TARGET_SHARE:.0f} % of the best cell's final one, interpolated between evaluations.",
        drawing.repeats(table["n"]),
        "Open triangles on the edge are seeds that did not reach it." if missed else "",
    )


def _mark_missed(axes: Axes, curves: Sequence[Curve]) -> list[Line2D]:
    """Open triangles on the upper edge, beside each other, and their entry for the legend, if any."""
    missed = [(curve, place) for curve in curves for place in curve.cells.index[curve.cells["missed"] > 0]]
    entry: list[Line2D] = []
    for (curve, _), beside in zip(missed, _beside([place for _, place in missed]), strict=True):
        entry = _draw_missed(axes, [beside], [1.0], curve.look["color"])
    return entry


def _draw_missed(axes: Axes, x: list[float], y: list[float], color: str, flat: bool = False) -> list[Line2D]:
    if not x:
        return []  # a line without points would still take room
    marker: dict[str, Any] = {"marker": ">" if flat else "^", "markersize": 7, "markerfacecolor": "white"}
    frame = axes.get_yaxis_transform() if flat else axes.get_xaxis_transform()
    axes.plot(x, y, linestyle="", color=color, transform=frame, clip_on=False, zorder=5, **marker)
    return [Line2D([], [], linestyle="", color="#444444", label="not reached", **marker)]


def _beside(places: Sequence[float]) -> list[float]:
    """Places on a log axis, moved apart where several are the same."""
    sharing, seen = Counter(places), Counter[float]()
    moved = []
    for place in places:
        moved.append(place * 1.1 ** (seen[place] - (sharing[place] - 1) / 2))
        seen[place] += 1
    return moved


def _draw_panel(axes: Axes, panel: Panel, metric: str) -> None:
    for curve in panel.others:
        axes.plot(curve.cells[metric].dropna(), **drawing.BEHIND)
    for curve in panel.curves:
        drawing.draw_line(axes, curve.look, curve.cells, metric)


def _dots(table: pd.DataFrame, metrics: Sequence[str]) -> tuple[Figure, list[tuple[list[Axes], pd.DataFrame]], str]:
    """A row of dots for each cell, a panel for each metric; a sentence if cells are left out."""
    shown, left_out = few_enough(table)
    figure, panels = panels_of_rows(shown, len(metrics))
    for row, rows in panels:
        for axes, metric in zip(row, metrics, strict=True):
            draw_dots(axes, rows, metric)
    return figure, panels, left_out


@drawing.drawn_from(_cells)
def time_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Training time by batch size with the fit a + c/b; beside the published times where these are comparable.

    That comparison is of times over the time at the largest batch size that both measured: epochs and hardware,
    which differ, cancel.
    """
    along, label = _along(cells), ", ".join(filter(None, ("Training time (s)", drawing.length_of(study))))
    if not along:
        return _one_quantity(cells, "train_seconds", label, "Training time of each cell.")
    fits = readable(study, analysis.seconds_fits(study.runs)) if along == "local_batch" else pd.DataFrame()
    reference = _reference_batch(study, cells)
    cells["relative_seconds"] = analysis.relative_seconds(cells, reference) if reference else np.nan
    found = curves(cells, along, "num_workers")
    panels = in_panels(found)
    figure, grid = drawing.grid(len(panels), 2 if reference else 1, 2.6)
    failed: list[Line2D] = []
    for row, panel in zip(grid, panels, strict=True):
        _draw_panel(row[0], panel, "train_seconds") if fits.empty else _draw_fitted(row[0], panel, fits)
        drawing.log_axis(row[0], cells, along)
        _from_zero(row[0], cells, "train_seconds")
        failed = _draw_failed([row[0]], panel.curves) or failed
        if reference:
            _draw_relative(row[1], panel, cells, reference)
    names = [label, f"Training time relative to\nthat of local batch {reference}"][: len(grid[0])]
    drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[along][0], names)
    entries = panel_handles(panels)
    if len(found) == len(entries) and not fits.empty:
        keys = [tuple(curve.key.values()) for curve in found]
        entries = [
            handle(curve.look, f"{curve.label}{_formula(fits, key)}") for curve, key in zip(found, keys, strict=True)
        ]
    if reference:
        published = analysis.seconds_fits(analysis.published().runs)
        formula = _formula(published, published.index[0])
        entries.append(handle(PUBLISHED, f"published, 4 workers, 50 epochs, n = 1{formula}"))
    title = "; ".join(filter(None, (common(cells), "b: local batch" if not fits.empty else "")))
    drawing.legends(figure, ([*entries, *failed], title))
    fitted = "" if fits.empty else ", with the least-squares fit time = a + c / b"
    return drawing.captioned(
        figure,
        f"Training time by {drawing.AXES[along][1]}{fitted}.",
        drawing.repeats(cells["n"]),
        f"Right: relative to the time of local batch {reference}, beside the published times in grey, of 50 epochs."
        if reference
        else "",
        _CROSSES if failed else "",
    )


def _one_quantity(cells: pd.DataFrame, metric: str, label: str, sentence: str) -> Figure:
    """A row for each cell with its value on one axis from zero."""
    figure, panels, left_out = _dots(cells, [metric])
    for (axes,), _ in panels:
        points = cells[f"{metric}_points"].explode().dropna().astype(float)
        axes.set_xlim(0, 1.05 * drawing.extent(points)[1])
    axes.set_xlabel(label)
    drawing.legends(figure, ([], common(cells)))
    return drawing.captioned(figure, sentence, drawing.repeats(cells["n"], "row"), left_out)


def _draw_fitted(axes: Axes, panel: Panel, fits: pd.DataFrame) -> None:
    """Training times, with the line of their fit where there is one."""
    for curve in panel.curves:
        key = tuple(curve.key.values())
        is_fitted = key in fits.index
        look = {**curve.look, "linestyle": ""} if is_fitted else curve.look
        drawing.draw_line(axes, look, curve.cells, "train_seconds")
        if is_fitted:
            batches = np.geomspace(*drawing.extent(curve.cells["train_seconds"].dropna().index), 200)
            seconds = fits.loc[key, "fixed_seconds"] + fits.loc[key, "batch_seconds"] / batches
            axes.plot(batches, seconds, **{**curve.look, "marker": ""})


def _formula(fits: pd.DataFrame, key: Any) -> str:
    """A fit to times by batch size in numbers, with the variance it explains, and how far the times are off it."""
    if key not in fits.index:
        return ""
    fit = fits.loc[key]
    a, c = fit["fixed_seconds"], fit["batch_seconds"]
    terms = f"{drawing.number(a)} {'-' if c < 0 else '+'} {drawing.number(abs(c))} / b"
    off = f"times {round(100 * fit['lowest_residual']):+d} to {round(100 * fit['highest_residual']):+d} % off"
    share = f"R² = {fit['r_squared']:.4f}".replace(" ", "\N{NO-BREAK SPACE}")  # a legend breaks long lines
    return f":  {terms}  ({share}, {off})".replace("-", "\N{MINUS SIGN}")


def _draw_relative(axes: Axes, panel: Panel, cells: pd.DataFrame, reference: int) -> None:
    """Times over the time of one batch size, beside the published ones."""
    for curve in panel.curves:
        axes.plot(curve.cells["relative_seconds"].dropna(), **curve.look)
    published = _published_cells()["train_seconds"]
    axes.plot(published / published[reference], **PUBLISHED)
    drawing.log_axis(axes, cells, "local_batch", also=published.index)
    axes.set_ylim(bottom=0)


def _scores(study: Study) -> pd.DataFrame:
    cells = _cells(study)
    return cells if drawing.has_learned(study) else cells[:0]


@drawing.drawn_from(_scores)
def accuracy_and_loss_by_batch(study: Study, cells: pd.DataFrame) -> Figure:
    """Final accuracy and loss by batch size, in training and on the test set; with the published ones if comparable."""
    along, trained = _along(cells), drawing.length_of(study)
    metrics = [f"{part}_{quantity}" for quantity in ("accuracy", "loss") for part in PARTS]
    metrics = [metric for metric in metrics if cells[metric].notna().any()]
    found = curves(cells, along, "num_workers", alike_in=metrics) if along else []
    published = _published_cells() if along == "local_batch" and analysis.comparable(study) else pd.DataFrame()
    drawn = _scores_along(study, cells, along, found, metrics, published) if along else None
    figure, failed, is_cut = drawn or _scores_as_dots(study, cells, metrics)
    where = f"by {drawing.AXES[along][1]}" if along else "of each cell"
    shown = f"{where}, in training{' and on the test set' if 'test_loss' in metrics else ''}"
    return drawing.captioned(
        figure,
        f"Accuracy and loss{f' after {trained}' if trained else ''} {shown}, losses on logarithmic axes of their own.",
        alike_words(found),
        drawing.repeats(cells["n"], "point" if along else "row"),
        drawing.CUT_WORDS if is_cut else "",
        "" if published.empty else "In grey the published training accuracy and loss, after 50 epochs.",
        _CROSSES if failed else "",
    )


def _scores_as_dots(study: Study, cells: pd.DataFrame, metrics: Sequence[str]) -> tuple[Figure, list[Line2D], bool]:
    figure, panels, _ = _dots(cells, metrics)
    guess, is_cut = list[Line2D](), False
    for row, rows in panels:
        for axes, metric in zip(row, metrics, strict=True):
            guess = _score_axis(axes, study, cells, metric, flat=True) or guess
            is_cut |= drawing.mark_cut(axes, range(len(rows)), rows[metric], drawing.GRAY, flat=True)
    for axes, name in zip(panels[-1][0], _named(metrics), strict=True):
        axes.set_xlabel(name)
    drawing.legends(figure, (guess, common(cells)))
    return figure, [], is_cut


def _scores_along(
    study: Study,
    cells: pd.DataFrame,
    along: str,
    found: Sequence[Curve],
    metrics: Sequence[str],
    published: pd.DataFrame,
) -> tuple[Figure, list[Line2D], bool]:
    """A panel for each metric, two abreast, or all for each group of lines; what failed, and whether a loss is cut."""
    panels = in_panels(found)
    figure, grid = drawing.grid(len(panels), len(metrics)) if len(panels) > 1 else _two_abreast(len(metrics))
    guess, is_cut = list[Line2D](), False
    for row, panel in zip(grid, panels, strict=True):
        for axes, metric in zip(row, metrics, strict=True):
            _draw_panel(axes, panel, metric)
            if metric.startswith("train") and len(published):
                axes.plot(published[metric], **PUBLISHED)
            shown = metric.replace("test_accuracy", "train_accuracy")  # accuracies share a scale
            guess = _score_axis(axes, study, cells, metric, published.get(shown, ())) or guess
            drawing.log_axis(axes, cells, along, published.index)
            for curve in panel.curves:
                is_cut |= drawing.mark_cut(axes, curve.cells.index, curve.cells[metric], curve.look["color"])
    if len(panels) > 1:
        drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[along][0], _named(metrics))
    for axes, name in zip(grid[0], _named(metrics), strict=True):
        axes.set_ylabel(name)
    failed = _draw_failed([axes for row in grid for axes in row], found)
    stars = handle(PUBLISHED, "published, 4 workers, 50 epochs, n = 1 (training only)")
    entries = [*panel_handles(panels), *guess, *([stars] if len(published) else []), *failed]
    drawing.legends(figure, (entries, common(cells)))
    return figure, failed, is_cut


def _two_abreast(num_parts: int) -> tuple[Figure, list[list[Axes]]]:
    figure, grid = drawing.grid((num_parts + 1) // 2, min(2, num_parts))
    return figure, [[axes for row in grid for axes in row][:num_parts]]


def _named(metrics: Sequence[str]) -> list[str]:
    return [f"{PARTS[part]} {quantity}" for part, _, quantity in (metric.partition("_") for metric in metrics)]


def _score_axis(
    axes: Axes, study: Study, cells: pd.DataFrame, metric: str, also: Iterable[float] = (), flat: bool = False
) -> list[Line2D]:
    """The scale of a loss, or that of accuracies in training and on the test set with what guessing reaches."""
    if metric.endswith("loss"):
        points = cells[f"{metric}_points"].explode().dropna().astype(float)
        drawing.loss_axis(axes, [*points, *also], flat, few=flat)
        return []
    both = [f"{part}_accuracy_points" for part in PARTS]
    limits = drawing.accuracy_limits(study, [*pd.concat([cells[name] for name in both]).explode().dropna(), *also])
    (axes.set_xlim if flat else axes.set_ylim)(limits)
    return drawing.chance_line(axes, study, flat)


@drawing.drawn_from(_cells)
def throughput_and_speedup(study: Study, cells: pd.DataFrame) -> Figure:
    """Examples per second by batch size, and the speed-up over workers at equal local batch beside the ideal one.

    With parameter servers, by workers: figure 2 of the parameter-sharding paper.
    """
    along, scaling = _along(cells), readable(study, analysis.scaling(_cells(study)))
    label = "Examples per second, all workers"
    if not along:
        return _one_quantity(cells, "images_per_second", label, "Examples per second, all workers together.")
    by_batch = along == "local_batch"
    panels = in_panels(curves(cells, along, "num_workers" if by_batch else "variant"))
    figure, grid = drawing.grid(len(panels), 1 if scaling.empty else 2, 2.6)
    failed: list[Line2D] = []
    speedups: list[Curve] = []
    for row, panel in zip(grid, panels, strict=True):
        _draw_panel(row[0], panel, "images_per_second")
        drawing.log_axis(row[0], cells, along)
        _from_zero(row[0], cells, "images_per_second")
        failed = _draw_failed([row[0]], panel.curves) or failed
        if not scaling.empty:
            of_panel = _of_panel(scaling, panel)
            lines = curves(of_panel, "num_workers", "local_batch" if by_batch else "variant", whole=cells)
            _draw_speedup(row[1], of_panel, lines)
            speedups += lines
    names = [label, _speedup_label(scaling)][: len(grid[0])]
    drawing.name_panels([panel.title for panel in panels], grid, drawing.AXES[along][0], names)
    for row in grid if speedups else ():
        row[1].set_xlabel("Workers")
    drawing.legends(figure, *_speed_legends(panels, speedups, failed, common(cells)))
    return drawing.captioned(
        figure,
        f"Examples per second, all workers together, by {drawing.AXES[along][1]}.",
        "" if scaling.empty else "Right: speed-up over workers at equal local batch (weak scaling).",
        analysis.unequal_threads(_cells(study)),
        drawing.repeats(cells["n"]),
        _CROSSES if failed else "",
    )


def _of_panel(scaling: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """The speed-ups of the cells of a panel."""
    names = [name for name in panel.curves[0].key if name != "num_workers"]
    keys = {tuple(curve.key[name] for name in names) for curve in panel.curves}
    places = zip(*(scaling.index.get_level_values(name) for name in names), strict=True)
    return scaling[[place in keys for place in places]]


def _draw_speedup(axes: Axes, scaling: pd.DataFrame, curves: Sequence[Curve]) -> None:
    """Speed-up over workers, and the ideal one."""
    workers, bases = sorted(set(scaling.index.get_level_values("num_workers"))), sorted(set(scaling["base_workers"]))
    for base in bases:
        axes.plot([base, workers[-1]], [1, workers[-1] / base], **_IDEAL)
    for curve in curves:
        axes.plot(curve.cells["speedup"], **curve.look)
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)


def _speedup_label(scaling: pd.DataFrame) -> str:
    bases = sorted(set(scaling["base_workers"])) if len(scaling) else []
    return f"Speed-up over {' or '.join(map(str, bases))} worker{'s' * (bases != [1])}\nat equal local batch"


_IDEAL: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (1, 2)), "linewidth": 1.2}


def _speed_legends(
    panels: Sequence[Panel], speedups: Sequence[Curve], failed: Sequence[Line2D], title: str
) -> list[tuple[list[Line2D], str]]:
    """The legend of the speeds and, where their lines mean something else, one of the speed-ups."""
    entries = [*panel_handles(panels), *failed]
    if not speedups:
        return [(entries, title)]
    named = {entry.get_label() for entry in entries}
    others = {entry.get_label(): entry for entry in handles(speedups) if entry.get_label() not in named}
    ideal = handle(_IDEAL, "ideal")
    if not others:
        return [([*entries, ideal], title)]
    batches = "Local batch (per worker)" if speedups[0].colored_by == "local_batch" else ""
    return [(entries, title), ([*others.values(), ideal], batches)]


def _draw_failed(panels: Sequence[Axes], curves: Sequence[Curve]) -> list[Line2D]:
    """Crosses on the lower edge where runs did not complete, and their entry for the legend, if any."""
    failed = [(curve, batch) for curve in curves for batch in curve.cells.index[curve.cells["other_statuses"] != ""]]
    look: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
    for (curve, _), place in zip(failed, _beside([batch for _, batch in failed]), strict=True):
        for axes in panels:
            frame: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
            axes.plot([place], [0.0], color=curve.look["color"], **frame, **look)
    said = [text for curve in curves for row in curve.cells["other_statuses"] for text in row.split(",") if text]
    statuses = {text.lstrip("0123456789 ").replace("_", " ") for text in said}
    label = f"run not completed: {', '.join(sorted(statuses))}"
    return [Line2D([], [], color="#444444", label=label, **look)] if statuses else []


def _published_cells() -> pd.DataFrame:
    cells = analysis.cells(analysis.published().runs)
    return cells.reset_index(analysis.levels(cells)[:-1])


def _reference_batch(study: Study, cells: pd.DataFrame) -> int | None:
    """The largest batch size that both studies measured, if they are comparable and share two at least."""
    if not analysis.comparable(study):
        return None
    measured = set(cells.index[cells["n"] > 0].get_level_values("local_batch"))
    common = measured & set(_published_cells().index)
    return max(common) if len(common) > 1 else None


def _from_zero(axes: Axes, cells: pd.DataFrame, metric: str) -> None:
    """Show all seeds, and of intervals that are far wider a part."""
    highest = drawing.extent(cells[f"{metric}_points"].explode().dropna().astype(float))[1]
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.08 * highest), 1.5 * highest))
