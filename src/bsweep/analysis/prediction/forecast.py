"""Time to a target for every cell of a grid, T(B, N) = S(B) t(B, N), measured or not: draws, and a
table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.cells import mean_log
from bsweep.analysis.prediction.critical_batch import INTERVAL
from bsweep.analysis.prediction.power import watts
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.selection import CELL, Observed, to_target_of
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit
from bsweep.analysis.prediction.steps import StepsFit

PARTS = ("fixed", "computing", "large_batch", "exchange", "waiting")


@dataclass(frozen=True, eq=False)
class Forecast:
    """`cells` has a row a cell of the grid, see `forecast`; draws are of shape (draws, cells).

    `log_seconds` are of a typical run, what its cell is worth: the median over seeds.
    `log_run_seconds` are of one further run, with the scatter between seeds: what an interval for a
    measurement is made of. `log_step_seconds` are of a typical step.
    """

    cells: pd.DataFrame
    log_seconds: Array
    log_run_seconds: Array
    log_step_seconds: Array


def default_grid(seen: Observed) -> list[tuple[int, int, int]]:
    """Global batches by doubling from the smallest to the largest of the runs, on each number of
    workers of theirs.
    """
    measured = {int(batch) for batch in seen.runs["global_batch"]}
    batch = min(measured)
    while batch <= max(measured):
        measured.add(batch)
        batch *= 2
    return grid(
        seen, sorted(measured), sorted({int(workers) for workers in seen.runs["num_workers"]})
    )


def grid(
    seen: Observed, batches: Sequence[int], workers: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Cells as `CELL`: those pairs in which every worker has equal batches, in as many passes as
    most runs take.
    """
    passes = int(seen.runs["passes"].mode()[0])
    num_train = seen.runs["num_train"].max()
    most = int(num_train) if pd.notna(num_train) else max(batches)
    pairs = [(batch, count) for count in workers for batch in batches if batch <= most]
    return [(batch, count, passes) for batch, count in pairs if batch % (count * passes) == 0]


def forecast(
    seen: Observed,
    steps: StepsFit,
    step_time: StepTimeFit,
    of: Sequence[tuple[int, int, int]],
    price_per_worker_hour: float | None = None,
) -> Forecast:
    """Predict each cell of a grid.

    Columns of `cells`: `CELL`; `local_batch`; `seconds`, the median, with `seconds_low` and
    `seconds_high`, the 90 % prediction interval of one further run; `typical_low` and
    `typical_high`, that of the median over seeds; `steps` and `step_seconds`, with theirs;
    `worker_seconds`; `money` (NaN without a price); `joules` of training steps, see `power` (NaN
    where no run recorded `energy_joules`); of `PARTS`, such as `fixed_seconds`, what of `seconds`
    they are: the fixed cost of passes, computing on as many examples as the smallest batches need,
    computing on the further ones that a larger batch needs, exchange, and waiting for slower
    workers (NaN where no run says it: it is in the exchange then); `num_runs`, `num_reached` and
    `measured_seconds`, see `measured_log`; `is_unreached`, where runs of its batch trained to their
    end without reaching the target, and none reached it; `is_extrapolated`, beyond the batches or
    workers of the runs; `problem`, why a cell cannot be trained, or empty.
    """
    keys = [Cell(batch / workers / passes, workers, passes) for batch, workers, passes in of]
    log_steps = np.stack([steps.log_steps(float(batch)) for batch, _, _ in of], axis=1)
    log_step = np.stack([step_time.log_seconds(key) for key in keys], axis=1)
    log_seconds = log_steps + log_step
    rng = np.random.default_rng([steps.seed, 3])
    sigma = np.hypot(steps.sigma, step_time.sigma)[:, None]
    scatter = sigma * rng.standard_normal(log_seconds.shape)
    local_batches = [key.local_batch for key in keys]
    table = pd.DataFrame(list(of), columns=CELL).assign(local_batch=local_batches)
    table = table.join(_quantiles("seconds", log_seconds, log_seconds + scatter))
    table[["typical_low", "typical_high"]] = np.exp(np.quantile(log_seconds, INTERVAL, axis=0)).T
    table = table.join(_quantiles("steps", log_steps)).join(_quantiles("step_seconds", log_step))
    table["worker_seconds"] = table["seconds"] * table["num_workers"]
    price = np.nan if price_per_worker_hour is None else price_per_worker_hour
    table["money"] = table["worker_seconds"] / 3600 * price
    table["joules"] = table["worker_seconds"] * watts(seen.runs, table)
    table = table.join(_parts(seen, steps, step_time, keys).mul(table["seconds"], axis="index"))
    table = table.merge(_measured(seen, steps, step_time), on=CELL, how="left")
    table[["num_runs", "num_reached"]] = table[["num_runs", "num_reached"]].fillna(0).astype(int)
    table["is_unreached"] = table["global_batch"].isin(unreached(seen.runs))
    beyond = [_is_beyond(table, seen.runs, name) for name in ("global_batch", "num_workers")]
    table["is_extrapolated"] = beyond[0] | beyond[1]
    table["problem"] = _problems(seen.runs, table)
    return Forecast(table, log_seconds, log_seconds + scatter, log_step)


def _quantiles(name: str, logs: Array, spread: Array | None = None) -> pd.DataFrame:
    low, high = np.quantile(logs if spread is None else spread, INTERVAL, axis=0)
    return pd.DataFrame(
        np.exp([np.median(logs, axis=0), low, high]).T,
        columns=[name, f"{name}_low", f"{name}_high"],
    )


def _parts(
    seen: Observed, steps: StepsFit, step_time: StepTimeFit, keys: Sequence[Cell]
) -> pd.DataFrame:
    """Shares of the time to a target, which sum to 1: means over the draws."""
    exposed, waiting = (seen.runs[name].where(seen.runs["num_workers"] > 1) for name in _EXPOSED)
    share = float((waiting / exposed.where(exposed > 0)).clip(0, 1).mean())
    rows = []
    for key in keys:
        fixed, computing, exchange = step_time.shares(key)
        batch = key.local_batch * key.num_workers * key.passes
        excess = batch / (batch + steps.critical_batch)  # of B S(B) examples, those beyond E_min
        held_up = float(exchange.mean())
        waits = held_up * share if key.num_workers > 1 else np.nan
        useful, further = (
            float(np.mean(computing * (1 - excess))),
            float(np.mean(computing * excess)),
        )
        rows.append((float(fixed.mean()), useful, further, held_up - np.nan_to_num(waits), waits))
    return pd.DataFrame(rows, columns=[f"{name}_seconds" for name in PARTS])


_EXPOSED = ("exposed_seconds", "waiting_seconds")


def _measured(seen: Observed, steps: StepsFit, step_time: StepTimeFit) -> pd.DataFrame:
    rows = [
        (
            *key,
            len(of),
            int(of["reached"].eq(True).sum()),
            np.exp(measured_log(of, steps, step_time)),
        )
        for key, of in seen.runs.groupby(CELL)
    ]
    return pd.DataFrame(rows, columns=[*CELL, "num_runs", "num_reached", "measured_seconds"])


def measured_log(runs: pd.DataFrame, steps: StepsFit, step_time: StepTimeFit) -> float:
    """Mean log seconds to the target of a cell's runs, with the scatter between runs that the fits
    found.

    Runs that did not reach it count as longer than they trained: the mean of the others alone would
    be of those that were fast. NaN where none reached it.
    """
    return mean_log(
        to_target_of(runs, "seconds"), float(np.median(np.hypot(steps.sigma, step_time.sigma)))
    )


def unreached(runs: pd.DataFrame) -> set[int]:
    """Batch sizes of runs that trained to their end, none of which reached the target.

    A run on fewer examples than any other run took to the target was merely too short to tell.
    """
    # NaN where none got there.
    fewest = runs.loc[runs["reached"].eq(True), "examples_to_target"].astype(float).min()
    has_ended = runs["status"].isin(["completed", "diverged"]) & runs["reached"].eq(False)
    has_ended &= ~(
        (runs["status"] == "completed") & (runs["trained_examples"].astype(float) < fewest)
    )
    reached = set(runs.loc[runs["reached"].eq(True), "global_batch"])
    return {int(batch) for batch in set(runs.loc[has_ended, "global_batch"]) - reached}


def _is_beyond(table: pd.DataFrame, runs: pd.DataFrame, name: str) -> pd.Series[bool]:
    return ~table[name].between(runs[name].min(), runs[name].max())


def _problems(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Why cells cannot be trained: a local batch that ran out of memory, or all runs of the cell
    diverged.
    """
    too_large = runs.loc[runs["status"] == "out_of_memory", "local_batch"].min()
    lost = (
        runs.assign(is_lost=(runs["status"] == "diverged") & ~runs["reached"].eq(True))
        .groupby(CELL)["is_lost"]
        .all()
    )
    diverged = set(lost.index[lost])
    return [
        "out of memory" if row["local_batch"] >= too_large
        else "diverged" if (row["global_batch"], row["num_workers"], row["passes"]) in diverged
        else ""
        for row in table.to_dict("records")
    ]  # fmt: skip
