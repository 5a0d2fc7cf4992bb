"""Figures of simulated clusters: the speed-up, the parts of a step, one step's timeline, and sites
far apart.

The figures take the result of `bsweep.simulate`, not a study. Each has its caption above it, which
says that its numbers are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bsweep.analysis import Simulation
from bsweep.analysis.numbers import number
from bsweep.analysis.simulation.engine import LANE
from bsweep.analysis.simulation.network import parse_network
from bsweep.analysis.simulation.passes import KINDS
from bsweep.analysis.simulation.strategies import MOST_TOLD
from bsweep.core.words import counted
from bsweep.plots import drawing
from bsweep.plots.curves import COLORS, LINES, MARKERS, TIMES, handle
from bsweep.plots.splitting import PASSES

_SIMULATED = "Simulated, not measured."
_NOT_ALL = "Dashed: simulated, not measured."
_CAPTION_LETTERS = 105  # in a line
_MOST_LINES = len(COLORS)
_MOST_SITES = 12  # with words beside them
_LINK: dict[str, Any] = {"color": TIMES["exchange"], "linewidth": 2, "zorder": 1}
# The name and the look of each kind of time.
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "computing": ("computing", {"facecolor": TIMES["computing"]}),
    **{kind: (name, {"facecolor": light}) for kind, (name, light, _) in PASSES.items()},
    "exchange": ("exchange", {"facecolor": TIMES["exchange"]}),
    "waiting": (
        "waiting for slower workers",
        {"facecolor": "white", "edgecolor": TIMES["waiting"], "hatch": "//////", "linewidth": 0},
    ),
}
_SPAN = ["who", "what", "begin_seconds", "end_seconds"]
_ROW_INCHES = 0.15  # of a worker in a timeline


def write(simulation: Simulation, folder: Path) -> Iterator[Path]:
    """Write the figures of a simulation as SVG files, and yield the path of each.

    Args:
        simulation: The simulation.
        folder: The folder, which is made if needed.

    Yields:
        The paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for draw in FIGURES:
        with rc_context(drawing.STYLE):
            figure = draw(simulation)
        if figure is not None:
            path = folder / f"{draw.__name__}.svg"
            drawing.save(figure, path)
            yield path


def simulated_speedup(simulation: Simulation) -> Figure | None:
    """Draw speed-up and money over workers, a line for each strategy and network, with bands.

    Args:
        simulation: The simulation.

    Returns:
        The figure.
    """
    cells = simulation.cells
    has_money = bool(cells["money"].notna().any())
    figure, grid = drawing.grid(1, 1 + has_money, 3.0)
    simulated = cells[cells["kind"] == "simulated"]
    looks = _looks(simulated)
    for key, look in looks.items():
        of = simulated[_is(simulated, key)]
        workers, middle = of["num_workers"], of["speed_up"]
        axes = grid[0][0]
        axes.plot(workers, middle, **look)
        low, high = of["speed_up_low"], of["speed_up_high"]
        axes.fill_between(workers, low, high, color=look["color"], alpha=0.15, linewidth=0)
        if has_money:
            grid[0][1].plot(workers, of["money"], **look)
    measured = cells[cells["kind"] == "measured"]
    dots: dict[str, Any] = {"linestyle": "", "marker": "*", "color": "#222222", "markersize": 8}
    grid[0][0].plot(measured["num_workers"], measured["speed_up"], **dots, zorder=4)
    ideal: dict[str, Any] = {"color": "#999999", "linestyle": ":"}
    grid[0][0].plot(simulated["num_workers"].unique(), simulated["num_workers"].unique(), **ideal)
    for axes, label in zip(grid[0], ("Speed-up", "Price of a million examples"), strict=False):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if label == "Speed-up" else 10)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("Workers")
        axes.set_ylabel(label)
    marks = [handle(look, _name(simulated, key)) for key, look in looks.items()]
    marks += [handle(ideal, "ideal")] + [handle(dots, "measured, on the study's own links")] * bool(
        len(measured)
    )
    drawing.legends(figure, (marks, ""))
    words = "Speed-up against one worker. Bands are 90 % intervals."
    return _captioned(figure, _NOT_ALL, words, _left_out(simulated))


def simulated_shares(simulation: Simulation) -> Figure | None:
    """Draw the parts of a step by workers: computing, exchange, and waiting for slower workers.

    Args:
        simulation: The simulation.

    Returns:
        The figure.
    """
    simulated = simulation.cells[simulation.cells["kind"] == "simulated"]
    keys = list(_looks(simulated))
    figure, grid = drawing.grid(len(keys), 1, 2.1)
    for (axes,), key in zip(grid, keys, strict=True):
        of = simulated[_is(simulated, key)]
        places, bottom = np.arange(len(of)), np.zeros(len(of))
        waiting, exchange = (100 * of[f"{name}_share"] for name in ("waiting", "exchange"))
        parts = {"computing": 100 - waiting - exchange, "exchange": exchange, "waiting": waiting}
        for name, share in parts.items():
            axes.bar(places, share, bottom=bottom, width=0.8, **_KINDS[name][1])
            bottom = bottom + share.to_numpy()
        axes.set_xticks(places, [str(count) for count in of["num_workers"]], rotation=45)
        of_title = drawing.letters(60 if len(keys) <= 3 else 26)
        axes.set_title(drawing.broken(_name(simulated, key), of_title), loc="left")
        axes.set_ylabel("Of a step (%)")
    grid[-1][0].set_xlabel("Workers")
    marks = [Patch(label=said, **look) for said, look in map(_KINDS.__getitem__, parts)]
    drawing.legends(figure, (marks, ""))
    return _captioned(figure, _SIMULATED, "Parts of a step of a worker.", _left_out(simulated))


def simulated_step(simulation: Simulation) -> Figure | None:
    """Draw what happens in one step with each strategy, on the most workers up to 16.

    Args:
        simulation: The simulation.

    Returns:
        The figure; None if no strategy has a timeline.
    """
    table = simulation.timelines
    if table.empty:
        return None
    looks = list(_looks(table))
    parts = [_of_one_count(table[_is(table, key)]) for key in looks]
    abreast = 1 if len(parts) <= 3 else 2
    rows = [one["who"].nunique() for one in parts]
    rows = [max(rows[at : at + abreast]) for at in range(0, len(rows), abreast)]
    height = 0.6 + sum(0.7 + _ROW_INCHES * number for number in rows)
    figure = Figure(figsize=(drawing.width(), height), layout="constrained")
    grid = figure.subplots(
        len(rows), abreast, squeeze=False, height_ratios=[4 + one for one in rows]
    )
    for unused in grid.flat[len(parts) :]:
        unused.remove()
    for axes, key, spans in zip(grid.flat, looks, parts, strict=False):
        _draw_spans(axes, spans)
        title = f"{_name(table, key)}, {counted(spans['num_workers'].iloc[0], 'worker')}"
        axes.set_title(drawing.broken(title, drawing.letters(88 // abreast - 8)), loc="left")
    for axes in grid.flat[: len(parts)][-abreast:]:
        axes.set_xlabel("Time (s)")
    drawn = {kind for spans in parts for kind in map(_kind, spans["who"], spans["what"])}
    marks = [Patch(label=said, **look) for kind, (said, look) in _KINDS.items() if kind in drawn]
    drawing.legends(figure, (marks, ""))
    words = "What happens in the first step, or in the first round of local steps."
    return _captioned(figure, _SIMULATED, words, _left_out(table))


def _of_one_count(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the spans on the most workers with a row each, or else on the fewest."""
    counts = spans["num_workers"]
    of_each = counts[counts <= MOST_TOLD]
    shown: pd.DataFrame = spans[counts == (of_each.max() if len(of_each) else counts.min())]
    return shown


def _kind(who: str, what: str) -> str:
    """Return the kind of a span, one of `_KINDS`."""
    if what[0] in KINDS and what[1:].isdigit():
        return KINDS[what[0]]
    return "exchange" if who == LANE else what


def _draw_spans(axes: Axes, spans: pd.DataFrame) -> None:
    names = [*dict.fromkeys(spans["who"])]
    for who, what, begin, end in spans[_SPAN].itertuples(index=False):
        place, width = names.index(who), end - begin
        axes.barh(place, width, left=begin, height=0.8, **_KINDS[_kind(who, what)][1])
        axes.barh(place, width, left=begin, height=0.8, fill=False, linewidth=0.3)
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False)


def simulated_sites(simulation: Simulation) -> Figure | None:
    """Draw sites far apart on a circle, with what their links carry with each strategy.

    Args:
        simulation: The simulation.

    Returns:
        The figure; None if no network has several sites.
    """
    table = simulation.sites
    if table.empty:
        return None
    looks = list(_looks(table))
    figure, grid = drawing.grid(len(looks), 1, 3.2)
    for (axes,), key in zip(grid, looks, strict=True):
        of, link = table[_is(table, key)], parse_network(key[0]).between
        of = of[of["num_workers"] == of["num_workers"].max()]
        axes.plot([0 * of["x"], of["x"]], [0 * of["y"], of["y"]], **_LINK)
        axes.scatter(of["x"], of["y"], s=500, color=COLORS[4], zorder=2)
        for site in of.to_dict("records"):
            at: dict[str, Any] = {"xy": (site["x"], site["y"]), "ha": "center", "zorder": 3}
            axes.annotate(str(site["workers"]), va="center", **at)
            is_above = site["y"] > -0.01
            at |= {"xytext": (0, 14 if is_above else -14), "textcoords": "offset points"}
            says = _carried(site, link.latency_seconds) if len(of) <= _MOST_SITES else ""
            axes.annotate(says, va="bottom" if is_above else "top", fontsize="small", **at)
        rate, latency = 8 * link.bytes_per_second / 1e9, _time(link.latency_seconds)
        held = f"{of['num_workers'].iloc[0]} workers, {rate:.3g} Gbit/s of payload, {latency}"
        of_title = drawing.letters(60 if len(looks) <= 3 else 28)
        name = f"{key[1]}, {key[0].replace(',', ', ')}, {held}"
        axes.set_title(drawing.broken(name, of_title), loc="left")
        # Not by the sites: two of them have no width.
        axes.set(aspect="equal", xlim=(-1.8, 1.8), ylim=(-1.8, 1.8))
        axes.set_axis_off()
    words = (
        "Sites, with the number of their workers, and beside it what the link of each carries in a "
        "step, or in a round of local steps, in its busier direction: the bytes, their time, and "
        "the latencies of their messages, one after another."
    )
    return _captioned(figure, _SIMULATED, words, _left_out(table))


def _carried(site: Mapping[Hashable, Any], latency_seconds: float) -> str:
    """Return what the link of a site carries, as the page says it."""
    servers = f"{counted(site['servers'], 'server')}\n" * bool(site["servers"])
    megabytes = max(site["sent_bytes"], site["received_bytes"]) / 1e6
    latencies = f"\n+ {site['latencies']} \N{MULTIPLICATION SIGN} {_time(latency_seconds)}"
    said = f"{servers}{number(megabytes)} MB\n{_time(site['link_seconds'])}"
    return said + latencies * bool(site["latencies"])


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


FIGURES: tuple[Callable[[Simulation], Figure | None], ...] = (
    simulated_speedup, simulated_shares, simulated_step, simulated_sites,
)  # fmt: skip


def _captioned(figure: Figure, *sentences: str) -> Figure:
    """Draw a caption above a figure, as no page has it. The figure grows by its height."""
    words = drawing.caption(drawing.captioned(figure, *sentences))
    lines = drawing.broken(words, drawing.letters(_CAPTION_LETTERS))
    told = figure.suptitle(lines, x=0.01, ha="left", fontsize=rcParams["legend.fontsize"])
    figure.set_figheight(figure.get_figheight() + told.get_window_extent().height / figure.dpi)
    return figure


def _looks(table: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the look of the line of each network and strategy, dashed as it is simulated."""
    keys = [*dict.fromkeys(zip(table["network"], table["strategy"], strict=True))][:_MOST_LINES]
    networks = [*dict.fromkeys(network for network, _ in keys)]
    return {
        key: {
            "color": COLORS[at],
            "marker": MARKERS[at % len(MARKERS)],
            "linestyle": LINES[1 + networks.index(key[0]) % (len(LINES) - 1)],
        }
        for at, key in enumerate(keys)
    }


def _is(table: pd.DataFrame, key: tuple[str, str]) -> pd.Series[bool]:
    return (table["network"] == key[0]) & (table["strategy"] == key[1])


def _name(table: pd.DataFrame, key: tuple[str, str]) -> str:
    network = key[0].replace(",", ", ")  # which a line may end after
    return key[1] if table["network"].nunique() == 1 else f"{key[1]}, {network}"


def _left_out(table: pd.DataFrame) -> str:
    number = len(set(zip(table["network"], table["strategy"], strict=True))) - _MOST_LINES
    return f"{number} more strategies on a network are left out." if number > 0 else ""
