"""The style, grid of panels, legends, caption and files that every figure has."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep.analysis import Study
from bsweep.plots.curves import readable
from bsweep.plots.styles import settings_of

PALE = "#A9C6D9"
GRAY = "#7A7A7A"
_SIZE = 9  # points of the type of a figure that is not drawn for a paper
_BESIDE = 0.75  # inches that the labels of an axes take of its width
_BELOW = 0.3  # inches that its title or labels take of its height
_LETTER = 0.065  # inches of a letter of a label
_LONGEST_WORD = 5  # letters by which a line of a label may be longer than the others
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
    ends = sorted(set(numbers))
    return " to ".join(str(number) for number in dict.fromkeys([*ends[:1], *ends[-1:]]))


def grid(num_panels: int, num_parts: int, height: float = 2.1) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with `num_parts` axes in a row for each panel, and these axes.

    If there are more than three panels of one or two axes, several stand side by side. The axes of
    a lone panel are two abreast.
    """
    abreast = 1 if num_panels <= 3 else max(1, (4 if num_parts > 1 else 3) // num_parts)
    columns = abreast * num_parts if num_panels > 1 else min(2, num_parts)
    num_axes = num_panels * num_parts
    num_rows = math.ceil(num_axes / columns)
    size = (width(), 0.5 + num_rows * (height if num_rows <= 3 else 1.3))
    figure = Figure(figsize=size, layout="constrained")
    every = [*figure.subplots(num_rows, columns, squeeze=False).flat]
    for unused in every[num_axes:]:
        unused.remove()
    return figure, [every[at : at + num_parts] for at in range(0, num_axes, num_parts)]


def name_panels(
    titles: Iterable[str], grid: Sequence[Sequence[Axes]], labels: Sequence[tuple[str, str]]
) -> None:
    """Set the titles of a figure's panels and the labels of their axes.

    Labels and numbers that panels share stand at the outer axes alone. So the caller gives all axes
    of one part, such as the test's, the same range. A label that is longer than its axis has
    several lines.

    Args:
        titles: The title of each panel.
        grid: The axes of each panel.
        labels: The horizontal and the vertical label of each part.
    """
    places: list[list[Any]] = [[axes.get_subplotspec() for axes in row] for row in grid]
    title_letters = 46 if len(grid) <= 3 else 34 if len(labels) > 1 else 32
    lowest = {place.colspan.start: place.rowspan.start for row in places for place in row}
    for title, row, spots in zip(titles, grid, places, strict=True):
        row[0].set_title(broken(title, title_letters), loc="left")
        for axes, place, (across, upwards) in zip(row, spots, labels, strict=True):
            is_left = place.colspan.start < len(labels)
            is_low = lowest[place.colspan.start] == place.rowspan.start
            wide, high = inches(axes)
            axes.set_xlabel(_label(across, wide) if is_low else "")
            axes.set_ylabel(_label(upwards, high) if is_left else "")
            axes.tick_params(labelleft=is_left, labelbottom=is_low)


def inches(axes: Axes) -> tuple[float, float]:
    """Return the width and the height that a panel in a grid has at least, without its labels."""
    gridspec, figure = axes.get_gridspec(), axes.get_figure(root=True)
    assert gridspec is not None
    assert figure is not None
    wide, high = figure.get_size_inches()
    return wide / gridspec.ncols - _BESIDE, high / gridspec.nrows - _BELOW


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


def add_legend(figure: Figure, handles: Sequence[Artist], title: str = "") -> None:
    """Add a legend below the panels of a figure, which grows by the legend's height."""
    room = figure.get_figwidth() * figure.dpi - 8
    for entry in handles:
        entry.set_label(broken(str(entry.get_label()), _MAX_LABEL))
    where: Any = "outside lower center"
    # The fewest rows that leave the legend within the figure.
    for rows in range(1, len(handles) + 2):
        columns = max(1, math.ceil(len(handles) / rows))
        legend = figure.legend(handles=handles, title=title, loc=where, ncols=columns)
        box = legend.get_window_extent()
        if box.width <= room or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
