"""How the time of an epoch grows with batch, workers and examples: exponents of power laws, with their intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from bsweep.analysis.keys import levels
from bsweep.analysis.once import once
from bsweep.analysis.study import Study
from bsweep.analysis.tables import cell_means

GROWS_WITH = ("local_batch", "num_workers", "num_train")
_MIN_POINTS = 3  # two lie on every power law


def fit_power(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """The exponent of y ~ x^k by least squares of logarithms, three points or more, and half its 95 % t-interval."""
    places, values = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    exponent, intercept = np.polyfit(places, values, 1)
    freedom = len(places) - 2
    variance = np.sum((values - intercept - exponent * places) ** 2) / freedom
    error = np.sqrt(variance / np.sum((places - places.mean()) ** 2))
    return float(exponent), float(stdtrit(freedom, 0.975) * error)


@once
def epoch_growth(study: Study, along: str) -> pd.DataFrame:
    """Exponents of the seconds of an epoch over one of `GROWS_WITH`, indexed by the series of cells that differ in it.

    Columns: `exponent`, of the means of cells; `exponent_ci95`, half its 95 % t-interval; `num_points`.
    """
    seconds = study.epochs.groupby("run_id")["train_seconds"].mean().to_frame("epoch_seconds")
    cells = cell_means(study, seconds).dropna(subset="epoch_seconds")
    others, rows = [name for name in levels(cells) if name != along], []
    for key, series in cells.groupby(level=others) if along in levels(cells) else ():
        if len(series) >= _MIN_POINTS:
            fitted = fit_power(series.index.get_level_values(along), series["epoch_seconds"])
            rows.append((*key, *fitted, len(series)))
    return pd.DataFrame(rows, columns=[*others, "exponent", "exponent_ci95", "num_points"]).set_index(others)
