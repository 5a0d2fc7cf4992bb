"""The parts that figures share: style, panels, axes, points, legends, captions and files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots.curves import handle, readable
from bsweep.plots.styles import settings_of

BATCH_LABEL = "Local batch (examples per worker)"
AXES = {
    "local_batch": (BATCH_LABEL, "local batch"),
    "num_workers": ("Workers", "number of workers"),
}
PALE = "#A9C6D9"
GRAY = "#7A7A7A"
# The look of background lines, which have panels of their own.
BEHIND: dict[str, Any] = {
    "color": "#D5D5D5",
    "linewidth": 0.8,
    "zorder": 1,
}
_SIZE = 9  # points of the type of a figure that is not drawn for a paper
_BESIDE = 0.75  # inches that the labels of an axes take of its width
_BELOW = 0.3  # inches that its title or labels take of its height
_LETTER = 0.065  # inches of a letter of a label
_LONGEST_WORD = 5  # letters by which a line of a label may be longer than the others
_DIGIT = 0.071  # inches of a digit in a tick label
_CUT = 1000  # A panel leaves out losses this many times above or below its median.
_FAR = 3  # An axis of losses holds intervals that go this many times beyond them.
_MAX_LABEL = 60  # letters in a line of a legend
STYLE: dict[Any, Any] = {
    "figure.figsize": (7.0, 4.0),  # the height is never used
    "font.size": _SIZE,
    "axes.titlesize": _SIZE,
    "axes.labelsize": _SIZE,
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
# SVG has text as outlines, which look the same everywhere. PDF has text in embedded fonts, which
# publishers ask for.
_FILE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "bsweep",
    "pdf.fonttype": 42,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
_NO_METADATA = {
    ".png": ("Software",),
    ".svg": ("Date", "Creator"),
    ".pdf": ("CreationDate", "Creator", "Producer"),
}


@dataclass
class StudyFigure:
    """A figure of a study: its name, the function that makes its table, and the function that draws
    the table.
    """

    name: str
    table: Callable[[Study], pd.DataFrame]
    draw: Callable[[Study, pd.DataFrame], Figure]

    def __post_init__(self) -> None:
        self.__doc__ = self.draw.__doc__

    def __call__(self, study: Study, style: str | None = None) -> Figure:
        """Draw this figure for a study, in the style that all figures share.

        If the table has no rows, write a sentence instead.

        Args:
            study: The study.
            style: The paper for which the figure is drawn, a name in `STYLES`. The figure is as
                wide as its text.

        Raises:
            ValueError: If there is no such style.
        """
        with rc_context(STYLE if style is None else {**STYLE, **settings_of(style)}):
            table = self.table(study)
            if table.empty:
                return _nothing(self.name)
            return self.draw(study, readable(study, table))


def width() -> float:
    """Return the width of a figure in inches, in the style that is drawn."""
    return float(rcParams["figure.figsize"][0])


def _nothing(name: str) -> Figure:
    figure = Figure(figsize=(width(), 1.0))
    text = f"{name.replace('_', ' ').capitalize()}: nothing was measured for this figure."
    figure.text(0.5, 0.5, textwrap.fill(text, 50), ha="center", va="center")
    return captioned(figure, text)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, SVG or PDF file, without dates or names of programs in it.

    The suffix of the path decides the format. The layout is computed once for all files, because it
    takes longer than drawing. Afterwards the figure has no layout engine at all. Even the engine
    that does nothing ("none") makes matplotlib draw the figure twice for each file.

    Args:
        figure: The figure.
        path: The file to write, which ends in `.png`, `.svg` or `.pdf`.
    """
    metadata = dict.fromkeys(_NO_METADATA[path.suffix])
    with rc_context(_FILE_STYLE):
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(path, dpi=200, metadata=metadata)


def caption(figure: Figure) -> str:
    """Return the caption of a figure of this package: the sentences that say what the figure shows.

    Args:
        figure: A figure that a function of this package has drawn.

    Returns:
        The caption, at least one sentence.
    """
    return str(figure.get_label())


def captioned(figure: Figure, *sentences: str) -> Figure:
    figure.set_label(" ".join(filter(None, sentences)))
    return figure


def span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return (
        " to ".join(str(number) for number in dict.fromkeys([found[0], found[-1]])) if found else ""
    )


def three_digits(value: float) -> str:
    """Return a number as text with three significant digits, or with more if its whole part has
    more.
    """
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def drawn_values(cells: pd.DataFrame, metric: str) -> list[float]:
    """Return the values of seeds and the ends of intervals that a figure draws of a metric."""
    points = cells[f"{metric}_points"].explode().dropna().astype(float)
    return [*points, *interval_ends(cells, metric)]


def interval_ends(cells: pd.DataFrame, metric: str) -> list[float]:
    """Return both ends of the interval of each cell that has one."""
    means, half = (cells[name].to_numpy(float) for name in (metric, f"{metric}_ci95"))
    ends = np.concatenate([means - half, means + half])
    return [float(end) for end in ends[np.isfinite(ends)]]


def fit_axis(axes: Axes, values: Iterable[float], flat: bool = False) -> None:
    """Fit a linear axis to values of a quantity such as seconds, with their intervals.

    If no value is negative, the axis begins at zero, unless the smallest value is more than half of
    the largest.
    """
    low, high = extent(values)
    margin = 0.08 * (high - low)
    begin = low - margin if low > high / 2 and high > low else min(0.0, 1.08 * low)
    (axes.set_xlim if flat else axes.set_ylim)(begin, high + max(margin, 0.02 * abs(high), 1e-9))


def extent(values: Iterable[float]) -> tuple[float, float]:
    found = [value for value in values if math.isfinite(value)]
    return (min(found), max(found)) if found else (0.0, 1.0)


def repeats(n: pd.Series[int], drawn_as: str = "point") -> str:
    """Return sentences for a figure's caption that say how many seeds each point has, and how the
    scatter of the seeds is drawn.
    """
    counts = sorted({int(count) for count in n if count})
    if not counts:
        return "No run has completed."
    told = [f"n = {span(counts)} per {drawn_as}."]
    if counts[-1] >= analysis.MIN_SEEDS_FOR_INTERVAL:
        told.append("Small circles are single seeds. Bars are 95 % t-intervals over seeds.")
    if 2 in counts:
        told.append("If a cell has two seeds, both are drawn without an interval.")
    return " ".join(told)


def grid(num_panels: int, num_parts: int, height: float = 2.1) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with `num_parts` axes in a row for each panel, and these axes.

    If there are more than three panels of one or two axes, several stand side by side.
    """
    abreast = 1 if num_panels <= 3 else max(1, (4 if num_parts > 1 else 3) // num_parts)
    num_rows, columns = math.ceil(num_panels / abreast), abreast * num_parts
    size = (width(), 0.5 + num_rows * (height if num_rows <= 3 else 1.3))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(num_rows, columns, squeeze=False).reshape(-1, num_parts)
    for unused in axes[num_panels:].flat:
        unused.remove()
    return figure, [list(row) for row in axes[:num_panels]]


def name_panels(
    panels: Iterable[str], grid: Sequence[Sequence[Axes]], along: str, names: Sequence[str]
) -> None:
    """Set the titles of a figure's panels and the labels of their axes.

    Labels and numbers that panels share stand at the outer axes alone. So the caller gives all axes
    of one part, such as the test's, the same range. A label that is longer than its axis has
    several lines.
    """
    places: list[list[Any]] = [[axes.get_subplotspec() for axes in row] for row in grid]
    # The letters that fit into a line of a panel's title.
    of_title = 46 if len(grid) <= 3 else 34 if len(names) > 1 else 32
    lowest = {place.colspan.start: place.rowspan.start for row in places for place in row}
    for title, row, of_row in zip(panels, grid, places, strict=True):
        row[0].set_title(broken(title, of_title), loc="left")
        for axes, place, name in zip(row, of_row, names, strict=True):
            is_left = place.colspan.start < len(names)
            is_low = lowest[place.colspan.start] == place.rowspan.start
            axes.set_xlabel(_label(along, _width(axes)) if is_low else "")
            axes.set_ylabel(_label(name, _height(axes)) if is_left else "")
            axes.tick_params(labelleft=is_left, labelbottom=is_low)


def _label(text: str, inches: float) -> str:
    """Return an axis label in as few lines as fit beside an axis of this length, of about equal
    lengths.
    """
    num_lines = max(1, math.ceil(len(text) * _LETTER / inches))
    return broken(text, math.ceil(len(text) / num_lines) + _LONGEST_WORD)


def broken(text: str, letters: int) -> str:
    """Return text in lines of at most `letters` letters, or of one longer word; lines end after a
    comma where possible.
    """
    no_break = text.replace(" ", "\0").replace(",\0", ", ")
    keep: Any = {"width": letters, "break_long_words": False, "break_on_hyphens": False}
    lines = (line.replace("\0", " ") for line in textwrap.wrap(no_break, **keep))
    return "\n".join(textwrap.fill(line, **keep) for line in lines)


def log_axis(axes: Axes, cells: pd.DataFrame, along: str, also: Iterable[int] = ()) -> None:
    """Make the horizontal axis logarithmic, with a tick at each batch size or worker count of the
    cells, and at those in `also`.

    Ticks for which there is room have a number, the others have none.
    """
    sizes = sorted({*cells.index.get_level_values(along), *also})
    limits = (sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.set_xscale("log", base=2)
    axes.set_xlim(limits)
    named = _with_room(sizes, _width(axes) / math.log2(limits[1] / limits[0]))
    axes.set_xticks(named, [str(size) for size in named])
    axes.set_xticks([size for size in sizes if size not in named], minor=True)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(AXES[along][0])


def _width(axes: Axes) -> float:
    """Return the width in inches that a panel in a grid has at least, without its labels."""
    place, figure = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None
    assert figure is not None
    return figure.get_figwidth() / place.get_gridspec().ncols - _BESIDE


def _height(axes: Axes) -> float:
    """Return the height in inches that a panel in a grid has, without its title or labels."""
    place, figure = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None
    assert figure is not None
    return figure.get_figheight() / place.get_gridspec().nrows - _BELOW


def _with_room(sizes: Sequence[int], doubling_inches: float) -> list[int]:
    """Return the batch sizes or worker counts whose tick labels fit below an axis: all, every
    second, every third, and so on.

    If this leaves out many of unevenly spaced sizes, the result is each size whose label fits
    beside the label before it.
    """

    def fits(one: int, other: int) -> bool:
        num_letters = (len(str(one)) + len(str(other))) / 2 + 1
        return math.log2(other / one) * doubling_inches >= num_letters * _DIGIT

    found = [sizes[0]]
    for size in sizes[1:]:
        if fits(found[-1], size):
            found.append(size)
    evenly = next(
        every
        for every in (sizes[::step] for step in range(1, len(sizes) + 1))
        if all(map(fits, every, every[1:]))
    )
    return list(evenly) if 2 * len(evenly) > len(found) else found


def loss_axis(
    axes: Axes,
    values: Iterable[float],
    ends: Sequence[float] = (),
    flat: bool = False,
    few: bool = False,
) -> None:
    """Make an axis logarithmic and fit it to the losses, except those far above or below the
    median.

    Exploded losses would flatten all others. The axis also holds the ends of intervals, unless they
    are far beyond the losses; see `mark_beyond`.
    """
    known = np.asarray([value for value in values if 0 < value < math.inf])
    middle = float(np.median(known)) if len(known) else 1.0
    low, high = extent(known[(known <= _CUT * middle) & (known >= middle / _CUT)])
    low, high = extent([low, high, *(end for end in ends if low / _FAR <= end <= high * _FAR)])
    margin = (high / low) ** 0.06 * 1.01
    axis, scale, limits = (
        (axes.xaxis, axes.set_xscale, axes.set_xlim)
        if flat
        else (axes.yaxis, axes.set_yscale, axes.set_ylim)
    )
    scale("log")
    limits(low / margin, high * margin)
    plain_log_ticks(axis, low, high, few)


def plain_log_ticks(axis: Axis, low: float, high: float, few: bool = False) -> None:
    """Label a logarithmic axis with plain numbers, even if it spans less than a power of ten."""
    ratio = high / low if low > 0 else math.inf  # a damaged record may say 0 seconds
    most, is_wide = 3 if few else 6, ratio > 6
    every = (1.0,) if ratio > 100 else (1.0, 3.0) if few else (1.0, 2.0, 5.0)
    axis.set_major_locator(
        LogLocator(subs=every, numticks=most + 1)
        if is_wide
        else MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
    )
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    )
    axis.set_minor_locator(NullLocator())


def mark_cut(
    axes: Axes, places: Iterable[float], values: Iterable[float], color: str, flat: bool = False
) -> bool:
    """Draw a triangle on the edge of a panel for each value that lies outside the panel.

    Returns:
        True if there is any such value.
    """
    low, high = axes.get_xlim() if flat else axes.get_ylim()
    found = False
    for place, value in zip(places, values, strict=True):
        if value != value or low <= value <= high:
            continue
        found, edge = True, float(value > high)
        marker = (">" if edge else "<") if flat else ("^" if edge else "v")
        at: dict[str, Any] = {
            "transform": axes.get_yaxis_transform() if flat else axes.get_xaxis_transform()
        }
        axes.plot(
            *((edge, place) if flat else (place, edge)),
            marker,
            color=color,
            clip_on=False,
            zorder=5,
            **at,
        )
    return found


CUT_WORDS = "Triangles on an edge are values beyond it."
BEYOND_WORDS = "Arrows on an edge are intervals that go beyond it."


def mark_beyond(
    axes: Axes, cells: pd.DataFrame, metric: str, color: str, flat: bool = False
) -> bool:
    """Draw an arrow on the edge of a panel for each interval that goes beyond the edge, as one of
    losses does that contains zero.

    Returns:
        True if there is any such interval.
    """
    low, high = axes.get_xlim() if flat else axes.get_ylim()
    half = cells[f"{metric}_ci95"]
    frame = axes.get_yaxis_transform() if flat else axes.get_xaxis_transform()
    look: dict[str, Any] = {"color": color, "markersize": 5, "clip_on": False, "transform": frame}
    carets = (CARETLEFT, CARETRIGHT) if flat else (CARETDOWN, CARETUP)
    found = False
    for edge, is_beyond in enumerate((cells[metric] - half < low, cells[metric] + half > high)):
        for place in cells.index[is_beyond]:
            at = ([edge], [place]) if flat else ([place], [edge])
            axes.plot(*at, linestyle="", marker=carets[edge], **look)
            found = True
    return found


def chance_line(axes: Axes, study: Study, flat: bool = False) -> list[Line2D]:
    """Draw a line at the accuracy of random guessing, and return its legend entry.

    If the chance level is not known, or if the line would squeeze all points, draw nothing;
    see `chance_words`.
    """
    level = chance(study)
    if level is None:
        return []
    look: dict[str, Any] = {"color": GRAY, "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
    if level < (axes.get_xlim() if flat else axes.get_ylim())[0]:
        return []
    (axes.axvline if flat else axes.axhline)(level, zorder=1, **look)
    return [handle(look, f"chance: {level:.3g}")]


def chance(study: Study) -> float | None:
    """Return the accuracy of guessing, or None if the runs differ in it or that of a run with
    evaluations is not known.
    """
    known = study.runs["chance"].notna()
    is_evaluated = study.runs["run_id"].isin(study.evaluations["run_id"])
    levels = study.runs.loc[known | is_evaluated, "chance"]
    if levels.empty or levels.isna().any() or levels.max() - levels.min() > _EQUAL_CHANCE:
        return None
    return float(levels.max())


_EQUAL_CHANCE = 0.005  # which parts of one data set may differ by


def chance_words(study: Study, drawn: Sequence[Line2D]) -> str:
    """Return a sentence for a caption if the accuracy of random guessing lies beyond the axis."""
    level = chance(study)
    return "" if level is None or drawn else f"Chance, {level:.3g}, lies beyond the axis."


def accuracy_limits(study: Study, values: Iterable[float]) -> tuple[float, float]:
    low, high = extent(values)
    level = chance(study)
    if level is not None and low - level <= 2 * (high - low):
        low = min(low, level)
    margin = max(0.02, 0.08 * (high - low))
    return low - margin, high + margin


def has_learned(study: Study) -> bool:
    """Return True if some cell is more accurate than random guessing, if this is unknown for some
    cell, or if no cell has a completed run.
    """
    cells = analysis.cells(study.runs)
    known = cells.loc[cells["n"] > 0, "has_learned"]
    return known.empty or bool(known.fillna(True).any())


def draw_line(axes: Axes, look: dict[str, Any], cells: pd.DataFrame, metric: str) -> None:
    """Draw a line through the means of cells, and the interval or the single seeds of each cell.

    See `draw_spread`.
    """
    known = cells[cells[metric].notna()]
    # A cell of two seeds has its points drawn in place of a mean.
    shown = [int(place) for place in np.flatnonzero(known["n"] != 2)]
    axes.plot(known.index, known[metric], **look, markevery=shown)
    draw_spread(axes, known, metric, look["color"], look["marker"])


def draw_spread(
    axes: Axes, cells: pd.DataFrame, metric: str, color: str, marker: str = "o", flat: bool = False
) -> None:
    """Draw how the seeds of each cell scatter: an interval with small circles, or two points for a
    cell with two seeds. The cells' index gives the position on the other axis.
    """
    half = cells[f"{metric}_ci95"]
    if half.notna().any():
        place = (cells[metric], cells.index) if flat else (cells.index, cells[metric])
        bars: dict[str, Any] = {
            "xerr" if flat else "yerr": half,
            "fmt": "none",
            "ecolor": color,
            "elinewidth": 1.0,
        }
        axes.errorbar(*place, **bars)
    behind_the_mean = 1.9
    small: dict[str, Any] = {
        "marker": "o",
        "markersize": 3,
        "markerfacecolor": "white",
        "zorder": behind_the_mean,
    }
    for these, look in ((cells["n"] > 2, small), (cells["n"] == 2, {"marker": marker})):
        points = cells.loc[these, f"{metric}_points"].explode().dropna().astype(float)
        if len(points):
            place = (points, points.index) if flat else (points.index, points)
            axes.plot(*place, linestyle="", color=color, **look)


def legends(figure: Figure, *legends: tuple[Sequence[Artist], str]) -> None:
    """Add a legend, or two legends side by side, below the panels of a figure.

    Each has entries and a title. The figure grows by the height of the taller legend.
    """
    room = figure.get_figwidth() * figure.dpi / len(legends) - 8
    tallest = 0.0
    for place, (handles, title) in zip(
        ("left", "right") if len(legends) > 1 else ("center",), legends, strict=True
    ):
        for entry in handles:
            entry.set_label(broken(str(entry.get_label()), _MAX_LABEL // len(legends)))
        where: Any = f"outside lower {place}"
        # The fewest rows that leave the legend within the figure.
        for rows in range(1, len(handles) + 2):
            columns = max(1, math.ceil(len(handles) / rows))
            legend = figure.legend(handles=handles, title=title, loc=where, ncols=columns)
            box = legend.get_window_extent()
            if box.width <= room or columns == 1:
                break
            legend.remove()
        tallest = max(tallest, box.height / figure.dpi)
    figure.set_figheight(figure.get_figheight() + tallest)
