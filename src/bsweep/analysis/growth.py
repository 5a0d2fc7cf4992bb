"""How costs grow: an epoch's with batch, workers, examples and parameters, a sweep's with its points, as exponents."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from bsweep.analysis.derived import of_rounds
from bsweep.analysis.keys import levels
from bsweep.analysis.once import once
from bsweep.analysis.study import Study
from bsweep.analysis.tables import cell_means

GROWS_WITH = ("local_batch", "num_workers", "num_train", "num_parameters")
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

    Cells that differ in `num_parameters` differ in all that is said of the model. Runs that end with a round are left
    out: their last epoch is a fragment. Columns: `exponent`, of the means of cells, each of which counts alike;
    `exponent_ci95`, half its 95 % t-interval, which is as wide as the means miss a power law; `num_points`.
    """
    runs = study.runs[~of_rounds(study.runs)].set_index("run_id").reindex(columns=["num_parameters"]).astype(float)
    seconds = study.epochs.groupby("run_id")["train_seconds"].mean()
    cells = cell_means(study, runs.join(seconds)).dropna(subset="train_seconds")
    others = [name for name in levels(cells) if not _differs(name, along)]
    cells, rows = cells.reset_index([name for name in levels(cells) if name not in others]), []
    for key, series in cells.groupby(level=others) if along in cells else ():
        points = series.dropna(subset=along)
        if points[along].nunique() >= _MIN_POINTS:
            rows.append((*key, *fit_power(points[along], points["train_seconds"]), len(points)))
    return pd.DataFrame(rows, columns=[*others, "exponent", "exponent_ci95", "num_points"]).set_index(others)


@once
def overhead_growth(study: Study) -> pd.DataFrame:
    """The exponent of all seconds that runs spent on anything but training steps, over how many runs there were.

    One row, or none of fewer than three runs, or where their order is not on record. By the seconds of each run over
    its number: if these go with its power k, their sum goes with k + 1. Columns as of `epoch_growth`.
    """
    launched = study.provenance.reindex(columns=["run_id", "launched_at"]).set_index("run_id")["launched_at"]
    runs = study.runs.assign(launched_at=pd.to_numeric(study.runs["run_id"].map(launched)))
    seconds = (runs["wall_seconds"] - runs["train_seconds"])[runs["status"] == "completed"]
    seconds = seconds[(seconds > 0) & runs["launched_at"].notna()]
    places = runs.loc[seconds.index, "launched_at"].astype(float)
    if len(seconds) < _MIN_POINTS or places.duplicated().any():
        return pd.DataFrame(columns=["exponent", "exponent_ci95", "num_points"])
    exponent, half = fit_power(places.rank(), seconds.astype(float))
    row = {"exponent": exponent + 1, "exponent_ci95": half, "num_points": len(seconds)}
    return pd.DataFrame([row], index=pd.Index([study.name], name="study"))


def _differs(name: str, along: str) -> bool:
    is_of_model = name in ("model", "stem") or name.startswith("model.")
    return name == along or (along == "num_parameters" and is_of_model)
