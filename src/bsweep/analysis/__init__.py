"""Functions that turn the records of a study into tables, fits, predictions and sentences, without
torch.

Five rooms stand in one line. `study` reads a study's folder into tables, such as one with a row for
each run. `cell_tables` computes what follows for cells, such as means over seeds. `prediction` fits
steps and seconds, `simulation` computes steps that were not measured, and `conclusions` has
predictions with intervals, comparisons, and sentences.

This package must not import the code that trains a run. It reads the files of runs through
`runlog`, and takes the rules of settings from `config`. It draws nothing and writes no file.
"""

from bsweep.analysis.cell_tables.common_target import common_target as common_target
from bsweep.analysis.cell_tables.idle import equal_time_losses as equal_time_losses
from bsweep.analysis.cell_tables.idle import idle_table as idle_table
from bsweep.analysis.cell_tables.idle import loss_by_time as loss_by_time
from bsweep.analysis.cell_tables.idle import node_columns as node_columns
from bsweep.analysis.cell_tables.idle import round_times as round_times
from bsweep.analysis.cell_tables.keys import cell_keys as cell_keys
from bsweep.analysis.cell_tables.keys import entangled as entangled
from bsweep.analysis.cell_tables.keys import levels as levels
from bsweep.analysis.cell_tables.keys import settings as settings
from bsweep.analysis.cell_tables.keys import varying as varying
from bsweep.analysis.cell_tables.learning import accuracy_by_time as accuracy_by_time
from bsweep.analysis.cell_tables.learning import fastest_accurate as fastest_accurate
from bsweep.analysis.cell_tables.learning import time_to_target as time_to_target
from bsweep.analysis.cell_tables.means import METRICS as METRICS
from bsweep.analysis.cell_tables.means import batch_ratios as batch_ratios
from bsweep.analysis.cell_tables.means import best_medians as best_medians
from bsweep.analysis.cell_tables.means import by_cell as by_cell
from bsweep.analysis.cell_tables.means import cell_warnings as cell_warnings
from bsweep.analysis.cell_tables.means import cells as cells
from bsweep.analysis.cell_tables.means import epoch_curves as epoch_curves
from bsweep.analysis.cell_tables.means import failures as failures
from bsweep.analysis.cell_tables.means import measured_once as measured_once
from bsweep.analysis.cell_tables.means import scaling as scaling
from bsweep.analysis.cell_tables.means import seconds_fits as seconds_fits
from bsweep.analysis.cell_tables.means import server_loads as server_loads
from bsweep.analysis.cell_tables.means import server_shares as server_shares
from bsweep.analysis.cell_tables.means import step_parts as step_parts
from bsweep.analysis.cell_tables.means import step_times as step_times
from bsweep.analysis.cell_tables.means import step_unit as step_unit
from bsweep.analysis.cell_tables.means import unequal_threads as unequal_threads
from bsweep.analysis.cell_tables.statistics import MIN_SEEDS_FOR_INTERVAL as MIN_SEEDS_FOR_INTERVAL
from bsweep.analysis.cell_tables.statistics import SEEDS_LEVEL as SEEDS_LEVEL
from bsweep.analysis.conclusions.best_cells import against_published as against_published
from bsweep.analysis.conclusions.best_cells import headlines as headlines
from bsweep.analysis.conclusions.best_cells import winner as winner
from bsweep.analysis.conclusions.comparing import Comparison as Comparison
from bsweep.analysis.conclusions.comparing import compare as compare
from bsweep.analysis.conclusions.maps import larger_clusters as larger_clusters
from bsweep.analysis.conclusions.maps import surface as surface
from bsweep.analysis.conclusions.predicting import predict as predict
from bsweep.analysis.conclusions.prediction_texts import Prediction as Prediction
from bsweep.analysis.conclusions.published_study import comparable as comparable
from bsweep.analysis.conclusions.published_study import differences as differences
from bsweep.analysis.conclusions.published_study import published as published
from bsweep.analysis.conclusions.published_study import relative_seconds as relative_seconds
from bsweep.analysis.conclusions.recommendations import answer_lines as answer_lines
from bsweep.analysis.conclusions.recommendations import answers as answers
from bsweep.analysis.conclusions.recommendations import first_place as first_place
from bsweep.analysis.conclusions.recommendations import in_short as in_short
from bsweep.analysis.conclusions.recommendations import (
    missing_recommendations as missing_recommendations,
)
from bsweep.analysis.conclusions.recommendations import (
    recommendation_warnings as recommendation_warnings,
)
from bsweep.analysis.conclusions.recommendations import recommendations as recommendations
from bsweep.analysis.conclusions.recommendations import with_networks as with_networks
from bsweep.analysis.prediction.critical_batch import noise_scale as noise_scale
from bsweep.analysis.simulation import Simulation as Simulation
from bsweep.analysis.simulation import simulate as simulate
from bsweep.analysis.study.beside_others import left_out as left_out
from bsweep.analysis.study.folder import load as load
from bsweep.analysis.study.frames import Study as Study
from bsweep.analysis.study.frames import ends_in_rounds as ends_in_rounds
from bsweep.analysis.study.numbers import setting_text as setting_text
from bsweep.analysis.study.targets import to_target as to_target
from bsweep.config.target import Target as Target
from bsweep.config.target import target_of as target_of
