"""The interactive drawings of a page: Vega-Lite specifications, each of one table.

A specification is plain JSON. It names the table that it draws (`data.name`), and no file. Colours
of texts and lines, fonts and sizes are the page's, so that a chart looks right on dark and light.
"""

from __future__ import annotations

from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
Spec = dict[str, Any]

# Colours of Okabe and Ito, which colour-blind readers can tell apart, without black and yellow,
# which vanish on a dark or a light page.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B5A2B", "#7A7A7A"]
PICKED = "#D55E00"
_HOVERED: Spec = {"name": "hovered", "value": []}  # names of runs and cells, which stand out
_NUMBER = "format({}, '.3~r')"

_HAS_TIME = "isValid(datum.seconds) && !datum.problem"
_DARK = 0.36  # Text is white on a colour whose luminance is lower.
_INK: Spec = {
    "condition": [
        {"test": f"!({_HAS_TIME})", "value": {"expr": "ink"}},
        {"test": f"luminance(scale('color', datum.seconds)) > {_DARK}", "value": "#111"},
    ],
    "value": "white",
}
_TEXTS: list[Spec] = [
    {
        "transform": [{"filter": f"datum.{name} != ''"}],
        "mark": {"type": "text", "interactive": False, "fontSize": {"expr": size}, **look},
        "encoding": {"text": {"field": name}, "color": _INK},
    }
    for name, size, look in (
        (
            "label",
            "room < 50 ? 10 : room < 70 ? 11 : 14",
            {"fontWeight": 600, "dy": {"expr": "room < 62 ? 0 : -7"}},
        ),
        ("interval", "room < 90 ? 9 : 10.5", {"dy": 10}),
        ("said", "11", {"lineBreak": "\n", "lineHeight": 12, "baseline": "middle"}),
    )
]
_COLOR: Spec = {
    "field": "seconds",
    "type": "quantitative",
    "scale": {"type": "log", "scheme": "blues", "reverse": True, "nice": False},
    "legend": None,
}
_FRAME = "room > 12 ? 1.5 : 0.75"  # a frame of narrow columns is thinner, but is there
_FIELD: Spec = {
    "mark": {"type": "rect", "cornerRadius": 3, "cursor": "pointer", "invalid": "show"},
    "encoding": {
        "color": {"condition": {"test": _HAS_TIME, **_COLOR}, "value": "transparent"},
        "stroke": {
            "condition": {"test": "datum.is_picked", "value": PICKED},
            "value": {"expr": "ink"},
        },
        "strokeWidth": {
            "condition": [
                {"test": "datum.is_picked || indexof(hovered, datum.name) >= 0", "value": 4},
                {"test": "datum.num_runs > 0", "value": {"expr": _FRAME}},
            ],
            "value": 0,
        },
    },
}
_SIMULATED: Spec = {  # a rectangle takes no dashes from its data
    "transform": [{"filter": "datum.is_simulated && !(datum.num_runs > 0) && !datum.problem"}],
    "mark": {
        "type": "rect",
        "cornerRadius": 3,
        "fillOpacity": 0,
        "stroke": {"expr": "ink"},
        "strokeWidth": {"expr": _FRAME},
        "strokeDash": {"expr": "room > 12 ? [4, 3] : [2, 2]"},
        "interactive": False,
    },
}


def time_map() -> Spec:
    """Return a map of cells by global batch and number of workers. A darker cell is better.

    Fields of its table `cells`: `global_batch`, `num_workers`, `seconds` (the colour and the text;
    the parameter `room` is the pixels of a column), `seconds_low` and `seconds_high` (a second
    line), `is_bound` (a time is at most that long), `num_runs` (a cell with runs has a frame),
    `is_simulated` (a dashed frame), `is_recommended`
    and `is_alternative` (a star),
    `problem` (a text instead of the time), `is_picked` (a thick frame) and `name`, by which
    the parameter `hovered` gives a thick frame too.
    """
    has_interval = f"{_HAS_TIME} && isValid(datum.seconds_low) && room >= 62"
    text = "toString(datum.problem)"
    lines = f"(room < 8 * length({text}) ? replace({text}, ' ', '\\n') : {text})"  # pixels
    said = f"(room < 12 ? '' : room < 5 * length({text}) ? '\u00d7' : {lines})"
    star = "(datum.is_recommended ? '★' : datum.is_alternative && room > 24 ? '☆' : '')"
    star += " + (room >= 62 && (datum.is_recommended || datum.is_alternative) ? ' ' : '')"
    seconds, low, high = (
        _NUMBER.format(f"datum.{name}") for name in ("seconds", "seconds_low", "seconds_high")
    )
    seconds = f"(room < 34 ? '' : (datum.is_bound ? '\u2264 ' : '') + {seconds})"
    return {
        "$schema": SCHEMA,
        "data": {"name": "cells"},
        "params": [
            {"name": "ink", "value": "#222"},
            {"name": "room", "value": 100},
            _HOVERED,
        ],
        "width": "container",
        "height": 180,
        "transform": [
            {"calculate": f"{_HAS_TIME} ? {star} + {seconds} : ''", "as": "label"},
            {"calculate": f"datum.problem ? {said} : ''", "as": "said"},
            {"calculate": f"{has_interval} ? {low} + '\u2013' + {high} : ''", "as": "interval"},
        ],
        "encoding": {
            "x": {"field": "global_batch", "type": "ordinal"},
            "y": {"field": "num_workers", "type": "ordinal", "sort": "descending"},
        },
        "layer": [_FIELD, _SIMULATED, *_TEXTS],
        "config": {
            "axisX": {"labelAngle": 0, "labelOverlap": True, "labelSeparation": 4},
            "axis": {"ticks": False, "domain": False, "grid": False},
            "scale": {
                "bandPaddingInner": 0.05,
                "bandPaddingOuter": 0.02,
                "invalid": {"color": {"value": "transparent"}},  # of cells without a time
            },
        },
    }


_STANDS_OUT = "datum.strength == 2 || indexof(hovered, datum.run) >= 0"
_WEIGHT: Spec = {
    "opacity": {
        "condition": [
            {"test": _STANDS_OUT, "value": 1},
            {"test": "datum.strength == 0", "value": 0.12},  # while some runs are selected
        ],
        "value": 0.8,
    },
    "strokeWidth": {"condition": {"test": _STANDS_OUT, "value": 3}, "value": 1.5},
}
_GROUP: Spec = {
    "field": "color",
    "type": "nominal",
    "sort": None,
    "legend": {"symbolType": "circle", "symbolOpacity": 1, "orient": "right"},
    "scale": {"range": PALETTE},
}
_SHAPE: Spec = {
    "field": "dash",
    "type": "nominal",
    "sort": None,
    "legend": {"symbolOpacity": 1, "orient": "right"},
}
_LINES: Spec = {
    "mark": {"type": "line", "interactive": False, "clip": True},
    "encoding": {
        "y": {"field": "smooth", "type": "quantitative"},
        "detail": {"field": "run"},
        **_WEIGHT,
    },
}
_RAW: Spec = {
    "transform": [{"filter": "smoothing > 0"}],
    "mark": {"type": "line", "interactive": False, "strokeWidth": 0.8, "opacity": 0.35},
    "encoding": {"y": {"field": "y", "type": "quantitative"}, "detail": {"field": "run"}},
}
_ENDS: Spec = {
    "transform": [{"filter": "datum.is_last"}],
    "mark": {"type": "point", "filled": True, "size": 55, "interactive": False},
    "encoding": {
        "y": {"field": "smooth", "type": "quantitative"},
        "shape": _SHAPE,
        "opacity": _WEIGHT["opacity"],
    },
}
_HITS: Spec = {
    "mark": {"type": "circle", "size": 120, "opacity": 0, "cursor": "pointer"},
    "encoding": {"y": {"field": "smooth", "type": "quantitative"}},
}


def run_curves() -> Spec:
    """Return the curves of runs, with a point at the end of each; hover shows run and value.

    Fields of its table `points`: `run`, `x`, `y`, `smooth` (equal to `y` without smoothing),
    `color` and `dash` (texts that tell runs apart), `is_last`, and `strength` (2 for a selected
    run, 0 for others while some are selected, else 1).
    """
    return {
        "$schema": SCHEMA,
        "data": {"name": "points"},
        "params": [{"name": "smoothing", "value": 0}, _HOVERED],
        "width": "container",
        "height": 330,
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "axis": {"tickCount": 10},
                  "scale": {"zero": False, "nice": False}},
            "y": {"type": "quantitative", "axis": {"tickCount": 8}, "scale": {"zero": False}},
            "color": _GROUP,
        },
        "layer": [_RAW, _LINES, _ENDS, _HITS],
    }  # fmt: skip


def step_anatomy() -> Spec:
    """Return the parts of a step's seconds by epoch, stacked.

    Fields of its table `parts`: `epoch`, `part` (its name for readers) and `seconds`.
    """
    return {
        "$schema": SCHEMA,
        "data": {"name": "parts"},
        "width": "container",
        "height": 200,
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "epoch", "type": "ordinal",
                  "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": {"field": "seconds", "type": "quantitative"},
            "color": {"field": "part", "type": "nominal", "sort": None, "title": None,
                      "scale": {"range": PALETTE}, "legend": {"orient": "top"}},
        },
    }  # fmt: skip


def steps_along() -> Spec:
    """Return one line of a quantity over a run, such as its noise scale.

    Fields of its table `points`: `x` and `y`.
    """
    return {
        "$schema": SCHEMA,
        "data": {"name": "points"},
        "width": "container",
        "height": 180,
        "mark": {"type": "line", "interpolate": "step-after", "point": True},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": {"zero": False}},
            "y": {"field": "y", "type": "quantitative", "scale": {"zero": False}},
        },
    }


def _series(field: str, num_columns: int) -> Spec:
    """Return the encodings by colour and by shape of the texts in a field, with one legend."""
    shape: Spec = {
        "field": field,
        "type": "nominal",
        "sort": None,
        "title": None,
        "legend": {
            "orient": "bottom",
            "columns": num_columns,
            "labelLimit": 300,
            "symbolOpacity": 1,  # also of pale bands
        },
    }
    return {"color": {**shape, "scale": {"range": PALETTE}}, "shape": shape}


def _lines(y: str, series: Spec, *behind: Spec) -> Spec:
    """Return lines with points over the workers, and the layers behind them."""
    return {
        "$schema": SCHEMA,
        "data": {"name": "cells"},
        "width": "container",
        "height": 260,
        "encoding": {
            "x": {"field": "num_workers", "type": "ordinal", "axis": {"labelAngle": 0}},
            "y": {"field": y, "type": "quantitative"},
            "color": series["color"],
        },
        "layer": [
            *behind,
            {"mark": {"type": "line", "interactive": False, "strokeWidth": 1.5}},
            {
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {"shape": series["shape"]},
            },
        ],
    }


def times_of_ways() -> Spec:
    """Return the training time over the workers, with a line for each way of splitting a model.

    Fields of its table `cells`: `num_workers`, `seconds` and `way` (a text).
    """
    return _lines("seconds", _series("way", 4))


_ONE_TWO_FIVE = "indexof('125', format(datum.value, '.0e')[0]) < 0 ? '' : format(datum.value, '~g')"
"""The text of a tick of a logarithmic axis: only 1, 2, 5, 10, 20 and so on have one."""


def larger_clusters() -> Spec:
    """Return an amount over the workers, with a band and a line for each network. Simulated lines
    are dashed. A ring marks the knee, and a dotted line the critical batch size.

    Fields of its table `cells`: `num_workers`, `value` with `low` and `high`, `line` (the network,
    a text), `is_dashed`, `is_knee` and `is_wall` (the first number of workers whose best batch is
    larger than the critical batch size).
    """
    amount: Spec = {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False},
        "axis": {"labelExpr": _ONE_TWO_FIVE},
    }
    band: Spec = {
        "mark": {"type": "area", "interactive": False, "opacity": 0.12},
        "encoding": {"y": {"field": "low", **amount}, "y2": {"field": "high"}},
    }
    ring: Spec = {
        "transform": [{"filter": "datum.is_knee"}],
        "mark": {"type": "point", "size": 260, "interactive": False},
    }
    wall: Spec = {
        "transform": [{"filter": "datum.is_wall"}],
        "mark": {"type": "rule", "strokeDash": [2, 3], "interactive": False, "strokeWidth": 1.3},
        "encoding": {"y": None},
    }
    spec = _lines("value", _series("line", 2), band)
    spec["encoding"]["x"]["axis"]["labelOverlap"] = True
    spec["encoding"]["y"] |= amount
    dashes = {"condition": {"test": "datum.is_dashed", "value": [5, 3]}, "value": [1, 0]}
    spec["layer"][1]["encoding"] = {"strokeDash": dashes}
    spec["layer"] += [ring, wall]
    return spec


def memory_of_workers() -> Spec:
    """Return the memory of each worker of each cell by part, as stacked bars.

    Fields of its table `parts`: `name` (of the cell), the `row` of the worker in the cell, `part`
    (a text), its `place` in the bar, and `megabytes`.
    """
    return {
        "$schema": SCHEMA,
        "data": {"name": "parts"},
        "width": "container",
        "height": 300,
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "title": None,
                  "axis": {"labelLimit": 330}},
            "yOffset": {"field": "row", "type": "ordinal"},
            "x": {"field": "megabytes", "type": "quantitative", "axis": {"tickCount": 10}},
            "order": {"field": "place"},
            "color": {"field": "part", "type": "nominal", "sort": None, "title": None,
                      "scale": {"range": PALETTE}, "legend": {"orient": "top"}},
        },
    }  # fmt: skip
