"""Functions for figures that show each cell of a study as a row, with bars or dots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis.study.naming import applies
from bsweep.plots import drawing
from bsweep.plots.curves import INK, said

_MAX_ROWS = 48
_MAX_LETTERS = 36  # in a line of a row's label
Rows = tuple[list[Axes], pd.DataFrame]


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
) -> tuple[Figure, list[Rows]]:
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
    groups = (
        [
            # Before pandas 3, the key of one level is no tuple.
            (dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)), rows)
            for key, rows in table.groupby(level=by)
        ]
        if by
        else [({}, table)]
    )
    named = [name for name in varying if name not in by] or [compared]
    labels = [list(_labels(rows, named)) for _, rows in groups]
    row_inches = max(
        row_inches, *(0.03 + 0.12 * (label.count("\n") + 1) for names in labels for label in names)
    )
    height = 0.75 + sum(0.42 + row_inches * len(rows) for _, rows in groups)
    figure = Figure(figsize=(drawing.width(), height), layout="constrained")
    heights = [1.2 + len(rows) for _, rows in groups]
    grid = figure.subplots(
        len(groups), columns, squeeze=False, sharex="col", sharey="row", height_ratios=heights
    )
    for axes, (where, rows), names in zip(grid[:, 0], groups, labels, strict=True):
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(", ".join(said(name, value) for name, value in where.items()), loc="left")
    for axes in grid.flat:
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure, [(list(row), rows) for row, (_, rows) in zip(grid, groups, strict=True)]


def _labels(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    statuses = rows.get("other_statuses", pd.Series("", index=rows.index))
    for key, status in zip(rows.index, statuses, strict=True):
        settings = dict(zip(analysis.levels(rows), key, strict=True))
        label = ", ".join(
            said(name, settings[name]) for name in names if applies(name, settings[name])
        )
        yield drawing.broken(
            f"{label}: {status.replace('_', ' ')}" if status else label,
            _MAX_LETTERS,
        )


def numbered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.reset_index(drop=True)


def draw_dots(axes: Axes, rows: pd.DataFrame, metric: str, color: str = INK) -> None:
    """Draw for each cell a dot at the mean of its seeds or, if it has two seeds, a dot at each.

    A faint line across the panel marks the row of the cell.
    """
    cells = numbered(rows)
    axes.hlines(
        cells.index,
        0,
        1,
        transform=axes.get_yaxis_transform(),
        color="#E3E3E3",
        linewidth=0.6,
        zorder=0,
    )
    means = cells[cells["n"] != 2]
    look: dict[str, Any] = {"linestyle": "", "marker": "o", "color": color}
    axes.plot(means[metric], means.index, **look)
    drawing.draw_spread(axes, cells[cells[metric].notna()], metric, color, flat=True)
