"""Figures over batch sizes, workers and ways to exchange: time, loss, accuracy, speed, and what a step is spent on."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots import drawing

_PUBLISHED: dict[str, Any] = {"color": "#7A7A7A", "marker": "*", "linestyle": (0, (4, 2))}
_MAX_ROWS = 3  # of panels by epoch, before series stand side by side
_CUT_AT_MEDIANS = 3  # losses by epoch above this many times the median peak leave the panel
_REPEATED = (
    "Markers are means over seeds and small circles single runs; bars are 95 % t-intervals, cut where they are wider "
    "than the panel."
)
_CROSSES = "Crosses on the lower edge are runs that did not complete."


@rc_context(drawing.STYLE)
def loss_by_epoch(study: Study) -> Figure:
    """Training and test loss by epoch, one line a batch size: figure 2 of the first paper."""
    return _by_epoch(study, "loss")


@rc_context(drawing.STYLE)
def accuracy_by_epoch(study: Study) -> Figure:
    """Training and test accuracy by epoch, one line a batch size: figure 3 of the first paper."""
    return _by_epoch(study, "accuracy")


@rc_context(drawing.STYLE)
def time_by_batch(study: Study) -> Figure:
    """Training time by batch size with the fit a + c/b; beside the published times where these are comparable.

    That comparison is of times over the time at the largest batch size that both measured: epochs and hardware,
    which differ, cancel.
    """
    cells, fits = analysis.cells(study.runs), analysis.seconds_fits(study.runs)
    reference, along = _reference_batch(study, cells), _along(study, cells)
    if reference:
        cells["relative_seconds"] = analysis.relative_seconds(cells, reference)
    curves = drawing.curves(cells, along, "num_workers", study.runs)
    figure, axes = drawing.row_of_panels(2 if reference else 1)
    is_fitted = along == "local_batch" and not fits.empty
    handles = [_draw_fitted(axes[0], curve, fits if is_fitted else fits[:0]) for curve in curves]
    handles = handles if is_fitted else drawing.handles(curves)
    drawing.log_axis(axes[0], cells, along)
    axes[0].set_ylabel(", ".join(filter(None, ("Training time (s)", drawing.length_of(study)))))
    _from_zero(axes[0], _completed(study, "train_seconds"))
    if reference:
        for curve in curves:
            axes[1].plot(curve.cells["relative_seconds"].dropna(), **curve.look)
        handles.append(_draw_published_seconds(axes[1], reference))
        drawing.log_axis(axes[1], cells, along, also=_published_cells().index)
        axes[1].set_ylabel(f"Training time relative to\nthat of local batch {reference}")
        axes[1].set_ylim(bottom=0)
    failed = _draw_failed([axes[0]], curves)
    title = "; ".join(filter(None, (drawing.legend_title(cells), "b: local batch" if is_fitted else "")))
    drawing.legends(figure, ([*handles, *failed], title))
    relative = (
        f"Right: relative to the time of local batch {reference}, beside the published times in grey, of 50 epochs."
    )
    return drawing.captioned(
        figure,
        f"Training time by {drawing.AXES[along][1]}"
        f"{', with the least-squares fit time = a + c / b' if is_fitted else ''}.",
        _runs_per_point(cells),
        relative if reference else "",
        _CROSSES if failed else "",
    )


@rc_context(drawing.STYLE)
def accuracy_and_loss_by_batch(study: Study) -> Figure:
    """Final accuracy and loss by batch size, in training and on the test set; with the published ones if comparable."""
    cells = analysis.cells(study.runs)
    along = _along(study, cells)
    curves = drawing.curves(cells, along, "num_workers", study.runs)
    parts = _parts(cells, "loss")
    figure = Figure(figsize=(7.0, 0.8 + 2.2 * len(parts)), layout="constrained")
    grid = figure.subplots(len(parts), 2, squeeze=False, sharex=True, sharey="col")
    handles = drawing.handles(curves)
    comparable = analysis.comparable(study)
    for column, metric in enumerate(("accuracy", "loss")):
        for row, part in enumerate(parts):
            axes = grid[row, column]
            for curve in curves:
                _draw_points(axes, curve, f"{part}_{metric}", joined=True)
            axes.set(ylabel=f"{_PARTS[part]} {metric}", xlabel="")
            also = _published_cells().index if comparable else ()
            drawing.log_axis(axes, cells, along, also, named=part == parts[-1])
        values = pd.concat([_completed(study, f"{part}_{metric}") for part in parts])
        if comparable:
            published = _published_cells()[f"train_{metric}"]
            grid[0, column].plot(published, **_PUBLISHED)
            values = pd.concat([values, published])
        grid[0, column].set_ylim(_limits(values, metric))
    if comparable:
        handles.append(drawing.handle(_PUBLISHED, "published, 4 workers, 50 epochs, n = 1 (training only)"))
    failed = _draw_failed(list(grid.flat), curves)
    trained = drawing.length_of(study)
    drawing.legends(
        figure,
        (
            [*handles, *failed],
            ", ".join(filter(None, (f"after {trained}" * bool(trained), drawing.legend_title(cells)))),
        ),
    )
    return drawing.captioned(
        figure,
        f"Accuracy and loss{f' after {trained}' if trained else ''} by {drawing.AXES[along][1]}, in training"
        f"{' and on the test set' if 'test' in parts else ''}.",
        _runs_per_point(cells),
        "In grey the published training accuracy and loss, after 50 epochs." if comparable else "",
        _CROSSES if failed else "",
    )


@rc_context(drawing.STYLE)
def throughput_and_speedup(study: Study) -> Figure:
    """Examples per second by batch size, and the speed-up over workers at equal local batch beside the ideal one.

    With parameter servers, by workers: figure 2 of the parameter-sharding paper.
    """
    cells = analysis.cells(study.runs)
    along, scaling = _along(study, cells), analysis.scaling(cells)
    by_batch = along == "local_batch"
    curves = drawing.curves(cells, along, "num_workers" if by_batch else "variant", study.runs)
    figure, axes = drawing.row_of_panels(1 if scaling.empty else 2)
    for curve in curves:
        _draw_points(axes[0], curve, "images_per_second", joined=True)
    drawing.log_axis(axes[0], cells, along)
    axes[0].set_ylabel("Examples per second, all workers")
    _from_zero(axes[0], _completed(study, "images_per_second"))
    failed = _draw_failed([axes[0]], curves)
    legends = [([*drawing.handles(curves), *failed], drawing.legend_title(cells))]
    if not scaling.empty:
        curves = drawing.curves(scaling, "num_workers", "local_batch" if by_batch else "variant", whole=cells)
        ideal = _draw_speedup(axes[1], scaling, curves)
        said = {handle.get_label() for handle in legends[0][0]}
        others = [handle for handle in drawing.handles(curves) if handle.get_label() not in said]
        title = "Local batch (per worker)" if curves[0].colored_by == "local_batch" else ""
        if others:
            legends.append(([*others, ideal], title))
        else:
            legends[0][0].append(ideal)
    drawing.legends(figure, *legends)
    return drawing.captioned(
        figure,
        f"Examples per second, all workers together, by {drawing.AXES[along][1]}.",
        "" if scaling.empty else "Right: speed-up over workers at equal local batch (weak scaling).",
        analysis.unequal_threads(cells),
        _runs_per_point(cells),
        _CROSSES if failed else "",
    )


@rc_context(drawing.STYLE)
def seconds_per_step(study: Study) -> Figure:
    """What a training step's time goes into, one bar a cell: computing, exchanging, waiting for slower workers."""
    times, left_out = drawing.few_enough(analysis.step_times(study))
    figure, panels = drawing.panels_of_bars(times, 1)
    is_split = times["compute_seconds"].notna()
    for (axes,), rows in panels:
        places, left = range(len(rows)), np.zeros(len(rows))
        total = rows["total_seconds"].to_numpy()
        axes.barh(places, total, facecolor=drawing.PALE)
        for part, look in drawing.PARTS_OF_A_STEP.items():
            widths = (
                rows[f"{part.replace(' ', '_')}_seconds"].where(rows["compute_seconds"].notna(), 0).fillna(0).to_numpy()
            )
            axes.barh(places, widths, left=left, **look)
            left += widths
        for place, whole in zip(places, total, strict=True):
            axes.annotate(
                drawing.number(whole), (whole, place), (3, 0), textcoords="offset points", va="center", size=7
            )
        axes.margins(x=0.1)
    unit = analysis.step_unit(study)
    axes.set_xlabel(f"Seconds per {'training step' if unit == 'step' else unit}")
    parts = {part: look for part, look in drawing.PARTS_OF_A_STEP.items() if part != "codec" or _has_codec(times)}
    handles = [Patch(label=part, **look) for part, look in parts.items() if is_split.any()]
    handles += [] if is_split.all() else [Patch(facecolor=drawing.PALE, label="parts not measured")]
    drawing.legends(figure, (handles, drawing.common(times)))
    return drawing.captioned(
        figure,
        f"Seconds of {'a training step' if unit == 'step' else unit}: a codec's computing if any, the exchange as far "
        "as computing does not hide it, a worker's mean wait for others before it, and the rest, which is computing.",
        f"n = {drawing.span(times['n'])} per bar.",
        left_out,
    )


def _has_codec(times: pd.DataFrame) -> bool:
    return bool((times["codec_seconds"] > 0).any())


@rc_context(drawing.STYLE)
def server_load(study: Study) -> Figure:
    """How parameter servers share the model, the fullest in dark, and how busy the busiest of them is."""
    loads, left_out = drawing.few_enough(analysis.server_loads(study))
    shares = analysis.server_shares(study)
    figure, panels = drawing.panels_of_bars(loads, 2)
    for (left_axes, right_axes), rows in panels:
        for place, key in enumerate(rows.index):
            held = np.sort(100 * shares.loc[key].dropna().to_numpy())[::-1]
            starts = np.cumsum(held) - held
            colors = ["#0072B2", *[drawing.PALE] * (len(held) - 1)]
            left_axes.barh([place] * len(held), held, left=starts, color=colors, edgecolor="white", linewidth=0.6)
        right_axes.barh(range(len(rows)), 100 * rows["busiest_load"], color="#E69F00")
    left_axes.set(xlabel="Share of the parameters\nby server, the fullest first (%)", xlim=(0, 100))
    right_axes.set_xlabel("Busy time of the busiest server\n(% of the training time)")
    right_axes.set_xlim(left=0)
    return drawing.captioned(
        figure,
        "Left: the shares of the parameters that the servers hold, the fullest server's in dark. Right: the part of "
        "the training time in which the busiest server receives, updates or sends.",
        f"{drawing.common(loads).capitalize()}." if drawing.common(loads) else "",
        f"n = {drawing.span(loads['n'])} per bar.",
        left_out,
    )


@rc_context(drawing.STYLE)
def sharding_gain(study: Study) -> Figure:
    """By how much sharding by memory is faster than by layer: published, modelled and measured, by workers."""
    published, measured = analysis.published_gains()["gain"], analysis.sharding_gains(study)
    ratio = analysis.fit_ratio(published)
    figure, (axes,) = drawing.row_of_panels(1)
    workers = sorted({*published.index, *measured.index.get_level_values("num_workers")})
    model: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (4, 2))}
    axes.plot(workers, [100 * analysis.predicted_gain(count, ratio) for count in workers], **model)
    axes.plot(100 * published, **{**_PUBLISHED, "linestyle": "", "markersize": 8})
    curves = drawing.curves(measured, "num_workers", "local_batch")
    for curve in curves:
        axes.plot(100 * curve.cells["gain"], **curve.look)
    drawing.log_axis(axes, measured, "num_workers", also=published.index)
    axes.set_ylabel("Memory over layer sharding:\ngain in images per second (%)")
    handles = [
        drawing.handle({**_PUBLISHED, "linestyle": ""}, "published"),
        drawing.handle(model, f"model, fitted: computing = {ratio:.2f} x even exchange"),
        *(
            drawing.handle(curve.look, f"measured, {curve.label}" if len(curves) > 1 else "measured")
            for curve in curves
        ),
    ]
    drawing.legends(figure, (handles, ""))
    return drawing.captioned(
        figure,
        "What sharding VGG-16 by memory gains over sharding it by layer. The model's one constant, the time to compute "
        "over that of an exchange with evenly loaded servers, is fitted to the published gains.",
    )


_PARTS = {"train": "Training", "test": "Test"}


def _by_epoch(study: Study, metric: str) -> Figure:
    """A row of panels for each series, a column each for training and test; many series in two such columns."""
    table = analysis.epoch_curves(study)
    curves = drawing.curves(table, "epoch", "local_batch")
    parts = _parts(table, metric)
    curves.sort(key=lambda curve: [value for name, value in curve.key.items() if name != curve.colored_by])
    titles = list(dict.fromkeys(_series_title(curve, table) for curve in curves)) or [""]
    abreast = 1 if len(titles) <= _MAX_ROWS else 2
    num_rows = math.ceil(len(titles) / abreast)
    size = (7.0 if len(parts) * abreast > 1 else 4.8, min(0.8 + 2.1 * num_rows, 9.0))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(num_rows, len(parts) * abreast, squeeze=False, sharex=True, sharey=True)
    panels = grid.reshape(-1, len(parts))  # a row a series
    for row, title in enumerate(titles):
        shown = [curve for curve in curves if _series_title(curve, table) == title]
        for axes, part in zip(panels[row], parts, strict=True):
            _draw_epoch_panel(axes, shown, part, metric, title, 48 // abreast)
            if row >= len(titles) - abreast:
                axes.set_xlabel("Epoch")
                axes.tick_params(labelbottom=True)
    for axes in panels[len(titles) :].flat:
        axes.remove()
    for row in range(num_rows):
        grid[row, 0].set_ylabel(metric.capitalize())
    if not curves:
        grid[0, 0].text(0.5, 0.5, "no epoch on record", ha="center", transform=grid[0, 0].transAxes)
        return drawing.captioned(figure, f"{metric.capitalize()} by epoch: no run has finished an epoch.")
    limits, is_cut = _epoch_limits(table, parts, metric)
    grid[0, 0].set_ylim(limits)
    drawing.legends(figure, _legend_by_color(curves, table))
    counts = drawing.span(table.loc[table["completed"], "n"])
    repeated = table["n"].max() > 1
    return drawing.captioned(
        figure,
        f"{metric.capitalize()} by epoch: mean over an epoch's training examples"
        f"{', and on the test set' if 'test' in parts else ''}.",
        f"Each line is a mean over n runs: n = {counts}." if counts else "",
        "Bands are 95 % t-intervals over seeds, cut where they are wider than the panel." if repeated else "",
        "" if table["completed"].all() else f"Dotted lines are {_INCOMPLETE}.",
        f"Losses above {limits[1]:.3g}, {_CUT_AT_MEDIANS} times the median peak of the lines, are cut."
        if is_cut
        else "",
    )


def _draw_epoch_panel(
    axes: Axes, curves: Sequence[drawing.Curve], part: str, metric: str, series: str, title_width: int
) -> None:
    for curve in curves:
        _draw_epochs(axes, curve, f"{part}_{metric}")
    counts = drawing.span(n for curve in curves for n in curve.cells.loc[curve.cells["completed"], "n"])
    title = f"{_PARTS[part]}{series and ', '}{series}{counts and f' (n = {counts})'}"
    unbroken = re.sub(r"(?<!,) (?!\(n)", "\0", title)  # lines end after a comma, or before `(n = 1)`
    axes.set_title(textwrap.fill(unbroken, title_width).replace("\0", " "), loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _legend_by_color(curves: Sequence[drawing.Curve], table: pd.DataFrame) -> tuple[list[Line2D], str]:
    by_color = sorted(curves, key=lambda curve: curve.key[curve.colored_by])
    looks = {curve.color_label or curve.line_label: {**curve.look, "linestyle": "-"} for curve in by_color}
    handles = [drawing.handle(look, label) for label, look in looks.items()]
    if not table["completed"].all():
        handles.append(drawing.handle({"color": "#444444", "marker": "x", "linestyle": ":"}, "incomplete run"))
    return handles, drawing.BATCH_LABEL if curves[0].colored_by == "local_batch" else drawing.common(
        table, ["local_batch"]
    )


_INCOMPLETE = "runs that did not complete, up to a cross at their last epoch on record"


def _runs_per_point(cells: pd.DataFrame) -> str:
    counts = drawing.span(n for n in cells["n"] if n)
    if not counts:
        return "No run has completed."
    return f"n = {counts} per point.{f' {_REPEATED}' if cells['n'].max() > 1 else ''}"


def _series_title(curve: drawing.Curve, table: pd.DataFrame) -> str:
    shown = {"num_workers", *analysis.varying(table)} - {curve.colored_by}
    return ", ".join(drawing.words(name, value) for name, value in reversed(curve.key.items()) if name in shown)


def _parts(table: pd.DataFrame, metric: str) -> list[str]:
    return [part for part in _PARTS if part == "train" or table[f"{part}_{metric}"].notna().any()]


def _along(study: Study, cells: pd.DataFrame) -> str:
    """What runs along the horizontal axis: the batch sizes, unless there is one only and several worker counts."""
    varying = analysis.varying(cells)
    by_workers = "num_workers" in varying and "local_batch" not in varying and not analysis.comparable(study)
    return "num_workers" if by_workers else "local_batch"


def _formula(fit: pd.Series[float] | None) -> str:
    if fit is None:
        return ""
    a, c = fit["fixed_seconds"], fit["batch_seconds"]
    return f":  {drawing.number(a)} {'-' if c < 0 else '+'} {drawing.number(abs(c))} / b  (R² = {fit['r_squared']:.4f})"


def _draw_points(axes: Axes, curve: drawing.Curve, metric: str, joined: bool) -> None:
    cells = curve.cells[curve.cells[metric].notna()]
    look: dict[str, Any] = {**curve.look, **({} if joined else {"linestyle": ""})}
    axes.errorbar(cells.index, cells[metric], yerr=cells[f"{metric}_ci95"], elinewidth=1.0, **look)
    repeated = curve.runs[curve.runs.index.isin(cells.index[cells["n"] > 1])]
    dots = repeated.loc[repeated["status"] == "completed", metric] if len(repeated) else repeated
    if len(dots):
        axes.plot(dots, linestyle="", marker="o", markersize=3, markerfacecolor="white", color=curve.look["color"])


def _draw_fitted(axes: Axes, curve: drawing.Curve, fits: pd.DataFrame) -> Line2D:
    """Training times, with the line of their fit if there is one; their entry for the legend, with its formula."""
    key = tuple(curve.key.values())
    fit = fits.loc[key] if key in fits.index else None
    _draw_points(axes, curve, "train_seconds", joined=fit is None)
    if fit is not None:
        batches = np.geomspace(*drawing.extent(curve.cells["train_seconds"].dropna().index), 200)
        axes.plot(batches, fit["fixed_seconds"] + fit["batch_seconds"] / batches, **{**curve.look, "marker": ""})
    return drawing.handle(curve.look, f"{curve.label}{_formula(fit)}")


def _draw_epochs(axes: Axes, curve: drawing.Curve, metric: str) -> None:
    cells = curve.cells[curve.cells[metric].notna()]
    if cells.empty:
        return
    completed = bool(cells["completed"].all())
    every = max(1, math.ceil(len(cells) / 8))
    look = {**curve.look, "linestyle": "-" if completed else ":"}
    axes.plot(cells[metric], **look, markevery=every)
    low, high = (cells[metric] + sign * cells[f"{metric}_ci95"] for sign in (-1, 1))
    if low.notna().any():
        axes.fill_between(cells.index, low, high, color=curve.look["color"], alpha=0.1, linewidth=0)
    if not completed:
        axes.plot(cells[metric].iloc[-1:], marker="x", markersize=8, markeredgewidth=1.8, color=curve.look["color"])


def _draw_speedup(axes: Axes, scaling: pd.DataFrame, curves: Sequence[drawing.Curve]) -> Line2D:
    """Speed-up over workers, and the ideal one, whose entry for the legend it returns."""
    workers = sorted(set(scaling.index.get_level_values("num_workers")))
    bases = sorted(set(scaling["base_workers"]))
    ideal: dict[str, Any] = {"color": drawing.GRAY, "linestyle": (0, (1, 2)), "linewidth": 1.2}
    for base in bases:
        axes.plot([base, workers[-1]], [1, workers[-1] / base], **ideal)
    for curve in curves:
        axes.plot(curve.cells["speedup"], **curve.look)
    axes.set_xticks(workers)
    base_words = f"{' or '.join(map(str, bases))} worker{'s' * (bases != [1])}"
    axes.set(xlabel="Workers", ylabel=f"Speed-up over {base_words}\nat equal local batch", ylim=(0, None))
    return drawing.handle(ideal, "ideal")


def _draw_failed(panels: Sequence[Axes], curves: Sequence[drawing.Curve]) -> list[Line2D]:
    """Crosses on the lower edge where runs did not complete, and their entry for the legend, if any."""
    failed = [curve.cells[curve.cells["other_statuses"] != ""] for curve in curves]
    look: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
    sharing = Counter(batch for cells in failed for batch in cells.index)
    drawn: Counter[int] = Counter()
    for curve, cells in zip(curves, failed, strict=True):
        places = []
        for batch in cells.index:
            places.append(batch * 1.1 ** (drawn[batch] - (sharing[batch] - 1) / 2))  # beside, not upon each other
            drawn[batch] += 1
        for axes in panels if places else ():
            place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
            axes.plot(places, [0.0] * len(places), color=curve.look["color"], **place, **look)
    statuses = {
        text.lstrip("0123456789 ") for cells in failed for row in cells["other_statuses"] for text in row.split(",")
    }
    if not statuses:
        return []
    words = ", ".join(sorted(status.replace("_", " ") for status in statuses))
    return [Line2D([], [], color="#444444", label=f"run not completed: {words}", **look)]


def _draw_published_seconds(axes: Axes, reference: int) -> Line2D:
    cells = _published_cells()
    axes.plot(cells["train_seconds"] / cells["train_seconds"][reference], **_PUBLISHED)
    fit = analysis.seconds_fits(analysis.published().runs).iloc[0]
    return drawing.handle(_PUBLISHED, f"published, 4 workers, 50 epochs, n = 1{_formula(fit)}")


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


def _limits(values: pd.Series[float], metric: str) -> tuple[float, float]:
    low, high = drawing.extent(values.dropna())
    if metric == "loss":
        return 0.0, 1.08 * high or 1.0
    margin = max(0.02, 0.08 * (high - low))
    return max(0.0, low - margin), min(1.0, high + margin)


def _epoch_limits(table: pd.DataFrame, parts: Sequence[str], metric: str) -> tuple[tuple[float, float], bool]:
    """Room for all lines, except that a loss that exploded leaves the panel rather than flatten all others.

    The second value says whether one does.
    """
    columns = [f"{part}_{metric}" for part in parts]
    low, high = _limits(pd.concat([table[column] for column in columns]), metric)
    if metric == "loss":
        peaks = table[columns].max(axis=1).groupby(level=analysis.levels(table)[:-1]).max()
        cut = _CUT_AT_MEDIANS * peaks.median()
        if cut < peaks.max():
            return (low, cut), True
    return (low, high), False


def _completed(study: Study, metric: str) -> pd.Series[float]:
    return study.runs.loc[study.runs["status"] == "completed", metric]


def _from_zero(axes: Axes, values: pd.Series[float]) -> None:
    """Show all runs, and of intervals that are far wider a part."""
    highest = drawing.extent(values.dropna())[1]
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.08 * highest), 1.5 * highest))
