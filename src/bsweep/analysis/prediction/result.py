"""The result of a prediction as data: the predicted cells, the recommended one, and the fits from
which they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.critical_batch import INTERVAL, CriticalBatch
from bsweep.analysis.prediction.fitting import Fits, leave_out
from bsweep.analysis.prediction.forecast import Forecast
from bsweep.analysis.prediction.missing_runs import wanted_evaluations
from bsweep.analysis.prediction.objectives import LEAST_GAIN, ChosenCell, Objective, with_gains
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.seen_runs import Observed
from bsweep.config.target import Target


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The predicted time to a target for each cell of a grid, and the recommended cell.

    `cells` has a row for each cell of the grid, see `forecast` and `with_probabilities`.
    `rate_rule` is the learning-rate rule for which all of it holds. `network` are the links of
    simulated cells, in words, and empty if none are simulated.
    """

    study: str
    target: Target
    objective: Objective
    choice: ChosenCell
    cells: pd.DataFrame
    rate_rule: str
    warnings: tuple[str, ...]
    seen: Observed
    forecast: Forecast
    fitted: Fits
    network: str = ""

    @cached_property
    def leave_out(self) -> pd.DataFrame:
        """A table that compares the time to the target measured in a cell with its prediction
        without the runs of its batch size, and without those of its worker count.

        At most 16 batch sizes and worker counts are left out. The table is computed on first use,
        with two fits or more for each of them. Only then does a prediction print its errors.
        """
        return leave_out(self.seen, self.fitted)

    @property
    def critical_batches(self) -> tuple[CriticalBatch, ...]:
        """The estimates of the critical batch size that belong to this prediction: from the steps
        to the target, from the gradient noise scale and from branches of a checkpoint.
        """
        return self.fitted.critical_batches

    @property
    def recommended(self) -> pd.Series[Any]:
        """The row of the recommended cell in the prediction's table of cells."""
        return self.cells.iloc[self.choice.place]

    @property
    def evaluate_every_examples(self) -> int | None:
        """The setting with which to train the recommended cell again, if its runs reached the
        target at their first evaluation, so that only an upper bound of their time is known;
        None otherwise.
        """
        return wanted_evaluations(self.seen.runs) if self.recommended["is_only_bounded"] else None

    @property
    def fits(self) -> pd.DataFrame:
        """A table of the parameters of the two fitted formulas, with medians and 90 % intervals.
        The formulas give the steps to the target and the seconds of a step.
        """
        drawn = _parameters(self.fitted)
        rows = [np.quantile(values, [0.5, *INTERVAL]) for values in drawn.values()]
        return pd.DataFrame(
            rows, index=pd.Index(drawn, name="parameter"), columns=["median", "low", "high"]
        )

    def gains(self) -> pd.DataFrame:
        """Return the table of cells with the column `gain`: how much of the time or cost to the
        target one more run of the cell is expected to save, as a fraction.

        A run saves if it leads to the choice of a better cell; see `objectives.with_gains`.

        Returns:
            The table.
        """
        sigma = np.hypot(self.fitted.steps.sigma, self.fitted.step_time.sigma)
        return with_gains(self.forecast, self.objective, sigma)

    def next_cell(self) -> pd.Series[Any] | None:
        """Return the cell to run next: the recommended one if its runs did not measure the time to
        the target, else the one whose run is expected to save most of the time or cost.

        Returns:
            The row of the cell in `gains()`; None if no run is expected to save enough.
        """
        cells = self.gains()
        if not self.recommended["num_reached"] or self.recommended["is_only_bounded"]:
            return cells.iloc[self.choice.place]
        best = cells.sort_values("gain").iloc[-1]
        return None if best["gain"] < LEAST_GAIN else best


def _parameters(fits: Fits) -> dict[str, Array]:
    """Return the draws of the parameters of two fits by what they are."""
    steps, step = fits.steps, fits.step_time
    across = {
        f"a_s from {step.across_from} workers, across nodes (s)": step.across_seconds,
        f"b_s from {step.across_from} workers, across nodes (s)": step.across_worker_seconds,
    }
    further = {}
    for strategy, parameters in zip(step.strategies[1:], step.further, strict=True):
        further[f"{strategy}: factor on a pass"] = parameters.compute_factor
        further[f"{strategy}: a_s, an exchange (s)"] = parameters.sync_seconds
        further[f"{strategy}: b_s (s for a byte or a worker)"] = parameters.sync_more_seconds
    return {
        "S_min (steps)": steps.minimum_steps,
        "E_min (examples)": steps.minimum_examples,
        "E_min / S_min (examples)": steps.critical_batch,
        "scatter of steps between seeds": steps.sigma,
        "steps missed by the law": steps.tau,
        "a_c, fixed cost of a pass (s)": step.pass_seconds,
        "b_c, an example of a pass (s)": step.example_seconds,
        "a_s, an exchange (s)": step.sync_seconds,
        "b_s, an exchange's further worker (s)": step.sync_worker_seconds,
        **(across if step.across_from else {}),
        **further,
        "g, overlap": step.overlap,
        "scatter of step time between runs": step.sigma,
        "step time missed by the form": step.tau,
    }
