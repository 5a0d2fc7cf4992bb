"""The two fits of a prediction: one of the steps to the target, and one of the seconds of a step.
This module also estimates the critical batch size and the leave-out error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.common_target import ENOUGH_BATCHES
from bsweep.analysis.prediction import critical_batch
from bsweep.analysis.prediction.critical_batch import CriticalBatch
from bsweep.analysis.prediction.forecast import Key, drawn, measured_log
from bsweep.analysis.prediction.likelihood import evenly
from bsweep.analysis.prediction.missing_runs import missing
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array
from bsweep.analysis.prediction.seen_runs import CELL, Observed
from bsweep.analysis.prediction.step_time import StepTimeFit, fit_step_time
from bsweep.analysis.prediction.steps import (
    CRITICAL_FACTOR,
    CriticalBatchPrior,
    StepsFit,
    fit_steps,
)

_LEFT_OUT_DRAWS = 400  # from each fit for the leave-out error
_MOST_LEFT_OUT = 16  # batch sizes and worker counts at the most


@dataclass(frozen=True, eq=False)
class Fits:
    """The fits of the steps to the target and of the seconds of a step, with three estimates of the
    critical batch size.
    """

    steps: StepsFit
    step_time: StepTimeFit
    critical_batches: tuple[CriticalBatch, ...]

    def table(self) -> pd.DataFrame:
        """Return a table of the parameters of the two fitted formulas, with medians and 90 %
        intervals.
        """
        steps, step = self.steps, self.step_time
        first, *others = step.strategies
        draws = {
            "S_min (steps)": steps.minimum_steps,
            "E_min (examples)": steps.minimum_examples,
            "E_min / S_min (examples)": steps.critical_batch,
            "scatter of steps between seeds": steps.sigma,
            "steps missed by the law": steps.tau,
            "a_c, fixed cost of a pass (s)": step.pass_seconds,
            "b_c, an example of a pass (s)": step.example_seconds,
            "a_s, an exchange (s)": step.strategies[first].sync_seconds,
            "b_s, an exchange's further worker (s)": step.strategies[first].sync_more_seconds,
        }
        if step.across is not None:
            fewest, *across = step.across
            words = f"from {fewest} workers, across nodes (s)"
            draws[f"a_s {words}"], draws[f"b_s {words}"] = across
        for strategy in others:
            factor, sync, more = step.strategies[strategy]
            draws[f"{strategy}: factor on a pass"] = factor
            draws[f"{strategy}: a_s, an exchange (s)"] = sync
            draws[f"{strategy}: b_s (s for a byte or a worker)"] = more
        draws["g, overlap"] = step.overlap
        draws["scatter of step time between runs"] = step.sigma
        draws["step time missed by the form"] = step.tau
        rows = [np.quantile(values, [0.5, *critical_batch.INTERVAL]) for values in draws.values()]
        return pd.DataFrame(rows, pd.Index(draws, name="parameter"), ["median", "low", "high"])


def fit(
    seen: Observed,
    num_draws: int = NUM_DRAWS,
    *,
    searched: Sequence[int] = (),
    like: Fits | None = None,
) -> Fits:
    """Fit one formula to the steps that runs took to the target and one to the seconds of their
    steps, and estimate the critical batch size.

    If fewer than three batch sizes reached the target, another estimate of the critical batch
    counts too, if there is one: that of branches, or else that of the noise scale. It counts as a
    prior that includes a factor of three for the difference of definitions.

    Args:
        seen: The runs.
        num_draws: The number of draws from each posterior.
        searched: The global batch sizes of a search. Any number of batch sizes is then enough, and
            the median of the critical batch's wide prior is the geometric mean of these sizes. So
            the prior does not depend on which of them was run first.
        like: Fits to these runs and to others, whose weights of runs are used.

    Raises:
        ValueError: If there are too few points. The message says what is missing.
    """
    noise = critical_batch.from_noise_scale(critical_batch.records_until_target(seen))
    branched = critical_batch.from_branches(critical_batch.branches_of(seen), num_draws)
    elsewhere = next((known.as_prior() for known in (branched, noise) if known.is_known), None)
    least_batches = 0 if searched else 2 if elsewhere is None else 1
    if problem := missing(seen, least_batches):
        raise ValueError(problem)
    wide = None
    if searched:
        middle = float(np.exp(np.mean(np.log(np.unique(np.asarray(searched, float))))))
        wide = CriticalBatchPrior(middle, CRITICAL_FACTOR)
    runs, weights = seen.steps(), like.steps.weights if like else None
    num_reached = sum(len(batch.exact) + len(batch.below) > 0 for batch in runs.values())
    verdict = f"not identifiable: {2 - num_reached} batch size is missing"
    steps, by_steps = None, CriticalBatch("steps to target", verdict=verdict)
    if num_reached > 1:
        steps = fit_steps(runs, wide, num_draws, weights=weights)
        by_steps = critical_batch.from_steps(steps)
    prior = (elsewhere if num_reached < ENOUGH_BATCHES else None) or wide
    if steps is None or prior is not wide:
        steps = fit_steps(runs, prior, num_draws, weights=weights)
    step_time = fit_step_time(
        seen.timings(), num_draws, across_from=seen.across_from(),
        weights=like.step_time.weights if like else None, byte_seconds=seen.byte_seconds(),
    )  # fmt: skip
    return Fits(steps, step_time, (by_steps, noise, branched))


def leave_out(seen: Observed, whole: Fits) -> pd.DataFrame:
    """Predict the time to the target of measured cells without the runs of their batch size, and
    without those of their worker count, and return a table of the errors.

    At most 16 batch sizes and worker counts are left out, one after another. A run counts as much
    as in the `whole` fits to all runs. A cell has a row for each time that it was left out. The
    columns are `CELL`, `way` and:

    - `left_out`: `global_batch` or `num_workers`.
    - `measured_seconds`: the exponential of `measured_log`.
    - `is_bound`: True if no run of the cell reached the target. `measured_seconds` is then the
      geometric mean of the time that its runs trained, a lower bound.
    - `predicted_seconds`: the predicted median.
    - `low` and `high`: the ends of the 90 % prediction interval of the mean over the cell's runs.
    - `error`: predicted over measured, less 1. For a bound it is 0 if the prediction lies above.
    - `is_inside`: True if the interval contains the measurement. For a bound, True if the interval
      does not end below it.

    A cell has no row if the others are too few to predict from, or none has its strategy.
    """
    was_trained = seen.runs["reached"].eq(True) | (seen.runs["trained_seconds"] > 0)
    known = seen.runs[was_trained]
    groups: list[tuple[str, float]] = []
    for name in ("num_workers", "global_batch"):
        values = sorted(known[name].unique())
        chosen = evenly(len(values), _MOST_LEFT_OUT - len(groups)) if len(values) > 1 else []
        groups += [(name, float(values[place])) for place in chosen]
    rows = []
    for name, value in groups:
        try:
            fits = fit(seen.without(name, value), _LEFT_OUT_DRAWS, like=whole)
        except ValueError:
            continue
        cells = {}
        for key, runs in known[known[name] == value].groupby([*CELL, "way"]):
            *numbers, way = cast("Key", key)
            cell = seen.ways[way].cell(*numbers)
            if fits.step_time.knows(cell):
                cells[cell] = (key, runs)
        if cells:
            log_steps, log_step, scatter = drawn(fits.steps, fits.step_time, [*cells])
            logs = log_steps + log_step
        for place, (key, runs) in enumerate(cells.values()):
            errors = _missed(runs, fits, logs[:, place], scatter[:, place])
            rows.append((*cast("Key", key), name, *errors))
    names = "left_out measured_seconds is_bound predicted_seconds low high error is_inside"
    return pd.DataFrame(rows, columns=[*CELL, "way", *names.split()])


def _missed(runs: pd.DataFrame, fits: Fits, logs: Array, scatter: Array) -> tuple[float, ...]:
    """Return by how much the draws of a cell's log seconds from other cells miss the cell's runs,
    in the order of the columns of `leave_out`. `scatter` is that of a single run.
    """
    means = logs + scatter / np.sqrt(len(runs))
    low, high = np.exp(np.quantile(means, critical_batch.INTERVAL))
    is_bound = not runs["reached"].eq(True).any()
    log = measured_log(runs, fits.steps, fits.step_time)
    if is_bound:
        log = np.log(runs["trained_seconds"].astype(float)).mean()
    measured, predicted = float(np.exp(log)), float(np.exp(np.median(logs)))
    error = min(0.0, predicted / measured - 1) if is_bound else predicted / measured - 1
    is_inside = measured <= high and (is_bound or low <= measured)
    return measured, is_bound, predicted, low, high, error, is_inside
