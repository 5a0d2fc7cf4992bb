"""The figure of simulated clusters: their speed-up over workers.

It takes the result of `bsweep.simulate`, not a study. Its caption, which says what is simulated, is
above it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bsweep.analysis import Simulation
from bsweep.plots import drawing
from bsweep.plots.curves import COLORS, LINES, MARKERS, handle

_CAPTION_LETTERS = 105  # in a line
_MOST_LINES = len(COLORS)


def write(simulation: Simulation, path: Path) -> None:
    """Write the figure of a simulation as a file, whose folder is made if needed.

    Args:
        simulation: The simulation.
        path: The file, which ends in `.png`, `.svg` or `.pdf`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(drawing.STYLE):
        drawing.save(simulated_speedup(simulation), path)


def simulated_speedup(simulation: Simulation) -> Figure:
    """Draw the speed-up over workers, a line for each strategy and network, with bands.

    Args:
        simulation: The simulation.

    Returns:
        The figure.
    """
    cells = simulation.cells
    figure, ((axes,),) = drawing.grid(1, 1, 3.0)
    simulated = cells[cells["kind"] == "simulated"]
    looks = _looks(simulated)
    for key, look in looks.items():
        of = simulated[(simulated["network"] == key[0]) & (simulated["strategy"] == key[1])]
        workers, middle = of["num_workers"], of["speed_up"]
        axes.plot(workers, middle, **look)
        low, high = of["speed_up_low"], of["speed_up_high"]
        axes.fill_between(workers, low, high, color=look["color"], alpha=0.15, linewidth=0)
    measured = cells[cells["kind"] == "measured"]
    dots: dict[str, Any] = {"linestyle": "", "marker": "*", "color": "#222222", "markersize": 8}
    axes.plot(measured["num_workers"], measured["speed_up"], **dots, zorder=4)
    ideal: dict[str, Any] = {"color": "#999999", "linestyle": ":"}
    axes.plot(simulated["num_workers"].unique(), simulated["num_workers"].unique(), **ideal)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Workers")
    axes.set_ylabel("Speed-up")
    marks = [handle(look, _name(simulated, key)) for key, look in looks.items()]
    marks += [handle(ideal, "ideal")] + [handle(dots, "measured, on the study's own links")] * bool(
        len(measured)
    )
    drawing.legends(figure, (marks, ""))
    words = (
        "Dashed: simulated, not measured. Speed-up against one worker. Bands are 90 % intervals."
    )
    return _captioned(figure, words, _left_out(simulated))


def _captioned(figure: Figure, *sentences: str) -> Figure:
    """Draw a caption above a figure, as no page has it. The figure grows by its height."""
    words = drawing.caption(drawing.captioned(figure, *sentences))
    lines = drawing.broken(words, _CAPTION_LETTERS)
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


def _name(table: pd.DataFrame, key: tuple[str, str]) -> str:
    network = key[0].replace(",", ", ")  # which a line may end after
    return key[1] if table["network"].nunique() == 1 else f"{key[1]}, {network}"


def _left_out(table: pd.DataFrame) -> str:
    number = len(set(zip(table["network"], table["strategy"], strict=True))) - _MOST_LINES
    return f"{number} more strategies on a network are left out." if number > 0 else ""
