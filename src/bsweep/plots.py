"""A study's figures, for a paper: up to seven inches wide, colour-blind safe, the same bytes for the same study.

Each function takes a study and returns a matplotlib `Figure`, whose `caption` it writes from what it draws; nothing
touches pyplot's global state. Markers and bars are means over seeds and their 95 % t-intervals, small circles the runs;
a cell measured once has a marker only. Runs that did not complete show as crosses on the lower edge, at their batch
size. What is drawn by batch size is drawn by workers where a study has one batch size and several worker counts.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from bsweep import analysis
from bsweep.analysis import Study

# Okabe and Ito (2008) without the yellow, which a white page swallows.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
BATCH_LABEL = "Local batch (examples per worker)"
_AXES = {"local_batch": (BATCH_LABEL, "local batch"), "num_workers": ("Workers", "number of workers")}
_PARTS_OF_A_STEP: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": "#0072B2"},
    "exchange": {"facecolor": "#E69F00"},
    "wait": {"facecolor": "#E3E3E3", "edgecolor": "#7A7A7A", "hatch": "//////", "linewidth": 0},
}
_PALE = "#A9C6D9"
_PUBLISHED: dict[str, Any] = {"color": "#7A7A7A", "marker": "*", "linestyle": (0, (4, 2))}
_MAX_TICKS = 12
_MAX_BARS = 48
_GRAY = "#7A7A7A"
_MAX_ROWS = 3  # of panels by epoch, before series stand side by side
_CUT_AT_MEDIANS = 3  # losses by epoch above this many times the median peak leave the panel
_REPEATED = (
    "Markers are means over seeds and small circles single runs; bars are 95 % t-intervals, cut where they are wider "
    "than the panel."
)
_CROSSES = "Crosses on the lower edge are runs that did not complete."
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2.5,
}
# Text as outlines in SVG, which look alike everywhere; as embedded fonts in PDF, which publishers ask for.
_FILE_STYLE: dict[Any, Any] = {"svg.fonttype": "path", "svg.hashsalt": "bsweep", "pdf.fonttype": 42}
_NO_METADATA = {
    ".png": ("Software",),
    ".svg": ("Date", "Creator"),
    ".pdf": ("CreationDate", "Creator", "Producer"),
}


@dataclass(frozen=True)
class _Curve:
    """One line: `cells` and `runs` are indexed by what runs along its horizontal axis."""

    key: dict[str, Any]
    colored_by: str
    color_label: str
    line_label: str
    look: dict[str, Any]
    cells: pd.DataFrame
    runs: pd.DataFrame

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.color_label, self.line_label)))


@rc_context(_STYLE)
def loss_by_epoch(study: Study) -> Figure:
    """Training and test loss by epoch, one line a batch size: figure 2 of the first paper."""
    return _by_epoch(study, "loss")


@rc_context(_STYLE)
def accuracy_by_epoch(study: Study) -> Figure:
    """Training and test accuracy by epoch, one line a batch size: figure 3 of the first paper."""
    return _by_epoch(study, "accuracy")


@rc_context(_STYLE)
def time_by_batch(study: Study) -> Figure:
    """Training time by batch size with the fit a + c/b; beside the published times where these are comparable.

    That comparison is of times over the time at the largest batch size that both measured: epochs and hardware,
    which differ, cancel.
    """
    cells, fits = analysis.cells(study.runs), analysis.seconds_fits(study.runs)
    reference, along = _reference_batch(study, cells), _along(study, cells)
    if reference:
        cells["relative_seconds"] = analysis.relative_seconds(cells, reference)
    curves = _curves(cells, along, "num_workers", study.runs)
    figure, axes = _row_of_panels(2 if reference else 1)
    is_fitted = along == "local_batch" and not fits.empty
    handles = [_draw_fitted(axes[0], curve, fits if is_fitted else fits[:0]) for curve in curves]
    handles = handles if is_fitted else _handles(curves)
    _log_axis(axes[0], cells, along)
    axes[0].set_ylabel(", ".join(filter(None, ("Training time (s)", epochs_of(study)))))
    _from_zero(axes[0], _completed(study, "train_seconds"))
    if reference:
        for curve in curves:
            axes[1].plot(curve.cells["relative_seconds"].dropna(), **curve.look)
        handles.append(_draw_published_seconds(axes[1], reference))
        _log_axis(axes[1], cells, along, also=_published_cells().index)
        axes[1].set_ylabel(f"Training time relative to\nthat of local batch {reference}")
        axes[1].set_ylim(bottom=0)
    failed = _draw_failed([axes[0]], curves)
    title = "; ".join(filter(None, (_shown(cells), "b: local batch" if is_fitted else "")))
    _legends(figure, ([*handles, *failed], title))
    relative = (
        f"Right: relative to the time of local batch {reference}, beside the published times in grey, of 50 epochs."
    )
    return _captioned(
        figure,
        f"Training time by {_AXES[along][1]}{', with the least-squares fit time = a + c / b' if is_fitted else ''}.",
        _runs_per_point(cells),
        relative if reference else "",
        _CROSSES if failed else "",
    )


@rc_context(_STYLE)
def accuracy_and_loss_by_batch(study: Study) -> Figure:
    """Final accuracy and loss by batch size, in training and on the test set; with the published ones if comparable."""
    cells = analysis.cells(study.runs)
    along = _along(study, cells)
    curves = _curves(cells, along, "num_workers", study.runs)
    parts = _parts(cells, "loss")
    figure = Figure(figsize=(7.0, 0.8 + 2.2 * len(parts)), layout="constrained")
    grid = figure.subplots(len(parts), 2, squeeze=False, sharex=True, sharey="col")
    handles = _handles(curves)
    comparable = analysis.comparable(study)
    for column, metric in enumerate(("accuracy", "loss")):
        for row, part in enumerate(parts):
            axes = grid[row, column]
            for curve in curves:
                _draw_points(axes, curve, f"{part}_{metric}", joined=True)
            axes.set(ylabel=f"{_PARTS[part]} {metric}", xlabel="")
            also = _published_cells().index if comparable else ()
            _log_axis(axes, cells, along, also, named=part == parts[-1])
        values = pd.concat([_completed(study, f"{part}_{metric}") for part in parts])
        if comparable:
            published = _published_cells()[f"train_{metric}"]
            grid[0, column].plot(published, **_PUBLISHED)
            values = pd.concat([values, published])
        grid[0, column].set_ylim(_limits(values, metric))
    if comparable:
        handles.append(_handle(_PUBLISHED, "published, 4 workers, 50 epochs, n = 1 (training only)"))
    failed = _draw_failed(list(grid.flat), curves)
    trained = epochs_of(study)
    _legends(
        figure, ([*handles, *failed], ", ".join(filter(None, (f"after {trained}" * bool(trained), _shown(cells)))))
    )
    return _captioned(
        figure,
        f"Accuracy and loss{f' after {trained}' if trained else ''} by {_AXES[along][1]}, in training"
        f"{' and on the test set' if 'test' in parts else ''}.",
        _runs_per_point(cells),
        "In grey the published training accuracy and loss, after 50 epochs." if comparable else "",
        _CROSSES if failed else "",
    )


@rc_context(_STYLE)
def throughput_and_speedup(study: Study) -> Figure:
    """Images per second by batch size, and the speed-up over workers at equal local batch beside the ideal one.

    With parameter servers, by workers: figure 2 of the parameter-sharding paper.
    """
    cells = analysis.cells(study.runs)
    along, scaling = _along(study, cells), analysis.scaling(cells)
    by_batch = along == "local_batch"
    curves = _curves(cells, along, "num_workers" if by_batch else "variant", study.runs)
    figure, axes = _row_of_panels(1 if scaling.empty else 2)
    for curve in curves:
        _draw_points(axes[0], curve, "images_per_second", joined=True)
    _log_axis(axes[0], cells, along)
    axes[0].set_ylabel("Images per second, all workers")
    _from_zero(axes[0], _completed(study, "images_per_second"))
    failed = _draw_failed([axes[0]], curves)
    legends = [([*_handles(curves), *failed], _shown(cells))]
    if not scaling.empty:
        curves = _curves(scaling, "num_workers", "local_batch" if by_batch else "variant", whole=cells)
        ideal = _draw_speedup(axes[1], scaling, curves)
        said = {handle.get_label() for handle in legends[0][0]}
        others = [handle for handle in _handles(curves) if handle.get_label() not in said]
        title = "Local batch (per worker)" if curves[0].colored_by == "local_batch" else ""
        if others:
            legends.append(([*others, ideal], title))
        else:
            legends[0][0].append(ideal)
    _legends(figure, *legends)
    return _captioned(
        figure,
        f"Images per second, all workers together, by {_AXES[along][1]}.",
        "" if scaling.empty else "Right: speed-up over workers at equal local batch (weak scaling).",
        _runs_per_point(cells),
        _CROSSES if failed else "",
    )


@rc_context(_STYLE)
def seconds_per_step(study: Study) -> Figure:
    """What a training step's time goes into, one bar a cell: computing, exchanging, waiting for slower workers."""
    times, left_out = _few_enough(analysis.step_times(study))
    figure, panels = _panels_of_bars(times, 1)
    is_split = times["compute_seconds"].notna()
    for (axes,), rows in panels:
        places, left = range(len(rows)), np.zeros(len(rows))
        total = rows["total_seconds"].to_numpy()
        axes.barh(places, total, facecolor=_PALE)
        for part, look in _PARTS_OF_A_STEP.items():
            widths = rows[f"{part}_seconds"].where(rows["compute_seconds"].notna(), 0).to_numpy()
            axes.barh(places, widths, left=left, **look)
            left += widths
        for place, seconds in zip(places, total, strict=True):
            axes.annotate(_number(seconds), (seconds, place), (3, 0), textcoords="offset points", va="center", size=7)
        axes.margins(x=0.1)
    axes.set_xlabel("Seconds per training step")
    handles = [Patch(label=part, **look) for part, look in _PARTS_OF_A_STEP.items() if is_split.any()]
    handles += [] if is_split.all() else [Patch(facecolor=_PALE, label="parts not measured")]
    _legends(figure, (handles, _common(times)))
    return _captioned(
        figure,
        "Seconds of a training step: the slowest worker's exchange, a worker's mean wait for others before it, and the "
        "rest, which is computing.",
        f"n = {_span(times['n'])} per bar.",
        left_out,
    )


@rc_context(_STYLE)
def server_load(study: Study) -> Figure:
    """How parameter servers share the model, the fullest in dark, and how busy the busiest of them is."""
    loads, left_out = _few_enough(analysis.server_loads(study))
    shares = analysis.server_shares(study)
    figure, panels = _panels_of_bars(loads, 2)
    for (left_axes, right_axes), rows in panels:
        for place, key in enumerate(rows.index):
            held = np.sort(100 * shares.loc[key].dropna().to_numpy())[::-1]
            starts = np.cumsum(held) - held
            colors = ["#0072B2", *[_PALE] * (len(held) - 1)]
            left_axes.barh([place] * len(held), held, left=starts, color=colors, edgecolor="white", linewidth=0.6)
        right_axes.barh(range(len(rows)), 100 * rows["busiest_load"], color="#E69F00")
    left_axes.set(xlabel="Share of the parameters\nby server, the fullest first (%)", xlim=(0, 100))
    right_axes.set_xlabel("Busy time of the busiest server\n(% of the training time)")
    right_axes.set_xlim(left=0)
    return _captioned(
        figure,
        "Left: the shares of the parameters that the servers hold, the fullest server's in dark. Right: the part of "
        "the training time in which the busiest server receives, updates or sends.",
        f"{_common(loads).capitalize()}." if _common(loads) else "",
        f"n = {_span(loads['n'])} per bar.",
        left_out,
    )


@rc_context(_STYLE)
def sharding_gain(study: Study) -> Figure:
    """By how much sharding by memory is faster than by layer: published, modelled and measured, by workers."""
    published, measured = analysis.published_gains()["gain"], analysis.sharding_gains(study)
    ratio = analysis.fit_ratio(published)
    figure, (axes,) = _row_of_panels(1)
    workers = sorted({*published.index, *measured.index.get_level_values("num_workers")})
    model: dict[str, Any] = {"color": _GRAY, "linestyle": (0, (4, 2))}
    axes.plot(workers, [100 * analysis.predicted_gain(count, ratio) for count in workers], **model)
    axes.plot(100 * published, **{**_PUBLISHED, "linestyle": "", "markersize": 8})
    curves = _curves(measured, "num_workers", "local_batch")
    for curve in curves:
        axes.plot(100 * curve.cells["gain"], **curve.look)
    _log_axis(axes, measured, "num_workers", also=published.index)
    axes.set_ylabel("Memory over layer sharding:\ngain in images per second (%)")
    handles = [
        _handle({**_PUBLISHED, "linestyle": ""}, "published"),
        _handle(model, f"model: computing = {ratio:.2f} x even exchange"),
        *(_handle(curve.look, f"measured, {curve.label}" if len(curves) > 1 else "measured") for curve in curves),
    ]
    _legends(figure, (handles, ""))
    return _captioned(
        figure,
        "What sharding VGG-16 by memory gains over sharding it by layer. The model's one constant, the time to compute "
        "over that of an exchange with evenly loaded servers, is fitted to the published gains.",
    )


FIGURES: dict[str, Callable[[Study], Figure]] = {
    function.__name__: function
    for function in (
        loss_by_epoch,
        accuracy_by_epoch,
        time_by_batch,
        accuracy_and_loss_by_batch,
        throughput_and_speedup,
        seconds_per_step,
        server_load,
        sharding_gain,
    )
}
_NEEDS: dict[str, Callable[[Study], bool]] = {
    "seconds_per_step": lambda study: bool((analysis.step_times(study)["exchange_seconds"] > 0).any()),
    "server_load": lambda study: not analysis.server_loads(study).empty,
    "sharding_gain": lambda study: not analysis.sharding_gains(study).empty,
}
_PARTS = {"train": "Training", "test": "Test"}


def figures(study: Study) -> dict[str, Callable[[Study], Figure]]:
    """Those of `FIGURES` for which a study has the numbers."""
    return {name: draw for name, draw in FIGURES.items() if name not in _NEEDS or _NEEDS[name](study)}


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the path's suffix, without dates or names of programs."""
    metadata = dict.fromkeys(_NO_METADATA[path.suffix])
    with rc_context(_FILE_STYLE):
        figure.savefig(path, dpi=200, metadata=metadata)


def caption(figure: Figure) -> str:
    """What a figure of this module shows, in sentences."""
    return str(figure.get_label())


def counted(number: object, noun: str) -> str:
    return f"{number} {noun}{'s' * (str(number) != '1')}"


def epochs_of(study: Study) -> str:
    """How long all runs were to train, such as `3 epochs`; empty if that differs or is not known."""
    epochs = study.runs["planned_epochs"].dropna().unique()
    return counted(epochs[0], "epoch") if len(epochs) == 1 else ""


def _by_epoch(study: Study, metric: str) -> Figure:
    """A row of panels for each series, a column each for training and test; many series in two such columns."""
    table = analysis.epoch_curves(study)
    curves = _curves(table, "epoch", "local_batch")
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
        return _captioned(figure, f"{metric.capitalize()} by epoch: no run has finished an epoch.")
    limits, is_cut = _epoch_limits(table, parts, metric)
    grid[0, 0].set_ylim(limits)
    _legends(figure, _legend_by_color(curves, table))
    counts = _span(table.loc[table["completed"], "n"])
    repeated = table["n"].max() > 1
    return _captioned(
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
    axes: Axes, curves: Sequence[_Curve], part: str, metric: str, series: str, title_width: int
) -> None:
    for curve in curves:
        _draw_epochs(axes, curve, f"{part}_{metric}")
    counts = _span(n for curve in curves for n in curve.cells.loc[curve.cells["completed"], "n"])
    title = f"{_PARTS[part]}{series and ', '}{series}{counts and f' (n = {counts})'}"
    unbroken = re.sub(r"(?<!,) (?!\(n)", "\0", title)  # lines end after a comma, or before `(n = 1)`
    axes.set_title(textwrap.fill(unbroken, title_width).replace("\0", " "), loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _legend_by_color(curves: Sequence[_Curve], table: pd.DataFrame) -> tuple[list[Line2D], str]:
    by_color = sorted(curves, key=lambda curve: curve.key[curve.colored_by])
    looks = {curve.color_label or curve.line_label: {**curve.look, "linestyle": "-"} for curve in by_color}
    handles = [_handle(look, label) for label, look in looks.items()]
    if not table["completed"].all():
        handles.append(_handle({"color": "#444444", "marker": "x", "linestyle": ":"}, "incomplete run"))
    return handles, BATCH_LABEL if curves[0].colored_by == "local_batch" else _common(table, ["local_batch"])


_INCOMPLETE = "runs that did not complete, up to a cross at their last epoch on record"


def _captioned(figure: Figure, *sentences: str) -> Figure:
    figure.set_label(" ".join(filter(None, sentences)))
    return figure


def _runs_per_point(cells: pd.DataFrame) -> str:
    counts = _span(n for n in cells["n"] if n)
    if not counts:
        return "No run has completed."
    return f"n = {counts} per point.{f' {_REPEATED}' if cells['n'].max() > 1 else ''}"


def _curves(
    table: pd.DataFrame,
    along: str,
    colored_by: str,
    runs: pd.DataFrame | None = None,
    whole: pd.DataFrame | None = None,
) -> list[_Curve]:
    """The lines of a table indexed by cells: one for each combination of all index levels but `along`.

    Colour and marker tell the values of one level apart, dashes the other levels: of that with the most values, or of
    `colored_by` where none has more. Colours are those of the cells of `whole`, of which `table` may be a part.
    """
    names: list[Any] = [name for name in analysis.levels(table) if name != along]
    if table.empty:
        return []
    groups: dict[Any, pd.DataFrame] = dict(list(table.groupby(level=names)))
    cells_of_runs = {} if runs is None else dict(list(analysis.by_cell(runs).groupby(level=names)))
    levels = {name: sorted(set((table if whole is None else whole).index.get_level_values(name))) for name in names}
    colored_by = max(sorted(names, key=lambda name: name != colored_by), key=lambda name: len(levels[name]))
    at, values = names.index(colored_by), levels[colored_by]
    others = list(dict.fromkeys(key[:at] + key[at + 1 :] for key in groups))
    varying = [name for name in names if name in analysis.varying(table)]
    alone = "local_batch" if colored_by == "local_batch" else "variant"  # what to call the only line there is
    curves = []
    for key, cells in groups.items():
        named = dict(zip(names, key, strict=True))
        said = {name: words(name, named[name]) for name in varying or [alone]}
        if colored_by == "local_batch":
            said[colored_by] = str(key[at])  # below a title that says what it is
        color_label, line_label = said.pop(colored_by, ""), ", ".join(reversed(said.values()))
        color, line = values.index(key[at]), others.index(key[:at] + key[at + 1 :])
        look: dict[str, Any] = {
            "color": COLORS[color % len(COLORS)],
            "marker": MARKERS[(color + color // len(COLORS)) % len(MARKERS)],
            "linestyle": LINES[line % len(LINES)],
        }
        members = cells_of_runs.get(key, pd.DataFrame())
        drawn = (frame.droplevel(names) if len(frame) else frame for frame in (cells, members))
        curves.append(_Curve(named, colored_by, color_label, line_label, look, *drawn))
    return curves


_LONG_NAMES = {"lr_rule": "learning rate", "lr": "base learning rate"}


def words(name: str, value: object) -> str:
    """A setting as a legend says it."""
    text = analysis.setting_text(value).replace("_", " ")
    if name == "num_workers":
        return counted(text, "worker")
    if name == "planned_epochs":
        return counted(text, "epoch")
    if name in _LONG_NAMES:
        return f"{_LONG_NAMES[name]}: {text}"
    if name == "variant":
        return str(value)  # as one types it
    if name in ("model", "stem", "data", "optimizer", "device", "hardware", "precision"):
        return text
    return f"{name.rpartition('.')[2].replace('_', ' ')} {text}"


def _series_title(curve: _Curve, table: pd.DataFrame) -> str:
    shown = {"num_workers", *analysis.varying(table)} - {curve.colored_by}
    return ", ".join(words(name, value) for name, value in reversed(curve.key.items()) if name in shown)


def _handles(curves: Sequence[_Curve]) -> list[Line2D]:
    """The legend's entries: one for each line, or, if colour and dashes both tell something, one for each of these."""
    if len({curve.line_label for curve in curves}) < 2:
        return [_handle(curve.look, curve.label) for curve in curves]
    colors = {curve.color_label: {**curve.look, "linestyle": "-"} for curve in curves}
    lines = {curve.line_label: {"color": "#444444", "linestyle": curve.look["linestyle"]} for curve in curves}
    return [_handle(look, label) for label, look in (*colors.items(), *lines.items())]


def _shown(cells: pd.DataFrame) -> str:
    """A legend's title: what all cells share, and how often each was measured."""
    counts = _span(n for n in cells["n"] if n)
    bars = "; bars: 95 % t-interval" if cells["n"].max() > 1 and "train_seconds_ci95" in cells else ""
    return ", ".join(filter(None, (_common(cells), f"n = {counts} per point{bars}" if counts else "")))


def _common(table: pd.DataFrame, names: Sequence[str] = ("num_workers", "local_batch")) -> str:
    """Workers and batch where only other settings vary, in words."""
    varying = analysis.varying(table)
    shared = [name for name in names if name not in varying] if varying else []
    return ", ".join(words(name, table.index.get_level_values(name)[0]) for name in shared)


def _parts(table: pd.DataFrame, metric: str) -> list[str]:
    return [part for part in _PARTS if part == "train" or table[f"{part}_{metric}"].notna().any()]


def _along(study: Study, cells: pd.DataFrame) -> str:
    """What runs along the horizontal axis: the batch sizes, unless there is one only and several worker counts."""
    varying = analysis.varying(cells)
    by_workers = "num_workers" in varying and "local_batch" not in varying and not analysis.comparable(study)
    return "num_workers" if by_workers else "local_batch"


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return " to ".join(str(number) for number in dict.fromkeys([found[0], found[-1]])) if found else ""


def _formula(fit: pd.Series[float] | None) -> str:
    if fit is None:
        return ""
    a, c = fit["fixed_seconds"], fit["batch_seconds"]
    return f":  {_number(a)} {'-' if c < 0 else '+'} {_number(abs(c))} / b  (R² = {fit['r_squared']:.4f})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _draw_points(axes: Axes, curve: _Curve, metric: str, joined: bool) -> None:
    cells = curve.cells[curve.cells[metric].notna()]
    look: dict[str, Any] = {**curve.look, **({} if joined else {"linestyle": ""})}
    axes.errorbar(cells.index, cells[metric], yerr=cells[f"{metric}_ci95"], elinewidth=1.0, **look)
    repeated = curve.runs[curve.runs.index.isin(cells.index[cells["n"] > 1])]
    dots = repeated.loc[repeated["status"] == "completed", metric] if len(repeated) else repeated
    if len(dots):
        axes.plot(dots, linestyle="", marker="o", markersize=3, markerfacecolor="white", color=curve.look["color"])


def _draw_fitted(axes: Axes, curve: _Curve, fits: pd.DataFrame) -> Line2D:
    """Training times, with the line of their fit if there is one; their entry for the legend, with its formula."""
    key = tuple(curve.key.values())
    fit = fits.loc[key] if key in fits.index else None
    _draw_points(axes, curve, "train_seconds", joined=fit is None)
    if fit is not None:
        batches = np.geomspace(*_extent(curve.cells["train_seconds"].dropna().index), 200)
        axes.plot(batches, fit["fixed_seconds"] + fit["batch_seconds"] / batches, **{**curve.look, "marker": ""})
    return _handle(curve.look, f"{curve.label}{_formula(fit)}")


def _draw_epochs(axes: Axes, curve: _Curve, metric: str) -> None:
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


def _draw_speedup(axes: Axes, scaling: pd.DataFrame, curves: Sequence[_Curve]) -> Line2D:
    """Speed-up over workers, and the ideal one, whose entry for the legend it returns."""
    workers = sorted(set(scaling.index.get_level_values("num_workers")))
    bases = sorted(set(scaling["base_workers"]))
    ideal: dict[str, Any] = {"color": _GRAY, "linestyle": (0, (1, 2)), "linewidth": 1.2}
    for base in bases:
        axes.plot([base, workers[-1]], [1, workers[-1] / base], **ideal)
    for curve in curves:
        axes.plot(curve.cells["speedup"], **curve.look)
    axes.set_xticks(workers)
    base_words = f"{' or '.join(map(str, bases))} worker{'s' * (bases != [1])}"
    axes.set(xlabel="Workers", ylabel=f"Speed-up over {base_words}\nat equal local batch", ylim=(0, None))
    return _handle(ideal, "ideal")


def _few_enough(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """As many cells as a page has room for: those of one batch size, the most measured, and a sentence that says so."""
    if len(table) <= _MAX_BARS:
        return table, ""
    batches = table.index.get_level_values("local_batch")
    counts = Counter(batches)
    batch = max(counts, key=lambda batch: (counts[batch], batch))
    return table[batches == batch].iloc[:_MAX_BARS], f"Shown for local batch {batch}; the table has all."


def _panels_of_bars(table: pd.DataFrame, columns: int) -> tuple[Figure, list[tuple[Sequence[Axes], pd.DataFrame]]]:
    """Room for a horizontal bar for each cell: rows of `columns` panels, and the cells in each.

    What shares a panel differs in variant, or else in batch size; without either all cells share one.
    """
    varying = analysis.varying(table)
    compared = next((name for name in ("variant", "local_batch") if name in varying), "num_workers")
    by = [name for name in ("num_workers", "local_batch") if name in varying and name != compared]
    groups = [(dict(zip(by, key, strict=True)), rows) for key, rows in table.groupby(level=by)] if by else [({}, table)]
    figure = Figure(figsize=(7.0, 0.7 + sum(0.42 + 0.19 * len(rows) for _, rows in groups)), layout="constrained")
    heights = [1.2 + len(rows) for _, rows in groups]
    grid = figure.subplots(len(groups), columns, squeeze=False, sharex="col", sharey="row", height_ratios=heights)
    for axes, (where, rows) in zip(grid[:, 0], groups, strict=True):
        keys = (dict(zip(analysis.levels(table), key, strict=True)) for key in rows.index)
        said = [name for name in varying if name not in by] or [compared]
        axes.set_yticks(range(len(rows)), [", ".join(words(name, key[name]) for name in said) for key in keys])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(", ".join(words(name, value) for name, value in where.items()), loc="left")
    for axes in grid.flat:
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure, [(list(row), rows) for row, (_, rows) in zip(grid, groups, strict=True)]


def _draw_failed(panels: Sequence[Axes], curves: Sequence[_Curve]) -> list[Line2D]:
    """Crosses on the lower edge where runs did not complete, and their entry for the legend, if any."""
    failed = [curve.cells[curve.cells["num_runs"] > curve.cells["n"]] for curve in curves]
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
    return _handle(_PUBLISHED, f"published, 4 workers, 50 epochs, n = 1{_formula(fit)}")


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


def _log_axis(axes: Axes, cells: pd.DataFrame, along: str, also: Iterable[int] = (), named: bool = True) -> None:
    """A log2 axis with plain integers at the measured sizes, as many as there is room for."""
    sizes = sorted({*cells.index.get_level_values(along), *also})
    apart = math.log2(sizes[-1] / sizes[0]) / _MAX_TICKS
    ticks = sizes[:1]
    for size in sizes[1:]:
        if math.log2(size / ticks[-1]) >= apart:
            ticks.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.set_xlabel(_AXES[along][0] if named else "")


def _limits(values: pd.Series[float], metric: str) -> tuple[float, float]:
    low, high = _extent(values.dropna())
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


def _extent(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return (min(found), max(found)) if found else (0.0, 1.0)


def _handle(look: dict[str, Any], label: str) -> Line2D:
    return Line2D([], [], label=label, **look)


def _row_of_panels(num_panels: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(7.0 if num_panels > 1 else 4.8, 2.8), layout="constrained")
    return figure, figure.subplots(1, num_panels, squeeze=False)[0]


def _completed(study: Study, metric: str) -> pd.Series[float]:
    return study.runs.loc[study.runs["status"] == "completed", metric]


def _from_zero(axes: Axes, values: pd.Series[float]) -> None:
    """Show all runs, and of intervals that are far wider a part."""
    highest = _extent(values.dropna())[1]
    axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.08 * highest), 1.5 * highest))


def _legends(figure: Figure, *legends: tuple[Sequence[Artist], str]) -> None:
    """Entries and title of a legend, or of two side by side, below the panels; the figure grows by their rows."""
    letters = 15 * figure.get_figwidth() / len(legends)
    most_rows = 0
    for place, (handles, title) in zip(("left", "right") if len(legends) > 1 else ("center",), legends, strict=True):
        lengths = [9 + len(str(handle.get_label())) for handle in handles]  # with the line before it
        rows = 1
        while rows < len(handles) and sum(max(lengths[i : i + rows]) for i in range(0, len(handles), rows)) > letters:
            rows += 1
        where: Any = f"outside lower {place}"
        figure.legend(handles=handles, title=title, loc=where, ncols=math.ceil(len(handles) / rows))
        most_rows = max(most_rows, rows + bool(title))
    figure.set_figheight(figure.get_figheight() + 0.17 * most_rows)
