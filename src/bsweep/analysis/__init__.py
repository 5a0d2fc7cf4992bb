"""From the records of a study to tables: DataFrame in, DataFrame out, no torch."""

from bsweep.analysis.loading import OTHER_COLUMNS, Study, load
from bsweep.analysis.published import comparable, differences, published, relative_seconds
from bsweep.analysis.tables import (
    METRICS,
    TimeFit,
    batch_ratios,
    by_cell,
    cell_keys,
    cells,
    entangled,
    epoch_curves,
    failures,
    fit_seconds,
    levels,
    scaling,
    seconds_fits,
    setting_text,
)

__all__ = [
    "METRICS",
    "OTHER_COLUMNS",
    "Study",
    "TimeFit",
    "batch_ratios",
    "by_cell",
    "cell_keys",
    "cells",
    "comparable",
    "differences",
    "entangled",
    "epoch_curves",
    "failures",
    "fit_seconds",
    "levels",
    "load",
    "published",
    "relative_seconds",
    "scaling",
    "seconds_fits",
    "setting_text",
]
