"""The functions that draw the figures of a study, in a form that is fit for a paper.

Figures are seven inches wide, or as wide as a paper asks for (`styles`). They use colours that
colour-blind readers can tell apart, and have the same bytes for the same study and the same
libraries. Each `StudyFigure` takes a study and returns a
matplotlib `Figure`, whose `caption` says what it draws. No function touches pyplot's global state.

In most figures markers and bars are means over seeds, with 95 % t-intervals from three seeds on,
and small circles are the seeds. Numbers ascend; other settings are named in words, in the order in
which their runs were launched. A figure by batch size becomes one by workers if the study has one
batch size and several worker counts. If it has one of both, the figure has a dot for each cell. A
figure is left out of a report if nothing was measured for it, or if it shows only accuracies, or
accuracies and losses, of a study that has not learned.

A loaded study comes in, and figures go out. Each figure has two functions. The first gives its
table, which is empty where there is nothing to show; the second draws it. It must not know how a
run came about, and reads no file.
"""

from __future__ import annotations

from bsweep import analysis
from bsweep.analysis import Study
from bsweep.analysis.cell_tables import split_models as split_tables
from bsweep.analysis.cell_tables.learning import times_to_target
from bsweep.analysis.study.caching import caching
from bsweep.analysis.study.naming import length_of, words
from bsweep.plots import (
    batching,
    cost,
    epochs,
    exchange,
    larger,
    rounds,
    scores,
    speed,
    splitting,
    surface,
    times,
)
from bsweep.plots.curves import in_order
from bsweep.plots.drawing import StudyFigure, caption, save
from bsweep.plots.lines import timed_cells
from bsweep.plots.styles import STYLES
from bsweep.plots.surface import targets_in_words

# The figures in the order of a report, which begins with the answer to the user's question.
_FIGURES = (
    StudyFigure("time_surface", analysis.surface, surface.time_surface),
    StudyFigure("pareto_front", cost.several_workers, cost.pareto_front),
    StudyFigure("larger_clusters", analysis.larger_clusters, larger.larger_clusters),
    StudyFigure("accuracy_by_time", epochs.accuracies_by_time, epochs.accuracy_by_time),
    StudyFigure("time_to_target", times_to_target, times.time_to_target),
    StudyFigure("time_by_batch", timed_cells, times.time_by_batch),
    StudyFigure(
        "accuracy_and_loss_by_batch", scores.final_scores, scores.accuracy_and_loss_by_batch
    ),
    StudyFigure("throughput_and_speedup", timed_cells, speed.throughput_and_speedup),
    StudyFigure("time_by_split", split_tables.ways, splitting.time_by_split),
    StudyFigure("memory_by_worker", split_tables.worker_memory, splitting.memory_by_worker),
    StudyFigure("loss_by_epoch", epochs.losses, epochs.loss_by_epoch),
    StudyFigure("accuracy_by_epoch", epochs.accuracies, epochs.accuracy_by_epoch),
    StudyFigure("batch_by_epoch", batching.batches, batching.batch_by_epoch),
    StudyFigure("seconds_per_step", exchange.exchange_times, exchange.seconds_per_step),
    StudyFigure("server_load", analysis.server_loads, exchange.server_load),
    StudyFigure("idle_by_node", analysis.idle_table, rounds.idle_by_node),
    StudyFigure("loss_by_time", analysis.loss_by_time, rounds.loss_by_time),
)
FIGURES: dict[str, StudyFigure] = {figure.name: figure for figure in _FIGURES}

__all__ = [
    "FIGURES",
    "STYLES",
    "caption",
    "figures",
    "in_order",
    "length_of",
    "save",
    "targets_in_words",
    "words",
]


def figures(study: Study) -> dict[str, StudyFigure]:
    """Return the drawing functions of the figures for which the study has a table with rows, each
    under its figure's name.

    Args:
        study: The study.

    Returns:
        The figures by name, in the order of a report. Each is a function of a study and, if it is
        for a paper, the name of a style.
    """
    with caching():
        return {name: figure for name, figure in FIGURES.items() if len(figure.table(study))}


def __getattr__(name: str) -> StudyFigure:
    # This makes `plots.time_by_batch` the figure of that name.
    if name in FIGURES:
        return FIGURES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *FIGURES]
