"""The predicted time to a target for every cell of a grid: T(B, N) = S(B) t(B, N), for global batch
B and N workers.

S(B) is the number of steps, and t(B, N) is the seconds of a step. Each cell has draws from the
posterior and a row in a table, whether it was measured or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.critical_batch import INTERVAL
from bsweep.analysis.prediction.likelihood import FREEDOM, mean_log
from bsweep.analysis.prediction.power import watts
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.seen_runs import CELL, Observed, to_target_of
from bsweep.analysis.prediction.step_time import Cell, StepTimeFit
from bsweep.analysis.prediction.steps import StepsFit
from bsweep.analysis.prediction.ways import Way
from bsweep.core.words import counted

PARTS = ("fixed", "computing", "large_batch", "bubble", "exchange", "waiting")


@dataclass(frozen=True, eq=False)
class Forecast:
    """The predicted times of the cells of a grid: a table with a row for each cell, and posterior
    draws of shape (draws, cells).

    `cells` has a row for each cell; see `forecast` for its columns. `log_seconds` are of a typical
    run, the median over seeds; cells are compared by them. `log_run_seconds` are of one further run
    and include the scatter between seeds; intervals for a measurement come from them.
    """

    cells: pd.DataFrame
    log_seconds: Array
    log_run_seconds: Array


Key = tuple[int, int, int, str]
"""A cell in the order of `CELL`: global batch, workers, passes; and the name of the way of sharing
the model, which is empty if the runs have one.
"""


def batch_on_workers(batch: int, workers: int) -> str:
    """Return the batch size and the workers of a cell in words."""
    return f"global batch {batch} on {counted(workers, 'worker')}"


def keys_of(cells: pd.DataFrame) -> list[Key]:
    """Return the cells of a table that has the columns `CELL` and `way`."""
    return list(cells[[*CELL, "way"]].itertuples(index=False, name=None))


def grid(
    seen: Observed,
    batches: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    largest: int | None = None,
) -> list[Key]:
    """Return cells for those pairs of a batch size and a worker count whose batch divides evenly
    and is no larger than the training set.

    A batch divides evenly if every worker gets equal whole batches, in the most frequent number of
    passes among the runs. There is a cell for each way of sharing the model.

    Args:
        seen: The runs.
        batches: Global batch sizes. None takes those of the runs, and doublings of the smallest.
        workers: Worker counts. None takes for each way those of its runs.
        largest: The size up to which the smallest is doubled. None takes the largest of the runs.
    """
    passes, num_train = int(seen.runs["passes"].mode()[0]), seen.runs["num_train"].max()
    sizes = {int(batch) for batch in seen.runs["global_batch"]}
    doublings = ((largest or max(sizes)) // min(sizes)).bit_length()
    sizes |= {min(sizes) << doubling for doubling in range(doublings)}
    sizes = sizes if batches is None else set(batches)
    kept = sorted(size for size in sizes if pd.isna(num_train) or size <= num_train)
    cells: list[Key] = []
    for name, way in seen.ways.items():
        counts = seen.runs.loc[seen.runs["way"] == name, "num_workers"]
        for count in sorted({int(count) for count in counts} if workers is None else set(workers)):
            cells += [(b, count, passes, name) for b in kept if way.divides(b, count, passes)]
    return cells


def forecast(
    seen: Observed,
    steps: StepsFit,
    step_time: StepTimeFit,
    keys: Sequence[Key],
    price_per_worker_hour: float | None = None,
) -> Forecast:
    """Predict the time to the target for each cell of a grid, from the fits of the steps to the
    target and of the seconds of a step.

    The columns of `cells` are:

    - `CELL`, `way` and `local_batch`: the examples of a pass of one worker, or of a group that
      computes the same examples.
    - `seconds`: the median time to the target. `seconds_low` and `seconds_high` are the ends of the
      90 % prediction interval of one further run.
    - `typical_low` and `typical_high`: the ends of the interval of the median over seeds.
    - `steps` and `step_seconds`: medians, each with the ends of its interval.
    - `worker_seconds`, and `money` (NaN without a price).
    - `joules`: the energy of training steps, see `power`. NaN if no run recorded `energy_joules`.
    - One column for each of `PARTS`, such as `fixed_seconds`: the part of `seconds` that it takes.
      The parts are the fixed cost of passes, computing on as many examples as the smallest batches
      need, computing on the further ones that a larger batch needs, the bubble of a pipeline,
      exchange, and waiting for slower workers. If no run on several workers recorded waiting,
      that part is NaN and is contained in the exchange.
    - `num_runs` and `num_reached`: the numbers of the cell's runs, and of those that reached the
      target. `is_only_bounded`: True if some did, all of them at their first evaluation.
      `measured_seconds`: the exponential of `measured_log`.
    - `is_unreached`: True if runs of the batch size, or of a smaller one, trained to their end and
      neither they nor runs of a larger batch size reached the target.
    - `beyond`: what of the cell lies beyond the measurements, in words: the global batch beyond
      those of the runs, or the local batch or the workers beyond those whose steps were timed.
      Empty if nothing does.
    - `is_extrapolated`: True if `beyond` is not empty.
    - `is_simulated`: True if the seconds of a step come from a simulation.
    - `problem`: why the cell cannot be trained, or empty.
    """
    by_way: dict[str, list[tuple[int, int, int]]] = {}
    for batch, workers, passes, name in keys:
        by_way.setdefault(name, []).append((batch, workers, passes))
    parts = [
        _of_way(seen, name, steps, step_time, numbers, price_per_worker_hour)
        for name, numbers in by_way.items()
        if step_time.knows(seen.ways[name].cell(*numbers[0]))
    ]
    return Forecast(
        pd.concat([part.cells for part in parts], ignore_index=True),
        np.concatenate([part.log_seconds for part in parts], axis=1),
        np.concatenate([part.log_run_seconds for part in parts], axis=1),
    )


def _of_way(
    whole: Observed,
    name: str,
    steps: StepsFit,
    step_time: StepTimeFit,
    numbers: Sequence[tuple[int, int, int]],
    price_per_worker_hour: float | None,
) -> Forecast:
    """Return the forecast of cells with one way of sharing the model, given the numbers `CELL` of
    each.
    """
    seen, way = whole.of_way(name), whole.ways[name]
    keys = [way.cell(*cell) for cell in numbers]
    log_steps, log_step, scatter = drawn(steps, step_time, keys)
    log_seconds = log_steps + log_step
    local_batches = [way.local_batch(*cell) for cell in numbers]
    table = pd.DataFrame(list(numbers), columns=CELL).assign(way=name, local_batch=local_batches)
    table = table.join(_quantiles("seconds", log_seconds, log_seconds + scatter))
    table[["typical_low", "typical_high"]] = np.exp(np.quantile(log_seconds, INTERVAL, axis=0)).T
    table = table.join(_quantiles("steps", log_steps)).join(_quantiles("step_seconds", log_step))
    table["worker_seconds"] = table["seconds"] * table["num_workers"]
    price = np.nan if price_per_worker_hour is None else price_per_worker_hour
    table["money"] = table["worker_seconds"] / 3600 * price
    table["joules"] = table["worker_seconds"] * watts(seen.runs, table)
    table = table.join(_parts(seen, steps, step_time, keys).mul(table["seconds"], axis="index"))
    table = table.merge(_measured(seen, steps, step_time, set(numbers)), on=CELL, how="left")
    table[["num_runs", "num_reached"]] = table[["num_runs", "num_reached"]].fillna(0).astype(int)
    table["is_only_bounded"] = table["is_only_bounded"].eq(True)
    table["is_unreached"] = are_unreached(table["global_batch"], whole.runs)
    batches = whole.runs["global_batch"].tolist()
    table["beyond"] = _beyond(table, keys, batches, step_time.passed)
    table["is_extrapolated"] = table["beyond"] != ""
    table["is_simulated"] = [key in step_time.simulated for key in keys]
    table["problem"] = problems_of_cells(seen.runs, table, way)
    return Forecast(table, log_seconds, log_seconds + scatter)


def drawn(
    steps: StepsFit, step_time: StepTimeFit, cells: Sequence[Cell]
) -> tuple[Array, Array, Array]:
    """Return posterior draws for each of several cells, of shape (draws, cells): the logarithms of
    the steps to the target, those of the seconds of a step, and by how much the log time of one run
    differs from their sum.
    """
    batches = [cell.global_batch for cell in cells]
    log_steps = np.stack([steps.log_steps(float(round(batch))) for batch in batches], axis=1)
    log_step = np.stack([step_time.log_seconds(cell) for cell in cells], axis=1)
    rng = np.random.default_rng([steps.seed, 3])
    noise = [
        sigma[:, None] * rng.standard_t(FREEDOM, log_steps.shape)
        for sigma in (steps.sigma, step_time.sigma)
    ]
    return log_steps, log_step, noise[0] + noise[1]


def _quantiles(name: str, logs: Array, spread: Array | None = None) -> pd.DataFrame:
    low, high = np.quantile(logs if spread is None else spread, INTERVAL, axis=0)
    values = np.exp([np.median(logs, axis=0), low, high]).T
    return pd.DataFrame(values, columns=[name, f"{name}_low", f"{name}_high"])


def _parts(
    seen: Observed, steps: StepsFit, step_time: StepTimeFit, keys: Sequence[Cell]
) -> pd.DataFrame:
    """Return the shares of computing, exchange and so on in each cell's predicted time to the
    target; the shares of a cell sum to 1. The shares are means over the posterior draws.
    """
    exposed, waiting = (seen.runs[name].where(seen.runs["num_workers"] > 1) for name in _EXPOSED)
    share = float((waiting / exposed.where(exposed > 0)).clip(0, 1).mean())
    rows = []
    for key in keys:
        fixed, computing, bubble, exchange = step_time.shares(key)
        batch = key.global_batch
        excess = batch / (batch + steps.critical_batch)  # the share of B S(B) examples beyond E_min
        held_up = float(exchange.mean())
        waits = held_up * share if key.num_workers > 1 else np.nan
        parts = (fixed, computing * (1 - excess), computing * excess, bubble)
        means = [float(np.mean(part)) for part in parts]
        rows.append((*means, held_up - np.nan_to_num(waits), waits))
    return pd.DataFrame(rows, columns=[f"{name}_seconds" for name in PARTS])


_EXPOSED = ("exposed_seconds", "waiting_seconds")


def _measured(
    seen: Observed, steps: StepsFit, step_time: StepTimeFit, wanted: set[tuple[int, int, int]]
) -> pd.DataFrame:
    runs = seen.runs[pd.MultiIndex.from_frame(seen.runs[CELL]).isin(wanted)]
    rows = []
    for key, group in runs.groupby(CELL):
        reached = group[group["reached"].eq(True)]
        is_only_bounded = len(reached) > 0 and reached["is_bound"].eq(True).all()
        seconds = np.exp(measured_log(group, steps, step_time))
        rows.append((*key, len(group), len(reached), is_only_bounded, seconds))
    names = ["num_runs", "num_reached", "is_only_bounded", "measured_seconds"]
    return pd.DataFrame(rows, columns=[*CELL, *names]).astype(dict.fromkeys(names, float))


def measured_log(runs: pd.DataFrame, steps: StepsFit, step_time: StepTimeFit) -> float:
    """Return the most likely mean of the log seconds that the runs of one cell take to the target.

    The scatter between runs is the one that the fits found. Runs that did not reach the target
    count as longer than they trained, because the mean of the others alone would favour fast runs.
    The result is NaN where the time of no run is known exactly, but by a bound at most.
    """
    scatter = float(np.median(np.hypot(steps.sigma, step_time.sigma)))
    return mean_log(to_target_of(runs, "seconds"), scatter)


def are_unreached(batches: pd.Series[int], runs: pd.DataFrame) -> pd.Series[bool]:
    """Return for each global batch size True if runs of it, or of a smaller one, trained to their
    end and neither they nor runs of a larger batch size reached the target.

    A completed run does not count if it trained on fewer examples than each run that reached the
    target needed. It was too short to tell.
    """
    # The fewest examples and the largest batch are NaN if no run reached the target.
    reached = runs[runs["reached"].eq(True)]
    fewest = reached["examples_to_target"].astype(float).min()
    is_short = (runs["status"] == "completed") & (runs["trained_examples"].astype(float) < fewest)
    has_ended = runs["status"].isin(["completed", "diverged"]) & runs["reached"].eq(False)
    missed = set(runs.loc[has_ended & ~is_short, "global_batch"]) - set(reached["global_batch"])
    largest = reached["global_batch"].max()
    least = min((batch for batch in missed if not batch < largest), default=np.inf)
    return batches.isin(missed) | (batches >= least)


def _beyond(
    table: pd.DataFrame, keys: Sequence[Cell], batches: Sequence[float], timed: Sequence[Cell]
) -> list[str]:
    """Return for each cell of a grid what of it lies beyond the measurements, in words.

    Args:
        table: The cells.
        keys: The same cells.
        batches: The global batches of the runs.
        timed: The cells whose steps were timed. Those of other strategies tell nothing.
    """
    texts = []
    for cell, key in zip(table.to_dict("records"), keys, strict=True):
        alike = [other for other in timed if other.form.strategy == key.form.strategy]
        group = cell["local_batch"] / key.local_batch  # workers that compute the same examples
        known: list[tuple[str, str, str, Sequence[float]]] = [
            ("global_batch", "global batch", "run", batches),
            ("local_batch", "local batch", "timed", [other.local_batch * group for other in alike]),
            ("num_workers", "number of workers", "timed", [other.num_workers for other in alike]),
        ]
        beyond = []
        for name, words, verb, values in known:
            least, most = min(values), max(values)
            if not least <= cell[name] <= most:
                between = f"{least:g}" if least == most else f"{least:g} to {most:g}"
                beyond.append(f"{words} {cell[name]:g} ({verb}: {between})")
        texts.append(", ".join(beyond))
    return texts


def problems_of_cells(runs: pd.DataFrame, table: pd.DataFrame, way: Way) -> list[str]:
    """Return for each cell of a grid why it cannot be trained, `out of memory` or `diverged`, or an
    empty text.

    Either a local batch of this size or a smaller one ran out of memory, or all runs of the cell
    diverged before they reached the target. Of a split model, more workers take less memory: only
    the batches of as many workers or more tell.
    """
    failed = runs[runs["status"] == "out_of_memory"]

    def is_too_large(row: Mapping[Any, Any]) -> bool:
        workers, batch = row["num_workers"], row["local_batch"]
        alike = failed[failed["num_workers"] >= workers] if way.card else failed
        largest = [most for count, most in way.largest.items() if count >= workers]
        has_fit = row["num_reached"] > 0
        return bool((alike["local_batch"] <= batch).any()) or (
            batch > min(largest, default=math.inf) and not has_fit
        )

    is_lost = (runs["status"] == "diverged") & ~runs["reached"].eq(True)
    lost = is_lost.groupby([runs[name] for name in CELL]).all()
    diverged = set(lost.index[lost])
    return [
        "out of memory" if is_too_large(row)
        else "diverged" if (row["global_batch"], row["num_workers"], row["passes"]) in diverged
        else ""
        for row in table.to_dict("records")
    ]  # fmt: skip
