"""The objective by which a cell is recommended, such as the least time or cost, the recommended
cell, and how sure the recommendation is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.critical_batch import INTERVAL
from bsweep.analysis.prediction.forecast import Forecast, batch_on_workers
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.study.numbers import number
from bsweep.config.values import check_above_zero, did_you_mean, parse_seconds

Measure = Literal["seconds", "worker_seconds", "money", "joules"]

CLOSE = 0.05  # Cells within this fraction of the best count as equally good.
LEAST_GAIN = 0.005  # A run with a smaller gain is not worthwhile.
SURE = 0.9  # the probability required of meeting a deadline, and of a sure choice
# A cell that is better with a smaller probability is told from the recommended one.
TELLS_APART = 0.05
_MEASURES: dict[str, Measure] = {
    "fastest": "seconds", "cheapest": "worker_seconds", "joules": "joules",
}  # fmt: skip
_EXAMPLES = (
    "fastest, cheapest, joules, deadline=2h, workers<=4, or several of them, as in "
    "cheapest,workers<=4"
)


@dataclass(frozen=True)
class Objective:
    """The measure by which a cell is recommended, such as seconds or money, and the limits that the
    cell must keep.

    The chosen cell has the least `minimize` among cells on at most `max_workers` that finish before
    the deadline with a probability of at least `SURE`.
    """

    minimize: Measure = "seconds"
    deadline_seconds: float | None = None
    max_workers: int | None = None
    text: str = field(default="fastest", compare=False)


def parse_objective(text: str, price_per_worker_hour: float | None = None) -> Objective:
    """Return the objective that a user's text, such as `cheapest,workers<=4`, describes.

    With a price, worker-seconds become money.

    Raises:
        ValueError: If the text or the price is wrong.
    """
    check_above_zero("price-per-worker-hour", price_per_worker_hour, 2.5)
    chosen = Objective(text=text)
    given: list[Measure] = []
    for word in (word.strip() for word in text.split(",")):
        if word in _MEASURES:
            given.append(_MEASURES[word])
        elif word.startswith("deadline="):
            chosen = replace(chosen, deadline_seconds=parse_seconds(word.partition("=")[2]))
        elif limit := re.fullmatch(r"workers\s*<=\s*([1-9]\d*)", word):
            chosen = replace(chosen, max_workers=int(limit[1]))
        else:
            near = did_you_mean(word, [*_MEASURES, "deadline=2h", "workers<=4"])
            raise ValueError(f"objective {word or text!r}: unknown.{near} Use {_EXAMPLES}.")
    if len(set(given)) > 1:
        raise ValueError(
            f"objective {text!r}: only one quantity can be minimised. Use {_EXAMPLES}."
        )
    # With a deadline, finishing even sooner has no value, so the cost is minimized.
    within: Measure = "worker_seconds" if chosen.deadline_seconds else "seconds"
    least = given[0] if given else within
    is_priced = least == "worker_seconds" and price_per_worker_hour is not None
    return replace(chosen, minimize="money" if is_priced else least)


@dataclass(frozen=True)
class ChosenCell:
    """The recommended cell, as the number of its row in the prediction's table, and how sure the
    recommendation is.

    `value` is the median of what the objective minimizes, with the ends `low` and `high` of the
    90 % prediction interval of one further run. `alternatives` are the allowed cells that are
    better than the recommended one with a probability of `TELLS_APART` or more, the likeliest
    first. `measured` is the best of the allowed cells whose time to the target was measured. How
    probably the cell is the best, stands in its row of the table; see `with_probabilities`.
    """

    place: int
    value: float
    low: float
    high: float
    alternatives: tuple[int, ...]
    runner_up: int | None
    measured: int | None


def log_objective(forecast: Forecast, objective: Objective, of_run: bool = False) -> Array:
    """Return the logarithm of the quantity that an objective minimizes, such as seconds or money,
    for each posterior draw and cell. It is NaN for cells with a strategy whose energy is not known.

    Raises:
        ValueError: If no energy of the runs is known, and the objective is to minimize it.
    """
    logs = forecast.log_run_seconds if of_run else forecast.log_seconds
    if objective.minimize == "seconds":
        return logs
    amounts = forecast.cells[["num_workers", "worker_seconds", objective.minimize]].astype(float)
    workers, worker_seconds, amount = amounts.to_numpy().T
    rates = amount / worker_seconds
    if np.isnan(rates).all():  # only of joules: money has a price
        raise ValueError(
            "objective joules: the energy of no run is known. Either the hardware did not report "
            "it (NVIDIA GPUs report it by NVML, CPUs by RAPL counters if the user may read them), "
            "or the runs shared their machine (launch.parallel). Use fastest or cheapest."
        )
    return np.asarray(logs + np.log(workers * rates))


def amount(forecast: Forecast, objective: Objective, place: int) -> tuple[float, float, float]:
    """Return what an objective minimizes in one cell: the median of typical runs, and the ends of
    the 90 % prediction interval of one further run.
    """
    typical, of_run = (
        log_objective(forecast, objective, is_run)[:, place] for is_run in (False, True)
    )
    value, low, high = np.exp([np.median(typical), *np.quantile(of_run, INTERVAL)])
    return float(value), float(low), float(high)


def with_probabilities(forecast: Forecast, objective: Objective) -> Forecast:
    """Return a forecast whose table of cells has added columns: whether a cell is allowed, and the
    probabilities that the cell meets the deadline, is the best and is close to the best.

    The added columns are:

    - `is_allowed`.
    - `probability_in_time`: the probability that one run meets the deadline; NaN without one.
    - `probability_best`: the probability that no allowed cell is better.
    - `probability_close`: the probability that none is better by more than `CLOSE`. Both are of
      typical runs, and 0 for cells that are not allowed.

    A cell is allowed if it has no problem, keeps the objective's limits, and its energy is known,
    if it counts. Cells with `is_unreached` are allowed only if no other cell that can be trained is
    left within `max_workers`.
    """
    cells, logs = forecast.cells, log_objective(forecast, objective)
    allowed = _possible(cells, objective) & pd.Series(~np.isnan(logs).any(axis=0), cells.index)
    allowed = without_unreached(allowed, cells)  # a warning says if only such cells are left
    in_time = pd.Series(np.nan, cells.index)
    if objective.deadline_seconds is not None:
        in_time[:] = (forecast.log_run_seconds <= np.log(objective.deadline_seconds)).mean(axis=0)
        allowed &= in_time >= SURE
    values = np.where(allowed, logs, np.inf)
    best, close = np.zeros(len(cells)), np.zeros(len(cells))
    if allowed.any():
        least = values.min(axis=1, keepdims=True)
        best = np.bincount(values.argmin(axis=1), minlength=len(cells)) / len(values)
        close = (values <= least + np.log1p(CLOSE)).mean(axis=0)
    cells = cells.assign(
        is_allowed=allowed,
        probability_in_time=in_time,
        probability_best=best,
        probability_close=close,
    )
    return replace(forecast, cells=cells)


def without_unreached(is_kept: pd.Series[bool], cells: pd.DataFrame) -> pd.Series[bool]:
    """Return which cells are kept after those with `is_unreached` are left out too, unless no
    other cell would be left.
    """
    reached = is_kept & ~cells["is_unreached"]
    return reached if reached.any() else is_kept


def _possible(cells: pd.DataFrame, objective: Objective) -> pd.Series[bool]:
    """Return for each cell True if it can be trained on as few workers as the objective allows."""
    most_workers = objective.max_workers or np.inf
    return (cells["problem"] == "") & (cells["num_workers"] <= most_workers)


def choose_cell(forecast: Forecast, objective: Objective) -> ChosenCell:
    """Choose the recommended cell: of the allowed cells, the one with the least median of the
    measure to minimize. The forecast comes from `with_probabilities`.

    Raises:
        ValueError: If no cell is allowed. The message says what to change.
    """
    table = forecast.cells
    allowed = np.flatnonzero(table["is_allowed"])
    if not len(allowed):
        raise ValueError(_nothing_allowed(table, objective))
    values = log_objective(forecast, objective)
    order = allowed[np.argsort(np.median(values[:, allowed], axis=0), kind="stable")]
    place, *others = (int(cell) for cell in order)
    is_better = {cell: float((values[:, cell] < values[:, place]).mean()) for cell in others}
    likely = [cell for cell in others if is_better[cell] >= TELLS_APART]
    value, low, high = amount(forecast, objective, place)
    is_measured = table["num_reached"].gt(0) & table["measured_seconds"].notna()
    return ChosenCell(
        place=place,
        value=value,
        low=low,
        high=high,
        alternatives=tuple(sorted(likely, key=lambda cell: -is_better[cell])),
        runner_up=others[0] if others else None,
        measured=next((cell for cell in (place, *others) if is_measured.iloc[cell]), None),
    )


def _nothing_allowed(table: pd.DataFrame, objective: Objective) -> str:
    possible = table[_possible(table, objective)]
    if possible.empty or objective.deadline_seconds is None:
        fewest = int(table["num_workers"].min())
        reasons = ", ".join(sorted(set(table["problem"]) - {""}))
        return (
            f"objective {objective.text!r}: no cell is left (the fewest workers of the grid are "
            f"{fewest}{'; ' + reasons if reasons else ''}). Widen the grid by --batches or "
            "--workers."
        )
    order = ["probability_in_time", "seconds"]
    nearest = possible.sort_values(order, ascending=[False, True]).iloc[0]
    return (
        f"objective {objective.text!r}: no cell meets the deadline with a probability of "
        f"{SURE:g} or more. The nearest is "
        f"{batch_on_workers(nearest['global_batch'], nearest['num_workers'])}, with "
        f"{nearest['probability_in_time']:.2f} (median {number(nearest['seconds'])} s). Allow "
        "more time or more workers."
    )


def gains(forecast: Forecast, objective: Objective, sigma: Array) -> Array:
    """Return the knowledge gradient of each cell: the expected saving, as a fraction of time or
    cost, from one more run of the cell to the target. A run saves if it leads to the choice of a
    better cell.

    The logarithms are taken as jointly normal over cells. A measurement moves all expectations
    along their covariance with it. The gain is the expected fall of the least of the cells' mean
    log times, or log costs (Frazier, Powell and Dayanik, 2009). This is the fraction of time (or
    cost) that choosing afterwards saves over choosing now. It is 0 if the cell itself is not
    allowed.

    Args:
        forecast: The present predictions, from `with_probabilities`.
        objective: The objective to minimize.
        sigma: Standard deviation of the log seconds of runs of a cell, by draw.
    """
    allowed = np.flatnonzero(forecast.cells["is_allowed"])
    values = log_objective(forecast, objective)[:, allowed]
    measured = forecast.log_seconds[:, allowed]
    means, away = values.mean(axis=0), measured - measured.mean(axis=0)
    spread = np.sqrt(np.mean(away**2, axis=0) + np.mean(sigma**2))
    slopes = away.T @ (values - means) / len(values) / spread[:, None]
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    gain = np.zeros(len(forecast.cells))
    for place, slope in zip(allowed, slopes, strict=True):
        least = (means[:, None] + slope[:, None] * nodes).min(axis=0) @ weights / weights.sum()
        gain[place] = max(0.0, means.min() - least)
    return gain
