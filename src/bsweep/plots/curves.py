"""Functions that turn the cells of a study into the lines and panels of a figure.

Lines are named in words and ordered by their settings: numbers ascend, other settings are in the
order of their launch. In some figures, variants with equal values share one line. At most eight
lines share a panel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
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

# Okabe and Ito (2008) without yellow and black, which are hard to see on a white or a dark page;
# the last two are seen on both.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8B5A2B", "#7B68C8")
INK = "#333333"  # of rows and of lines beyond the colours, which labels and markers tell apart
# Ordered quantities have colours from a sequential map, between these ends of it.
_RAMPS = {"local_batch": ("viridis", 0.0, 0.85), "num_workers": ("YlOrBr", 0.4, 0.95)}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
# The look of background lines, which have panels of their own.
BEHIND: dict[str, Any] = {"color": "#D5D5D5", "linewidth": 0.8, "zorder": 1}
BAND: dict[str, Any] = {"alpha": 0.12, "linewidth": 0}  # of an interval around a line
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

    look: dict[str, Any]
    cells: pd.DataFrame
    key: dict[str, Any] = field(default_factory=dict)
    colored_by: str = ""
    color_label: str = ""
    line_label: str = ""
    members: tuple[str, ...] = ()

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
    index["variant"] = [names.get(name) or words("variant", name) for name in index["variant"]]
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
    return table.sort_index(key=partial(_ranks, study), kind="stable")


def _ranks(study: Study, setting: pd.Index[Any]) -> Any:
    """Return the position in the order of display of each value of an index level."""
    values = _values(setting)
    if not pd.api.types.is_numeric_dtype(setting) and "launched_at" in study.provenance:
        launched = pd.to_numeric(study.provenance.set_index("run_id")["launched_at"])
        runs = analysis.by_cell(study.runs)
        if setting.name in runs.index.names:
            first = runs["run_id"].map(launched).groupby(level=setting.name).min()
            values.sort(key=lambda value: first.get(value, np.inf))
    return pd.Index(pd.Index(values).get_indexer(setting))


def _values(setting: pd.Index[Any]) -> list[Any]:
    """Return the distinct values of an index: numbers in ascending order, other values in the order
    of the table.
    """
    distinct = setting.unique()
    return list(distinct.sort_values() if pd.api.types.is_numeric_dtype(setting) else distinct)


def _names(study: Study) -> dict[str, str]:
    """Return a name for each variant that lists the batches of its workers.

    The result is empty if no cell has workers with different batches, or if the local batch varies
    between cells.
    """
    cells = analysis.cells(study.runs)
    if not (cells["local_batches"] != "").any() or "local_batch" in analysis.varying(cells):
        return {}
    even = str(cells.index.get_level_values("local_batch")[0])
    lists = cells["local_batches"].replace("", even).groupby(level="variant")
    return {
        str(name): f"{words('variant', name)} ({'; '.join(map(_each, dict.fromkeys(texts)))})"
        for name, texts in lists
    }


def _each(batches: str) -> str:
    first, *others = dict.fromkeys(batches.split("/"))
    return batches if others else f"{first} each"


def value_label(name: str, value: object) -> str:
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
    return ", ".join(value_label(name, table.index.get_level_values(name)[0]) for name in shared)


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
    varying = {"variant", *analysis.varying(cells)}
    looks: dict[tuple[str, Any], dict[str, Any]] = {}
    places = count()
    for name in sorted(analysis.levels(cells), key=lambda name: name != "variant"):
        values = _values(cells.index.get_level_values(name))
        if name in _RAMPS:
            colors = zip(ramp(name, len(values)), cycle(MARKERS), strict=False)
            looks |= {
                (name, value): {"color": color, "marker": marker}
                for value, (color, marker) in zip(values, colors, strict=False)
            }
        elif name in varying:
            looks |= {(name, value): categorical(next(places)) for value in values}
    return looks


def ramp(name: str, count: int) -> list[str]:
    """Return `count` colours for the values of an ordered quantity, the smallest value first."""
    map_name, low, high = _RAMPS[name]
    return [to_hex(colormaps[map_name](at)) for at in np.linspace(low, high, max(count, 2))][:count]


def categorical(place: int) -> dict[str, Any]:
    """Return the colour and the marker of the value at a place among values without an order."""
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
    groups: dict[Any, pd.DataFrame] = dict(list(table.groupby(level=names, sort=False)))
    members = _alike(groups, names, along, alike_in)
    counts = pd.DataFrame(list(members), columns=names).nunique()
    preferred = sorted(names, key=lambda name: name != colored_by)
    colored_by = max(preferred, key=lambda name: int(counts[name]))
    at = names.index(colored_by)
    dashes = list(dict.fromkeys(key[:at] + key[at + 1 :] for key in members))
    varying = [name for name in names if name in analysis.varying(table)]
    # The level that names the line if there is only one.
    alone = "local_batch" if colored_by == "local_batch" else "variant"
    drawn = []
    for key, variants in members.items():
        settings = dict(zip(names, key, strict=True))
        shown = [name for name in varying or [alone] if applies(name, settings[name])]
        labels = {name: value_label(name, settings[name]) for name in shown}
        if colored_by == "local_batch":
            labels[colored_by] = str(key[at])  # The legend's title names the quantity.
        if len(variants) > 1:
            labels["variant"] = f"{settings['variant']} and {len(variants) - 1} equal to it"
        color_label, line_label = labels.pop(colored_by, ""), ", ".join(reversed(labels.values()))
        look = looks(study).get((colored_by, key[at])) or categorical(0)
        dash = LINES[dashes.index(key[:at] + key[at + 1 :]) % len(LINES)]
        cells, look = groups[key].droplevel(names), {**look, "linestyle": dash}
        drawn.append(Curve(look, cells, settings, colored_by, color_label, line_label, variants))
    return drawn


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
        places = cells.index.get_level_values(along)
        first = firsts.setdefault((*settings.values(), *places, *values) if is_known else key, key)
        members[first] = (*members.get(first, ()), variant)
    return members


def alike_words(curves: Sequence[Curve]) -> str:
    """Return a text with one sentence for each line of a figure that stands for several variants
    with equal values.
    """
    sentences = []
    for curve in curves:
        if len(curve.members) > 1:
            others = curve.line_label if curve.colored_by == "variant" else curve.color_label
            sentences.append(
                f"One line stands for {len(curve.members)} variants with equal values"
                f"{f' ({others})' if others else ''}: {'; '.join(curve.members)}."
            )
    return " ".join(sentences)


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
    solid = [replace(curve, look={**curve.look, "linestyle": "-"}) for curve in curves]
    groups: dict[str, list[Curve]] = {}
    for curve in solid:
        groups.setdefault(curve.line_label, []).append(curve)
    is_alone = max(map(len, groups.values())) > MAX_LINES
    shown, left_out = _best(
        study, [[curve] for curve in solid] if is_alone else list(groups.values()), metric
    )
    drawn = [curve for group in shown for curve in group]
    return [
        Panel(
            group[0].label if is_alone else group[0].line_label,
            group,
            [curve for curve in drawn if curve is not group[0]] if is_alone else (),
            left_out,
        )
        for group in shown
    ]


def _best(study: Study, groups: list[list[Curve]], metric: str) -> tuple[list[list[Curve]], str]:
    """Return the groups of lines that have panels, and a sentence if these are not all."""
    if len(groups) <= MAX_PANELS:
        return groups, ""
    is_more_better = metric.endswith(("accuracy", "per_second"))
    sign = -1 if is_more_better else 1
    scores = [min((sign * curve.cells[metric]).min() for curve in group) for group in groups]
    order = np.argsort(scores, kind="stable")  # NaN comes last
    best = "largest" if is_more_better else "smallest"
    name = metric.replace("test_", f"{evaluated_part(study.runs)} ").replace("_", " ")
    return [groups[at] for at in sorted(order[:MAX_PANELS])], (
        f"The figure shows {MAX_PANELS} of {len(groups)} panels: those with the {best} "
        f"{name}. The tables have all."
    )


def handles(curves: Sequence[Curve]) -> list[Line2D]:
    """Return the legend's entries for lines: one for each line, or one for each colour and one for
    each dash pattern.

    The second form is used if the lines differ in their dash pattern.
    """
    if len({curve.line_label for curve in curves}) < 2:
        return [handle(curve.look, curve.label) for curve in curves]
    dashes = {curve.line_label: curve.look["linestyle"] for curve in curves}
    black = [handle({"color": "#444444", "linestyle": dashes[text]}, text) for text in dashes]
    return [*_colors(curves), *black]


def _colors(curves: Sequence[Curve]) -> list[Line2D]:
    """Return one legend entry for each colour."""
    looks = {
        curve.color_label or curve.line_label: {**curve.look, "linestyle": "-"} for curve in curves
    }
    return [handle(look, label) for label, look in looks.items()]


def panel_handles(panels: Sequence[Panel]) -> list[Line2D]:
    """Return the legend's entries for the lines in a figure's panels, whose titles explain the dash
    patterns if there are several.
    """
    if panels[0].others:
        return [handle(BEHIND, "the others")]
    shown = [curve for panel in panels for curve in panel.curves]
    return handles(shown) if len(panels) == 1 else _colors(shown)


def handle(look: dict[str, Any], label: str) -> Line2D:
    return Line2D([], [], label=label, **look)
