"""The figure of simulated clusters: their speed-up over workers.

It takes the result of `bsweep.simulate`, not a study. Its caption, which says what is simulated, is
above it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure

from bsweep.analysis import Simulation
from bsweep.analysis.prediction.critical_batch import LEVEL
from bsweep.plots import drawing, scales
from bsweep.plots.curves import BAND, LINES, MAX_LINES, categorical, handle
from bsweep.plots.speed import IDEAL

_CAPTION_LETTERS = 105  # in a line
_DOTS: dict[str, Any] = {"linestyle": "", "marker": "*", "color": "#222222", "markersize": 8}


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
    groups = list(simulated.groupby(["network", "strategy"], sort=False))
    networks = list(simulated["network"].unique())
    entries = []
    for place, ((network, strategy), rows) in enumerate(groups[:MAX_LINES]):
        dash = LINES[1 + networks.index(network) % (len(LINES) - 1)]
        look = {**categorical(place), "linestyle": dash}
        axes.plot(rows["num_workers"], rows["speed_up"], **look)
        ends = rows["speed_up_low"], rows["speed_up_high"]
        axes.fill_between(rows["num_workers"], *ends, color=look["color"], **BAND)
        spaced = str(network).replace(",", ", ")  # A line may end after a space.
        name = f"{strategy}, {spaced}" if len(networks) > 1 else str(strategy)
        entries.append(handle(look, name))
    workers = simulated["num_workers"].unique()
    axes.plot(workers, workers, **IDEAL)
    entries.append(handle(IDEAL, "ideal"))
    measured = cells[cells["kind"] == "measured"]
    axes.plot(measured["num_workers"], measured["speed_up"], **_DOTS, zorder=4)
    if len(measured):
        entries.append(handle(_DOTS, "measured, on the study's own links"))
    scales.size_axis(axes, workers)
    scales.doublings_axis(axes)
    axes.set(xlabel="Workers", ylabel="Speed-up")
    drawing.add_legend(figure, entries)
    left_out = len(groups) - MAX_LINES
    drawing.captioned(
        figure,
        "Dashed: simulated, not measured. Speed-up against one worker. Bands are "
        f"{LEVEL} intervals.",
        f"{left_out} more strategies on a network are left out." if left_out > 0 else "",
    )
    return _with_caption_above(figure)


def _with_caption_above(figure: Figure) -> Figure:
    """Draw a figure's caption above it, as no page has it. The figure grows by its height."""
    text = drawing.broken(drawing.caption(figure), _CAPTION_LETTERS)
    title = figure.suptitle(text, x=0.01, ha="left", fontsize=rcParams["legend.fontsize"])
    figure.set_figheight(figure.get_figheight() + title.get_window_extent().height / figure.dpi)
    return figure
