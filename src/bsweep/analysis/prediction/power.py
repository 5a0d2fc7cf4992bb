"""Watts of a worker by cell, where runs recorded their energy: a smaller batch leaves a GPU idle
more of the time.

    P = P_0 + e r

with P_0 what a worker takes in any case, e the joules of an example and r the examples that a
worker trains in a second: by least squares of relative errors over the runs, neither below zero. A
cell that was measured has the mean of its own runs. Runs of nearly one r do not tell the two apart,
and their mean is taken for all cells.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.selection import CELL

_LEAST_SPREAD = 1.2  # of r, the largest over the smallest, which tells P_0 and e apart


def watts(runs: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Of each row of `cells`, which has `CELL` and `step_seconds`; NaN where no run recorded
    `energy_joules`.

    Energy of runs is of their training steps, as their `train_seconds` are.
    """
    if "energy_joules" not in runs:
        return np.full(len(cells), np.nan)
    own = runs["energy_joules"].astype(float) / (
        runs["train_seconds"].astype(float) * runs["num_workers"]
    )
    known = runs.assign(watts=own, rate=_rates(runs)).dropna(subset=["watts", "rate"])
    known = known[known["watts"] > 0]
    if known.empty:
        return np.full(len(cells), np.nan)
    fitted = _fitted(
        known["watts"].to_numpy(float),
        known["rate"].to_numpy(float),
        np.asarray(_rates(cells), np.float64),
    )
    measured = cells[CELL].merge(
        known.groupby(CELL)["watts"].mean().reset_index(), on=CELL, how="left"
    )["watts"]
    return np.where(measured.notna(), measured.to_numpy(float), fitted)


def _fitted(watts: Array, rates: Array, wanted: Array) -> Array:
    if rates.max() < _LEAST_SPREAD * rates.min():
        return np.full(len(wanted), watts.mean())
    typical = rates.mean()
    (idle, each), _ = nnls(
        np.stack([1 / watts, rates / typical / watts], axis=1), np.ones(len(watts))
    )
    return np.asarray(idle + each * wanted / typical)


def _rates(table: pd.DataFrame) -> pd.Series[float]:
    """Examples that one worker trains in a second."""
    return table["global_batch"] / table["num_workers"] / table["step_seconds"].astype(float)
