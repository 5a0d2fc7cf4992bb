"""Functions that turn the cells of a study into the lines and panels of a figure.

Lines are named in words and ordered by their settings: numbers ascend, other settings are in the
order of their launch. In some figures, variants with equal values share one line. At most eight
lines share a panel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.naming import applies, evaluated_part, words

# Okabe and Ito (2008) without the yellow, which is hard to see on a white page, and without the
# black; the last two are from Tol's muted scheme.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#999933")
INK = "#333333"  # of rows and of lines beyond the colours, which labels and markers tell apart
# Ordered quantities have colours from a sequential map, between these ends of it.
_RAMPS = {"local_batch": ("viridis", 0.0, 0.85), "num_workers": ("YlOrBr", 0.4, 0.95)}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MAX_LINES = 8  # in a panel
MAX_PANELS = 8
# The end of a variant's name that lists each worker's batch.
_LISTED = re.compile(r"\(\d+(?:(?:/\d+)+| each)\)$")


@dataclass(frozen=True)
class Curve:
    """One line of a figure.

    `cells` are indexed by the quantity on the horizontal axis. `members` are the variants that the
    line stands for.
    """

    key: dict[str, Any]
    colored_by: str
    color_label: str
    line_label: str
    look: dict[str, Any]
    cells: pd.DataFrame
    members: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.color_label, self.line_label)))


@dataclass(frozen=True)
class Panel:
    """The lines that one panel of a figure shows.

    If each line has a panel of its own, `others` are drawn in its background.
    """

    title: str
    curves: Sequence[Curve]
    others: Sequence[Curve] = ()
    left_out: str = ""  # a sentence: which panels the figure shows, if not all


def readable(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of cells sorted for display, with the names of the variants in words.

    The order is that of `in_order`. If some workers are uneven and the cells have one local batch,
    the name of a variant lists the batches of its workers.
    """
    if table.empty or "variant" not in table.index.names:
        return table
    table, names = in_order(study, table), _names(study)
    index = table.index.to_frame(index=False)
    index["variant"] = [
        names.get(variant) or words("variant", variant) for variant in index["variant"]
    ]
    return table.set_index(pd.MultiIndex.from_frame(index))


def in_order(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table's rows sorted by their settings: numbers ascend, other settings are in the
    order of their launch.

    If the order of launch is not on record, other settings keep the order of the table.

    Args:
        study: The study, whose order of launches is used.
        table: A table whose index levels are settings.

    Returns:
        All rows of `table`, reordered.
    """
    ranks = zip(*(_ranks(study, table, name) for name in analysis.levels(table)), strict=True)
    return table.iloc[[place for _, place in sorted(zip(ranks, range(len(table)), strict=True))]]


def _ranks(study: Study, table: pd.DataFrame, name: str) -> list[int]:
    """Return, for each row of a table, the position of the row's value of the index level `name` in
    the order of display.
    """
    found = table.index.get_level_values(name)
    values = _values(found)
    if not pd.api.types.is_numeric_dtype(found) and "launched_at" in study.provenance:
        launched = pd.to_numeric(study.provenance.set_index("run_id")["launched_at"])
        runs = analysis.by_cell(study.runs)
        if name in runs.index.names:
            first = runs["run_id"].map(launched).groupby(level=name).min()
            values.sort(key=lambda value: first.get(value, np.inf))
    places = {value: place for place, value in enumerate(values)}
    return [places[value] for value in found]


def _values(found: pd.Index[Any]) -> list[Any]:
    """Return the distinct values of an index: numbers in ascending order, other values in the order
    of the table.
    """
    return (
        sorted(set(found)) if pd.api.types.is_numeric_dtype(found) else list(dict.fromkeys(found))
    )


def _names(study: Study) -> dict[str, str]:
    """Return a name for each variant that lists the batches of its workers.

    The result is empty if no cell has workers with different batches, or if the local batch varies
    between cells.
    """
    cells = analysis.cells(study.runs)
    if not (cells["local_batches"] != "").any() or "local_batch" in analysis.varying(cells):
        return {}
    even = str(cells.index.get_level_values("local_batch")[0])
    lists = (
        cells["local_batches"]
        .replace("", even)
        .groupby(level="variant")
        .agg(dict.fromkeys)
        .map(list)
    )
    named = {str(name): "; ".join(map(_each, texts)) for name, texts in lists.items()}
    return {name: f"{words('variant', name)} ({batches})" for name, batches in named.items()}


def _each(batches: str) -> str:
    found = batches.split("/")
    return batches if len(set(found)) > 1 else f"{found[0]} each"


def said(name: str, value: object) -> str:
    """Return the value of a setting in words for a label; the value of `variant` is returned as it
    is.
    """
    return str(value) if name == "variant" else words(name, value)


def common(table: pd.DataFrame, names: Sequence[str] = ("num_workers", "local_batch")) -> str:
    """Return a text with the worker count and the batch size, leaving out each of them that differs
    between cells.

    The text is empty if the cells differ in no setting.
    """
    varying = analysis.varying(table)
    is_uneven = table.index.get_level_values("variant").astype(str).str.contains(_LISTED).any()
    shared = [
        name
        for name in names
        if varying and name not in varying and not (is_uneven and name == "local_batch")
    ]
    return ", ".join(said(name, table.index.get_level_values(name)[0]) for name in shared)


@cached
def looks(study: Study) -> dict[tuple[str, Any], dict[str, Any]]:
    """Return the colour and the marker of each batch size, worker count and variant of a study's
    cells, and of each value of other settings that vary, by the name of the setting and its value.

    Batch sizes and worker counts each have a sequential palette. Other settings, such as
    strategies, share one list of colours.

    Args:
        study: The study.

    Returns:
        The looks; names of variants are in words, as in `readable`.
    """
    cells = readable(study, analysis.cells(study.runs))
    varying = analysis.varying(cells)
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    place = 0
    for name in sorted(analysis.levels(cells), key=lambda name: name != "variant"):
        values = _values(cells.index.get_level_values(name))
        if name in _RAMPS:
            for at, (value, color) in enumerate(zip(values, ramp(name, len(values)), strict=True)):
                found[name, value] = {"color": color, "marker": MARKERS[at % len(MARKERS)]}
        elif name in varying or name == "variant":
            for value in values:
                found[name, value] = _categorical(place)
                place += 1
    return found


def ramp(name: str, count: int) -> list[str]:
    """Return `count` colours for the values of an ordered quantity, the smallest value first."""
    map_name, low, high = _RAMPS[name]
    return [to_hex(colormaps[map_name](at)) for at in np.linspace(low, high, max(count, 2))][:count]


def _categorical(place: int) -> dict[str, Any]:
    return {
        "color": COLORS[place] if place < len(COLORS) else INK,
        "marker": MARKERS[(place + place // len(COLORS)) % len(MARKERS)],
    }


def curves(
    study: Study,
    table: pd.DataFrame,
    along: str,
    colored_by: str,
    alike_in: Sequence[str] = (),
) -> list[Curve]:
    """Return the lines of a figure, one for each combination of settings other than the horizontal
    axis `along`.

    Colour and marker tell the values of one level apart, dashes those of the other levels. The
    level for colours is the one with the most values, or `colored_by` if none has more.

    Args:
        study: The study, all of whose cells determine the colours.
        table: The cells.
        along: The index level on the horizontal axis.
        colored_by: The preferred level for colours.
        alike_in: Columns to compare. Variants that are equal in them become one line.
    """
    names: list[Any] = [name for name in analysis.levels(table) if name != along]
    if table.empty:
        return []
    groups: dict[Any, pd.DataFrame] = dict(list(table.groupby(level=names, sort=False)))
    members = _alike(groups, names, along, alike_in)
    shown = pd.MultiIndex.from_tuples(members, names=names)
    levels = {name: _values(shown.get_level_values(name)) for name in names}
    colored_by = max(
        sorted(names, key=lambda name: name != colored_by), key=lambda name: len(levels[name])
    )
    at = names.index(colored_by)
    known = looks(study)
    others = {
        rest: place
        for place, rest in enumerate(dict.fromkeys(key[:at] + key[at + 1 :] for key in members))
    }
    varying = [name for name in names if name in analysis.varying(table)]
    # The level that names the line if there is only one.
    alone = "local_batch" if colored_by == "local_batch" else "variant"
    found = []
    for key, of_line in members.items():
        named = dict(zip(names, key, strict=True))
        labels = {
            name: said(name, named[name])
            for name in varying or [alone]
            if applies(name, named[name])
        }
        if colored_by == "local_batch":
            labels[colored_by] = str(key[at])  # The legend's title names the quantity.
        if len(of_line) > 1:
            labels["variant"] = f"{named['variant']} and {len(of_line) - 1} equal to it"
        color_label, line_label = labels.pop(colored_by, ""), ", ".join(reversed(labels.values()))
        line = others[key[:at] + key[at + 1 :]]
        look = known.get((colored_by, key[at])) or _categorical(0)
        look = {**look, "linestyle": LINES[line % len(LINES)]}
        cells = groups[key].droplevel(names)
        found.append(Curve(named, colored_by, color_label, line_label, look, cells, of_line))
    return found


def _alike(
    groups: dict[Any, pd.DataFrame], names: Sequence[str], along: str, columns: Sequence[str]
) -> dict[Any, tuple[str, ...]]:
    """Group the variants whose plotted values are equal, so that they share one line. Return the
    names of each group by the key of its first variant.
    """
    firsts: dict[Any, Any] = {}
    members: dict[Any, tuple[str, ...]] = {}
    for key, cells in groups.items():
        settings = dict(zip(names, key, strict=True))
        variant = str(settings.pop("variant", ""))
        values = [f"{value:.6g}" for value in cells[list(columns)].to_numpy(float).flat]
        is_known = any(value != "nan" for value in values)
        seen = (
            *settings.values(),
            *cells.index.get_level_values(along),
            *values,
            *(() if is_known else key),
        )
        first = firsts.setdefault(seen, key)
        members[first] = (*members.get(first, ()), variant)
    return members


def alike_words(curves: Sequence[Curve]) -> str:
    """Return a text with one sentence for each line of a figure that stands for several variants
    with equal values.
    """
    said = []
    for curve in curves:
        if len(curve.members) > 1:
            others = curve.line_label if curve.colored_by == "variant" else curve.color_label
            other_settings = f" ({others})" if others else ""
            said.append(
                f"One line stands for {len(curve.members)} variants with equal values"
                f"{other_settings}: {'; '.join(curve.members)}."
            )
    return " ".join(said)


def in_panels(
    study: Study, curves: Sequence[Curve], metric: str, apart: bool = False
) -> list[Panel]:
    """Distribute the lines of a figure over panels, at most `MAX_LINES` in each, and return the
    panels.

    If there are more lines, or with `apart`, the lines with the same dashes share a panel. If that
    leaves too many in a panel, each line has its own. Of more than `MAX_PANELS` panels, those with
    the best values of `metric` are returned, in their order.
    """
    if len(curves) <= MAX_LINES and not apart:
        return [Panel("", curves)]
    by_title: dict[str, list[Curve]] = {}
    for curve in curves:
        by_title.setdefault(curve.line_label, []).append(
            replace(curve, look={**curve.look, "linestyle": "-"})
        )
    if all(len(of_title) <= MAX_LINES for of_title in by_title.values()):
        shown, words = _best(study, list(by_title.values()), metric)
        return [Panel(of_title[0].line_label, of_title, left_out=words) for of_title in shown]
    alone, words = _best(
        study, [[replace(curve, look={**curve.look, "linestyle": "-"})] for curve in curves], metric
    )
    every = [curve for (curve,) in alone]
    return [
        Panel(curve.label, [curve], [other for other in every if other is not curve], words)
        for curve in every
    ]


def _best(study: Study, groups: list[list[Curve]], metric: str) -> tuple[list[list[Curve]], str]:
    """Return the groups of lines that have panels, and a sentence if these are not all."""
    if len(groups) <= MAX_PANELS:
        return groups, ""
    is_more_better = metric.endswith(("accuracy", "per_second"))
    sign = -1 if is_more_better else 1
    scores = [min((sign * curve.cells[metric]).min() for curve in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda at: (math.isnan(scores[at]), scores[at]))
    best = "largest" if is_more_better else "smallest"
    name = metric.replace("test_", f"{evaluated_part(study.runs)} ").replace("_", " ")
    words = (
        f"The figure shows {MAX_PANELS} of {len(groups)} panels: those with the {best} "
        f"{name}. The tables have all."
    )
    return [groups[at] for at in sorted(order[:MAX_PANELS])], words


def handles(curves: Sequence[Curve]) -> list[Line2D]:
    """Return the legend's entries for lines: one for each line, or one for each colour and one for
    each dash pattern.

    The second form is used if the lines differ in their dash pattern.
    """
    if len({curve.line_label for curve in curves}) < 2:
        return [handle(curve.look, curve.label) for curve in curves]
    lines = {
        curve.line_label: {"color": "#444444", "linestyle": curve.look["linestyle"]}
        for curve in curves
    }
    return [*colors(curves), *(handle(look, label) for label, look in lines.items())]


def colors(curves: Sequence[Curve]) -> list[Line2D]:
    """Return one legend entry for each colour, for figures whose panel titles already explain the
    dash patterns.
    """
    looks = {
        curve.color_label or curve.line_label: {**curve.look, "linestyle": "-"} for curve in curves
    }
    return [handle(look, label) for label, look in looks.items()]


def panel_handles(panels: Sequence[Panel]) -> list[Line2D]:
    """Return the legend's entries for the lines in a figure's panels."""
    if panels[0].others:
        return [handle({"color": "#D5D5D5"}, "the others")]
    shown = [curve for panel in panels for curve in panel.curves]
    return handles(shown) if len(panels) == 1 else colors(shown)


def handle(look: dict[str, Any], label: str) -> Line2D:
    return Line2D([], [], label=label, **look)
