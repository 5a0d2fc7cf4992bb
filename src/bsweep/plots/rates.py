"""The figure that compares batch sizes at the best learning rate of each and at one rate or rule
for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bsweep.analysis import Study, tuning
from bsweep.analysis.fairness import one_rate_for_all, rate_words
from bsweep.analysis.keys import RATES, levels
from bsweep.analysis.naming import heading
from bsweep.analysis.tuning import best_by
from bsweep.plots import drawing
from bsweep.plots.curves import INK, handle, said

_MOST_PANELS = 4
_BEST: dict[str, Any] = {"color": INK, "marker": "o", "linestyle": "-"}
_ONE: dict[str, Any] = {"color": drawing.GRAY, "marker": "s", "linestyle": "--"}
_OTHER: dict[str, Any] = {"color": "#AAAAAA", "marker": ".", "linewidth": 0.8, "zorder": 1}


def several_batches(study: Study) -> pd.DataFrame:
    """Return the table of the learning rates that were tried, without combinations of the other
    settings that have one batch size.
    """
    table = tuning.rates(study)
    if table.empty:
        return table
    batches = table.index.to_frame()["local_batch"].groupby(level=_apart(table))
    return table[batches.transform("nunique") > 1]


def _apart(table: pd.DataFrame) -> list[str]:
    return [name for name in levels(table) if name not in (*RATES, "local_batch")]


def rate_by_batch(study: Study, table: pd.DataFrame) -> Figure:
    """Draw two panels over the batch size, side by side: the test accuracy or the time to the
    target, and the learning rates.

    In each, one line has the best rate of each batch size, and the other has one rate or rule for
    all. Cells that differ in other settings, such as the strategy, have panels of their own, at
    most four pairs.
    """
    apart = _apart(table)
    every = sorted(table.groupby(level=apart, sort=False), key=lambda group: -len(group[1]))
    groups = every[:_MOST_PANELS]
    varying = [name for name in apart if table.index.get_level_values(name).nunique() > 1]
    figure, grid = drawing.grid(len(groups), 2, 2.4)
    rules = []
    for (score, rate), (_, rows) in zip(grid, groups, strict=True):
        one = one_rate_for_all(rows)
        rules.append(rate_words(one))
        _draw_scores(score, rows, one)
        _draw_rates(rate, rows, one)
    titles = [
        ", ".join(
            said(name, value) for name, value in zip(apart, key, strict=True) if name in varying
        )
        for key, _ in groups
    ]
    name = heading(study.runs, str(table["metric"].iloc[0]))
    labels = [f"{name[:1].upper()}{name[1:]}", "Learning rate"]
    drawing.name_panels(titles, grid, drawing.BATCH_LABEL, labels)
    words = " or ".join(dict.fromkeys(rules))
    entries = [
        handle(_BEST, f"best rate of each batch size, by {best_by(study)}"),
        handle(_ONE, words),
        handle(_OTHER, "the other rates"),
    ]
    drawing.legends(figure, (entries, ""))
    return drawing.captioned(
        figure,
        f"Left: {name} with the best learning rate of each batch size, by "
        f"{best_by(study)}, found by the same runs, beside the result with one rate or rule for "
        "all. Right: these rates and all others that were tried.",
        drawing.repeats(table["n"]),
        f"Shown for {len(groups)} of {len(every)} combinations of the other settings."
        if len(groups) < len(every)
        else "",
    )


def _draw_scores(axes: Axes, rows: pd.DataFrame, one: pd.DataFrame) -> None:
    settings = [name for name in levels(rows) if name in RATES]
    for _, of in rows.groupby(level=settings):
        axes.plot(_along_batch(of)["score"].dropna(), **_OTHER)
    drawing.draw_line(axes, _ONE, _along_batch(one), "score")
    drawing.draw_line(axes, _BEST, _along_batch(rows[rows["is_best"]]), "score")
    drawing.log_axis(axes, rows, "local_batch")
    if rows["metric"].iloc[0] == "seconds_to_target":
        axes.set_ylim(bottom=0)


def _draw_rates(axes: Axes, rows: pd.DataFrame, one: pd.DataFrame) -> None:
    every, best = _along_batch(rows), _along_batch(rows[rows["is_best"]])
    axes.plot(every.index, every["learning_rate"], **{**_OTHER, "linestyle": ""})
    axes.plot(_along_batch(one)["learning_rate"], **_ONE)
    axes.plot(best["learning_rate"], **_BEST)
    drawing.log_axis(axes, rows, "local_batch")
    axes.set_yscale("log")
    low, high = drawing.extent(np.asarray(every["learning_rate"]))
    drawing.plain_log_ticks(axes.yaxis, low, high)
    axes.set_ylim(low / 1.3, high * 1.3)


def _along_batch(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.reset_index(
        [name for name in levels(rows) if name != "local_batch"], drop=True
    ).sort_index()
