"""From the records of a study to tables: DataFrame in, DataFrame out, no torch."""

from bsweep.analysis.geo_distributed import CONTRADICTIONS, IdleModel, idle_model, modelled_idle, published_idle
from bsweep.analysis.idle import NODE, equal_time_losses, idle_table, loss_by_time, round_times, rounds_timeline
from bsweep.analysis.keys import cell_keys, entangled, levels, timing, varying
from bsweep.analysis.loading import OTHER_COLUMNS, Study, load, setting_text
from bsweep.analysis.published import comparable, differences, published, relative_seconds
from bsweep.analysis.sharding import fit_ratio, predicted_gain, published_gains, sharding_fit, sharding_gains
from bsweep.analysis.tables import (
    METRICS,
    Line,
    batch_ratios,
    by_cell,
    cells,
    epoch_curves,
    failures,
    fit_line,
    scaling,
    seconds_fits,
    server_loads,
    server_shares,
    step_times,
)

__all__ = [
    "CONTRADICTIONS",
    "METRICS",
    "NODE",
    "OTHER_COLUMNS",
    "IdleModel",
    "Line",
    "Study",
    "batch_ratios",
    "by_cell",
    "cell_keys",
    "cells",
    "comparable",
    "differences",
    "entangled",
    "epoch_curves",
    "equal_time_losses",
    "failures",
    "fit_line",
    "fit_ratio",
    "idle_model",
    "idle_table",
    "levels",
    "load",
    "loss_by_time",
    "modelled_idle",
    "predicted_gain",
    "published",
    "published_gains",
    "published_idle",
    "relative_seconds",
    "round_times",
    "rounds_timeline",
    "scaling",
    "seconds_fits",
    "server_loads",
    "server_shares",
    "setting_text",
    "sharding_fit",
    "sharding_gains",
    "step_times",
    "timing",
    "varying",
]
