"""What all figures share: style, colours, words, axes, bars, legends, captions and files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from bsweep import analysis
from bsweep.analysis import Study

# Okabe and Ito (2008) without the yellow, which a white page swallows.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
BATCH_LABEL = "Local batch (examples per worker)"
AXES = {"local_batch": (BATCH_LABEL, "local batch"), "num_workers": ("Workers", "number of workers")}
PARTS_OF_A_STEP: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": "#0072B2"},
    "codec": {"facecolor": "#009E73"},
    "exposed exchange": {"facecolor": "#E69F00"},
    "wait": {"facecolor": "#E3E3E3", "edgecolor": "#7A7A7A", "hatch": "//////", "linewidth": 0},
}
PALE = "#A9C6D9"
_MAX_TICKS = 12
_MAX_BARS = 48
GRAY = "#7A7A7A"
STYLE: dict[Any, Any] = {
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
class Curve:
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the path's suffix, without dates or names of programs."""
    metadata = dict.fromkeys(_NO_METADATA[path.suffix])
    with rc_context(_FILE_STYLE):
        figure.savefig(path, dpi=200, metadata=metadata)


def caption(figure: Figure) -> str:
    """What a figure of this package shows, in sentences."""
    return str(figure.get_label())


def counted(number: object, noun: str) -> str:
    return f"{number} {noun}{'s' * (str(number) != '1')}"


def length_of(study: Study) -> str:
    """How long all runs were to train, such as `3 epochs` or `10 rounds`; empty if that differs or is not known."""
    if analysis.ends_in_rounds(study):
        lengths = study.rounds.groupby("run_id")["round"].max().unique()
        return counted(lengths[0], "round") if len(lengths) == 1 else ""
    lengths = study.runs["planned_epochs"].dropna().unique()
    return counted(lengths[0], "epoch") if len(lengths) == 1 else ""


def captioned(figure: Figure, *sentences: str) -> Figure:
    figure.set_label(" ".join(filter(None, sentences)))
    return figure


def curves(
    table: pd.DataFrame,
    along: str,
    colored_by: str,
    runs: pd.DataFrame | None = None,
    whole: pd.DataFrame | None = None,
) -> list[Curve]:
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
        curves.append(Curve(named, colored_by, color_label, line_label, look, *drawn))
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
    if name in ("model", "stem", "data", "optimizer", "device", "hardware", "precision", "placement"):
        return text
    return f"{name.rpartition('.')[2].replace('_', ' ')} {text}"


def handles(curves: Sequence[Curve]) -> list[Line2D]:
    """The legend's entries: one for each line, or, if colour and dashes both tell something, one for each of these."""
    if len({curve.line_label for curve in curves}) < 2:
        return [handle(curve.look, curve.label) for curve in curves]
    colors = {curve.color_label: {**curve.look, "linestyle": "-"} for curve in curves}
    lines = {curve.line_label: {"color": "#444444", "linestyle": curve.look["linestyle"]} for curve in curves}
    return [handle(look, label) for label, look in (*colors.items(), *lines.items())]


def legend_title(cells: pd.DataFrame) -> str:
    """A legend's title: what all cells share, and how often each was measured."""
    counts = span(n for n in cells["n"] if n)
    bars = "; bars: 95 % t-interval" if cells["n"].max() > 1 and "train_seconds_ci95" in cells else ""
    return ", ".join(filter(None, (common(cells), f"n = {counts} per point{bars}" if counts else "")))


def common(table: pd.DataFrame, names: Sequence[str] = ("num_workers", "local_batch")) -> str:
    """Workers and batch where only other settings vary, in words."""
    varying = analysis.varying(table)
    shared = [name for name in names if name not in varying] if varying else []
    return ", ".join(words(name, table.index.get_level_values(name)[0]) for name in shared)


def span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return " to ".join(str(number) for number in dict.fromkeys([found[0], found[-1]])) if found else ""


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def few_enough(table: pd.DataFrame, most: int = _MAX_BARS) -> tuple[pd.DataFrame, str]:
    """As many cells as a page has room for: those of one batch size, the most measured, and a sentence that says so."""
    if len(table) <= most:
        return table, ""
    batches = table.index.get_level_values("local_batch")
    counts = Counter(batches)
    batch = max(counts, key=lambda batch: (counts[batch], batch))
    return table[batches == batch].iloc[:most], f"Shown for local batch {batch}; the table has all."


def panels_of_bars(
    table: pd.DataFrame, columns: int, bar_inches: float = 0.19
) -> tuple[Figure, list[tuple[Sequence[Axes], pd.DataFrame]]]:
    """Room for a horizontal bar, or some, for each cell: rows of `columns` panels, and the cells in each.

    What shares a panel differs in variant, or else in batch size; without either all cells share one.
    """
    varying = analysis.varying(table)
    compared = next((name for name in ("variant", "local_batch") if name in varying), "num_workers")
    by = [name for name in ("num_workers", "local_batch") if name in varying and name != compared]
    groups = [(dict(zip(by, key, strict=True)), rows) for key, rows in table.groupby(level=by)] if by else [({}, table)]
    figure = Figure(figsize=(7.0, 0.7 + sum(0.42 + bar_inches * len(rows) for _, rows in groups)), layout="constrained")
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


def log_axis(axes: Axes, cells: pd.DataFrame, along: str, also: Iterable[int] = (), named: bool = True) -> None:
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
    axes.set_xlabel(AXES[along][0] if named else "")


def extent(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return (min(found), max(found)) if found else (0.0, 1.0)


def handle(look: dict[str, Any], label: str) -> Line2D:
    return Line2D([], [], label=label, **look)


def row_of_panels(num_panels: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(7.0 if num_panels > 1 else 4.8, 2.8), layout="constrained")
    return figure, figure.subplots(1, num_panels, squeeze=False)[0]


def legends(figure: Figure, *legends: tuple[Sequence[Artist], str]) -> None:
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
