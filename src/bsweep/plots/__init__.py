"""A study's figures, for a paper: up to seven inches wide, colour-blind safe, the same bytes for the same study.

Each function takes a study and returns a matplotlib `Figure`, whose `caption` it writes from what it draws; nothing
touches pyplot's global state. Markers and bars are means over seeds and their 95 % t-intervals, small circles the runs;
a cell measured once has a marker only. Runs that did not complete show as crosses on the lower edge, at their batch
size. What is drawn by batch size is drawn by workers where a study has one batch size and several worker counts.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.plots.drawing import (
    BATCH_LABEL,
    COLORS,
    LINES,
    MARKERS,
    caption,
    counted,
    length_of,
    save,
    words,
)
from bsweep.plots.rounds import idle_by_node, loss_by_time, published_idle, round_timeline, scaled_rounds
from bsweep.plots.sweep import (
    accuracy_and_loss_by_batch,
    accuracy_by_epoch,
    loss_by_epoch,
    seconds_per_step,
    server_load,
    sharding_gain,
    throughput_and_speedup,
    time_by_batch,
)

__all__ = [
    "BATCH_LABEL",
    "COLORS",
    "FIGURES",
    "LINES",
    "MARKERS",
    "accuracy_and_loss_by_batch",
    "accuracy_by_epoch",
    "caption",
    "counted",
    "figures",
    "idle_by_node",
    "length_of",
    "loss_by_epoch",
    "loss_by_time",
    "published_idle",
    "round_timeline",
    "save",
    "scaled_rounds",
    "seconds_per_step",
    "server_load",
    "sharding_gain",
    "throughput_and_speedup",
    "time_by_batch",
    "words",
]

FIGURES: dict[str, Callable[[Study], Figure]] = {
    function.__name__: function
    for function in (
        loss_by_epoch,
        accuracy_by_epoch,
        time_by_batch,
        accuracy_and_loss_by_batch,
        throughput_and_speedup,
        seconds_per_step,
        server_load,
        sharding_gain,
        idle_by_node,
        round_timeline,
        loss_by_time,
        published_idle,
    )
}
_NEEDS: dict[str, Callable[[Study], bool]] = {
    "loss_by_epoch": lambda study: not analysis.ends_in_rounds(study),  # whose epochs are fragments
    "accuracy_by_epoch": lambda study: not analysis.ends_in_rounds(study),
    "seconds_per_step": lambda study: bool((analysis.step_times(study)["exposed_exchange_seconds"] > 0).any()),
    "server_load": lambda study: not analysis.server_loads(study).empty,
    "sharding_gain": lambda study: not analysis.sharding_gains(study).empty,
    "idle_by_node": lambda study: not analysis.idle_table(study).empty,
    "round_timeline": lambda study: not analysis.rounds_timeline(study).empty,
    "loss_by_time": lambda study: not analysis.loss_by_time(study).empty,
    "published_idle": analysis.compares_allocations,
}


def figures(study: Study) -> dict[str, Callable[[Study], Figure]]:
    """Those of `FIGURES` for which a study has the numbers."""
    return {name: draw for name, draw in FIGURES.items() if name not in _NEEDS or _NEEDS[name](study)}
