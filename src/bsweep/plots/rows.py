"""Panels with a row for each cell of a study, and bars in such rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis.study.naming import applies
from bsweep.plots import drawing
from bsweep.plots.curves import value_label

Column = tuple[str, pd.DataFrame, Mapping[Any, dict[str, Any]]]
_MAX_ROWS = 48
_MAX_LETTERS = 36  # in a line of a row's label


def few_enough(table: pd.DataFrame, most: int = _MAX_ROWS) -> tuple[pd.DataFrame, str]:
    """Return the cells of a table that fit on a page, and a sentence that says which cells are
    shown.

    The sentence is empty if all cells fit. If there are too many, the first `most` cells of the
    batch size with the most cells are taken.
    """
    if len(table) <= most:
        return table, ""
    batches = table.index.get_level_values("local_batch")
    counts = Counter(batches)
    batch = max(counts, key=lambda batch: (counts[batch], batch))
    first = f"the first {most} of {counts[batch]} cells of " if counts[batch] > most else ""
    return (
        table[batches == batch].iloc[:most],
        f"Shown for {first}local batch {batch}; the tables have all cells.",
    )


def panels_of_rows(
    table: pd.DataFrame, columns: int, row_inches: float = 0.19, sorted_by: str = ""
) -> tuple[Figure, list[tuple[list[Axes], pd.DataFrame]]]:
    """Return an empty figure that has a row for each cell, and its panels with the cells that they
    show.

    There are `columns` panels side by side. Cells that share a panel differ in variant, or else in
    batch size. If neither varies, all cells share one panel. Cells are numbered by their row, in
    the order of the column `sorted_by` if it is given.
    """
    if sorted_by:
        table = table.sort_values(sorted_by, kind="stable")
    varying = analysis.varying(table)
    compared = next((name for name in ("variant", "local_batch") if name in varying), "num_workers")
    by = [name for name in ("num_workers", "local_batch") if name in varying and name != compared]
    groups = [rows for _, rows in table.groupby(level=by)] if by else [table]
    named = [name for name in varying if name not in by] or [compared]
    labels = [list(_labels(rows, named)) for rows in groups]
    most_lines = max(label.count("\n") + 1 for names in labels for label in names)
    row_inches = max(row_inches, 0.03 + 0.12 * most_lines)
    height = 0.75 + sum(0.42 + row_inches * len(rows) for rows in groups)
    figure = Figure(figsize=(drawing.width(), height), layout="constrained")
    shares: dict[str, Any] = {"sharex": "col", "sharey": "row", "squeeze": False}
    heights = [1.2 + len(rows) for rows in groups]
    grid = figure.subplots(len(groups), columns, height_ratios=heights, **shares)
    for axes, rows, names in zip(grid[:, 0], groups, labels, strict=True):
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        where = [value_label(name, rows.index.get_level_values(name)[0]) for name in by]
        axes.set_title(", ".join(where), loc="left")
    for axes in grid.flat:
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure, [(list(row), rows) for row, rows in zip(grid, groups, strict=True)]


def _labels(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    statuses = rows.get("other_statuses", pd.Series("", index=rows.index))
    values = zip(*(rows.index.get_level_values(name) for name in names), strict=True)
    for settings, status in zip(values, statuses, strict=True):
        pairs = zip(names, settings, strict=True)
        label = ", ".join(value_label(name, value) for name, value in pairs if applies(name, value))
        text = f"{label}: {status.replace('_', ' ')}" if status else label
        yield drawing.broken(text, _MAX_LETTERS)


def bars(
    cells: pd.DataFrame,
    columns: Sequence[Column],
    row_inches: float = 0.19,
    sorted_by: str = "",
) -> tuple[Figure, list[tuple[list[Axes], pd.DataFrame]]]:
    """Draw stacked bars, in a row for each cell and a column of panels for each quantity.

    Args:
        cells: The cells.
        columns: The label of each quantity, a table of its parts, and the look of each part by the
            name of the part's column. A cell has a bar for each of its rows in this table.
        row_inches: The height of a row.
        sorted_by: The column of `cells` in which the rows ascend.

    Returns:
        The figure, and its panels with the cells that they show.
    """
    figure, panels = panels_of_rows(cells, len(columns), row_inches, sorted_by)
    for row, rows in panels:
        for axes, (label, lengths, looks) in zip(row, columns, strict=True):
            groups = [lengths.loc[[key]] for key in rows.index]
            spots = [within(place, len(group)) for place, group in enumerate(groups)]
            places, heights = (np.concatenate(each) for each in zip(*spots, strict=True))
            stacked, left = pd.concat(groups)[[*looks]], np.zeros(len(places))
            for part, look in looks.items():
                widths = stacked[part].fillna(0).to_numpy(float)
                axes.barh(places, widths, heights, left=left, **look)
                left += widths
            for place, group in enumerate(groups):
                if group[[*looks]].isna().all(axis=None):
                    write_beside(axes, 0, place, "not measured", color=drawing.GRAY)
            axes.set_xlim(left=0)
            axes.set_xlabel(label if rows is panels[-1][1] else "")
    return figure, panels


def within(place: int, count: int) -> tuple[Any, Any]:
    """Return the places and the heights of `count` bars in one row."""
    room = 0.8 / count
    heights = np.full(count, room if count == 1 else 0.9 * room)
    return place + room * (np.arange(count) - (count - 1) / 2), heights


def write_beside(axes: Axes, x: float, place: float, text: str, **look: Any) -> None:
    """Write a small text to the right of a point in a row."""
    where: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 7}
    axes.annotate(text, (x, place), (3, 0), **where, **look)
