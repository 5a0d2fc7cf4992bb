"""From the records of a study to tables: DataFrame in, DataFrame out, no torch."""

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
    "METRICS",
    "OTHER_COLUMNS",
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
    "failures",
    "fit_line",
    "fit_ratio",
    "levels",
    "load",
    "predicted_gain",
    "published",
    "published_gains",
    "relative_seconds",
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
