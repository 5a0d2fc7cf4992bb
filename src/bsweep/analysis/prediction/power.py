"""The electric power of a worker in each cell, in watts, from runs that recorded their energy.

A smaller batch leaves a GPU idle more of the time, so the power depends on the cell:

    P = P_0 + e r

P_0 is the constant power of a worker, e the joules of an example, and r the examples that a worker
trains in a second. The fit is by least squares of relative errors over the runs, with neither
parameter below zero. A measured cell has the mean of its own runs. If all runs have nearly the same
r, the two parameters cannot be told apart, and the mean of the runs is taken for all cells.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.seen_runs import CELL

_LEAST_SPREAD = 1.2  # the largest r over the smallest that is needed to tell P_0 and e apart


def watts(runs: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Return the power of one worker, in watts, for each row of a table of cells, measured or
    fitted; NaN in all rows if the energy of no run is known.

    `cells` has the columns `CELL` and `step_seconds`. The energy of runs, `energy_joules`, covers
    their training steps, as `train_seconds` does.
    """
    energy = runs.get("energy_joules", pd.Series(np.nan, runs.index)).astype(float)
    watts = energy / (runs["train_seconds"].astype(float) * runs["num_workers"])
    known = runs.assign(watts=watts, rate=_rates(runs)).dropna(subset=["watts", "rate"])
    known = known[known["watts"] > 0]
    if known.empty:
        return np.full(len(cells), np.nan)
    fitted = _fitted(
        known["watts"].to_numpy(float),
        known["rate"].to_numpy(float),
        np.asarray(_rates(cells), np.float64),
    )
    measured = cells[CELL].join(known.groupby(CELL)["watts"].mean(), on=CELL)["watts"]
    return np.where(measured.notna(), measured.to_numpy(float), fitted)


def _fitted(watts: Array, rates: Array, wanted: Array) -> Array:
    if rates.max() < _LEAST_SPREAD * rates.min():
        return np.full(len(wanted), watts.mean())
    from scipy.optimize import nnls  # whose import takes long, and few predictions need it

    typical = rates.mean()
    (idle, each), _ = nnls(
        np.stack([1 / watts, rates / typical / watts], axis=1), np.ones(len(watts))
    )
    return np.asarray(idle + each * wanted / typical)


def _rates(table: pd.DataFrame) -> pd.Series[float]:
    """Return for each row of a table the number of examples that one worker trains in a second."""
    return table["global_batch"] / table["num_workers"] / table["step_seconds"].astype(float)
