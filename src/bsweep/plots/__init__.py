"""A study's figures, for a paper: up to seven inches wide, colour-blind safe, the same bytes for the same study.

Each function takes a study and returns a matplotlib `Figure`, whose `caption` it writes from what it draws; nothing
touches pyplot's global state. Markers and bars are means over seeds and, from three seeds on, their 95 % t-intervals;
small circles are the seeds. Settings are said in words and stand in the order in which their runs were launched. What
is drawn by batch size is drawn by workers where a study has one batch size and several worker counts, and as a dot
for each cell where it has one of both. A figure of what was not measured, or of the accuracy of what has not learned,
is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from bsweep.analysis import Study
from bsweep.plots.batches import accuracy_and_loss_by_batch, throughput_and_speedup, time_by_batch, time_to_target
from bsweep.plots.curves import COLORS, LINES, MARKERS, in_order
from bsweep.plots.drawing import BATCH_LABEL, TABLES, caption, length_of, save
from bsweep.plots.epochs import accuracy_by_epoch, accuracy_by_time, loss_by_epoch
from bsweep.plots.exchange import seconds_per_step, server_load, sharding_gain
from bsweep.plots.naming import counted, words
from bsweep.plots.rounds import idle_by_node, loss_by_time, published_idle, round_timeline, scaled_rounds

# In the order of a report: what was asked comes first.
FIGURES: dict[str, Callable[[Study], Figure]] = {
    function.__name__: function
    for function in (
        accuracy_by_time,
        time_to_target,
        time_by_batch,
        accuracy_and_loss_by_batch,
        throughput_and_speedup,
        loss_by_epoch,
        accuracy_by_epoch,
        seconds_per_step,
        server_load,
        sharding_gain,
        idle_by_node,
        round_timeline,
        loss_by_time,
        published_idle,
    )
}

__all__ = [
    "BATCH_LABEL",
    "COLORS",
    "FIGURES",
    "LINES",
    "MARKERS",
    "accuracy_and_loss_by_batch",
    "accuracy_by_epoch",
    "accuracy_by_time",
    "caption",
    "counted",
    "figures",
    "idle_by_node",
    "in_order",
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
    "time_to_target",
    "words",
]


def figures(study: Study) -> dict[str, Callable[[Study], Figure]]:
    """Those of `FIGURES` whose table has a row in this study."""
    return {name: draw for name, draw in FIGURES.items() if len(TABLES[name](study))}
