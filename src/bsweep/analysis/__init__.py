"""Functions that turn the records of a study into tables, fits, predictions and sentences, without
torch.

Five rooms stand in one line. `study` reads a study's folder into tables, such as one with a row for
each run. `cell_tables` computes what follows for cells, such as means over seeds. `prediction` fits
steps and seconds, `simulation` computes steps that were not measured, and `conclusions` has
predictions with intervals, comparisons, and sentences.

This package must not import the code that trains a run. It reads the files of runs through
`runlog`, and takes the rules of settings from `config`. It draws nothing and writes no file.
"""

from bsweep.analysis.cell_tables.common_target import common_target
from bsweep.analysis.cell_tables.idle import (
    equal_time_losses,
    idle_table,
    loss_by_time,
    node_columns,
    round_times,
)
from bsweep.analysis.cell_tables.keys import cell_keys, entangled, levels, settings, varying
from bsweep.analysis.cell_tables.learning import (
    accuracy_by_time,
    fastest_accurate,
    time_to_target,
)
from bsweep.analysis.cell_tables.means import (
    METRICS,
    batch_ratios,
    best_medians,
    by_cell,
    cell_warnings,
    cells,
    epoch_curves,
    failures,
    measured_once,
    scaling,
    seconds_fits,
    server_loads,
    server_shares,
    step_parts,
    step_times,
    step_unit,
    unequal_threads,
)
from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL
from bsweep.analysis.conclusions.best_cells import against_published, headlines, winner
from bsweep.analysis.conclusions.comparing import Comparison, compare
from bsweep.analysis.conclusions.maps import larger_clusters, surface
from bsweep.analysis.conclusions.predicting import predict
from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.conclusions.published_study import (
    comparable,
    differences,
    published,
    relative_seconds,
)
from bsweep.analysis.conclusions.recommendations import (
    answer_lines,
    answers,
    first_place,
    in_short,
    missing_recommendations,
    recommendation_warnings,
    recommendations,
    with_networks,
)
from bsweep.analysis.prediction.critical_batch import noise_scale
from bsweep.analysis.simulation import Simulation, simulate
from bsweep.analysis.study.beside_others import left_out
from bsweep.analysis.study.folder import load
from bsweep.analysis.study.frames import Study, ends_in_rounds
from bsweep.analysis.study.numbers import setting_text
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import Target, target_of

__all__ = [
    "METRICS",
    "MIN_SEEDS_FOR_INTERVAL",
    "Comparison",
    "Prediction",
    "Simulation",
    "Study",
    "Target",
    "accuracy_by_time",
    "against_published",
    "answer_lines",
    "answers",
    "batch_ratios",
    "best_medians",
    "by_cell",
    "cell_keys",
    "cell_warnings",
    "cells",
    "common_target",
    "comparable",
    "compare",
    "differences",
    "ends_in_rounds",
    "entangled",
    "epoch_curves",
    "equal_time_losses",
    "failures",
    "fastest_accurate",
    "first_place",
    "headlines",
    "idle_table",
    "in_short",
    "larger_clusters",
    "left_out",
    "levels",
    "load",
    "loss_by_time",
    "measured_once",
    "missing_recommendations",
    "node_columns",
    "noise_scale",
    "predict",
    "published",
    "recommendation_warnings",
    "recommendations",
    "relative_seconds",
    "round_times",
    "scaling",
    "seconds_fits",
    "server_loads",
    "server_shares",
    "setting_text",
    "settings",
    "simulate",
    "step_parts",
    "step_times",
    "step_unit",
    "surface",
    "target_of",
    "time_to_target",
    "to_target",
    "unequal_threads",
    "varying",
    "winner",
    "with_networks",
]
