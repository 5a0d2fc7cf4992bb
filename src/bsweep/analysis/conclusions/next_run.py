"""The choice of the run that a search for the best cell trains next. It is the run that is expected
to improve the recommendation most per worker-second, within a budget.

The gain of a run is its knowledge gradient, see `objectives.gains`. It is the fraction of the time
(or cost) that choosing a cell after the run is expected to save over choosing now. Until a run has
reached the target, the number of steps is unknown. The first run then has the batch in the middle
of the grid, on the worker count that costs least. A search recommends nothing before the steps of
two batch sizes are known.

If a search has several learning rates, `with_rates` says which of them a batch size is run with
next. The gain of trying a further rate is what the steps are expected to fall by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import ndtr

from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.prediction.forecast import Key, are_unreached, keys_of
from bsweep.analysis.prediction.objectives import (
    LEAST_GAIN,
    SURE,
    log_objective,
)
from bsweep.analysis.prediction.seen_runs import Observed, exact_batches
from bsweep.analysis.prediction.step_time import StepTimeFit
from bsweep.analysis.prediction.ways import WHOLE, Way

SHARE = 0.05  # share of the grid's predicted cost that finding the best cell may take
FEWEST_RUNS = 3  # that a search may make, even if they cost more than the share

_PROBED_SHARE = 0.1  # of what a search may spend that timing steps may cost
_PROBED_FIRST = 2  # cells of each worker count that are timed whatever they cost
_FEWEST_BATCHES = 2  # with known steps, before a search recommends a cell
# Standard deviation of the log steps at a learning rate, less those at the best one beside it.
_RATE_EFFECT = 0.3

End = Literal["sure", "budget", "gain", "runs", ""]
"""The reason why a search for the best cell trains no further run; empty if it trains one.

`sure`: the choice is sure. `budget`: no run that gains enough fits the budget. `gain`: no run gains
    enough.
`runs`: no run is left.
"""


@dataclass(frozen=True)
class Offer:
    """A run that a search for the best cell could begin or resume next, with its cell and its
    numbers of steps.

    `done_steps` is the number of steps already trained. `most_steps` is the largest number of steps
    that the run may take in all. `rate` is its learning rate, NaN if the search has only one.
    `is_trial` is True if it has several, and no run of its batch size had this rate.
    """

    cell: Key
    most_steps: float
    done_steps: float = 0.0
    rate: float = math.nan
    is_trial: bool = False


@dataclass(frozen=True)
class Grid:
    """The cells that a search for the best cell may train, with the number of runs planned in each
    and the most steps of a run.

    `points` is the number of runs of each cell, and `most_steps` the most steps of each of them.
    `other_seconds`, by worker count, are the seconds of a run beside its steps: to start, and to
    evaluate. `ways` are the ways in which workers share the model, by the names in the cells.
    """

    points: Mapping[Key, int]
    most_steps: Mapping[Key, float]
    other_seconds: Mapping[int, float]
    ways: Mapping[str, Way] = field(default_factory=lambda: {"": WHOLE})

    @property
    def cells(self) -> list[Key]:
        return list(self.points)

    def share(
        self, step_time: StepTimeFit, prediction: Prediction | None, before: float = 0.0
    ) -> float:
        """Return the worker-seconds that a search may spend if no budget is given: the fraction
        `SHARE` of the predicted cost of all planned runs, or the cost of three runs if that is
        more. A typical run has the median cost of the grid's cells.

        Without a prediction each run takes the most steps that it may have.

        Args:
            step_time: The fit of the seconds of steps.
            prediction: The prediction from the runs so far, or None.
            before: The worker-seconds that timing steps took before the first run.
        """
        needed = dict.fromkeys(self.cells, np.inf)
        if prediction is not None:
            needed |= dict(zip(keys_of(prediction.cells), prediction.cells["steps"], strict=True))
        costs = {
            cell: self.run_worker_seconds(Offer(cell, most), needed[cell], step_time)
            for cell, most in self.most_steps.items()
        }
        whole = sum(number * costs[cell] for cell, number in self.points.items())
        return max(SHARE * whole, before + FEWEST_RUNS * float(np.median(list(costs.values()))))

    def run_worker_seconds(self, offer: Offer, steps: float, step_time: StepTimeFit) -> float:
        """Return the predicted worker-seconds that a run still takes, its start and evaluations
        included, if it reaches the target after `steps` steps in all or else ends at its most
        steps.
        """
        workers = offer.cell[1]
        left = max(0.0, min(steps, offer.most_steps) - offer.done_steps)
        step_seconds = median_step(step_time, offer.cell, self.ways[offer.cell[3]])
        seconds = left * step_seconds + self.other_seconds.get(workers, 0.0)
        return seconds * workers


@dataclass(frozen=True)
class Next:
    """The run that a search for the best cell trains next, with its cost and expected gain, or the
    reason why the search ends.

    If `ends` is not empty there is no next run; `offer` is then the run that would come next if one
    were made, or None. `gain` is the fraction that the run is expected to save, NaN before any run
    reached the target.
    """

    offer: Offer | None
    worker_seconds: float
    gain: float
    ends: End = ""


def median_step(step_time: StepTimeFit, cell: Key, way: Way = WHOLE) -> float:
    return float(np.exp(np.median(step_time.log_seconds(way.cell(*cell[:3])))))


def next_probe(
    cells: Collection[Key], costs: Mapping[Key, float], most: Callable[[], float]
) -> Key | None:
    """Return the cell whose steps a search times next; None if it times no further cell.

    On each number of workers and with each way of sharing the model, the smallest pass comes first,
    then the largest, and then the pass whose size is farthest from all that are timed. Those with
    fewer than `_PROBED_FIRST` timed cells precede the others. Once all have so many, a cell is
    timed only if timing steps then costs at most `_PROBED_SHARE` of what the search may spend, all
    in all.

    Args:
        cells: The cells that can be timed.
        costs: What timing a cell has cost, by cell; cells that turned out not to fit into memory
            are among them, but not among `cells`.
        most: Returns what the search may spend, in the unit of `costs`.
    """
    best, highest = None, (0, 0.0)
    for cell in sorted(cells, key=lambda cell: (cell[1], cell[3], cell[0] / cell[2], cell[2])):
        alike = [key for key in costs if (key[1], key[3]) == (cell[1], cell[3]) and key in cells]
        away = [abs(math.log2(cell[0] / cell[2] * key[2] / key[0])) for key in alike]
        rank = max(0, _PROBED_FIRST - len(alike)), min(away, default=math.inf)
        if cell not in costs and rank[1] > 0 and rank > highest:
            best, highest = cell, rank
    if best is None or highest[0] > 0:
        return best
    coming = median(cost for cell, cost in costs.items() if cell[1] == best[1])
    return best if sum(costs.values()) + coming <= _PROBED_SHARE * most() else None


def first_run(
    grid: Grid, offers: Sequence[Offer], step_time: StepTimeFit, left: Mapping[int, float]
) -> Next:
    """Return the run that a search for the best cell trains next as long as no run has reached the
    target: of the batches that are left, one in the middle, on the worker count that costs least. A
    run that was started before goes first.

    Args:
        grid: All cells.
        offers: The runs that can be made, at most one for each cell.
        step_time: The fit of the seconds of steps.
        left: Worker-seconds of the budget that are left for a run, by worker count.
    """
    if not offers:
        return Next(None, 0.0, np.nan, "runs")
    middle = float(np.exp(np.mean(np.log(sorted({offer.cell[0] for offer in offers})))))

    def rank(offer: Offer) -> tuple[bool, float, float]:
        batch, workers, _, way = offer.cell
        away = round(abs(float(np.log(batch / middle))), 6)  # equal on both sides
        # As if the middle were the critical batch.
        cost = (1 + middle / batch) * median_step(step_time, offer.cell, grid.ways[way]) * workers
        return not offer.done_steps, away, cost

    offer = min(offers, key=rank)
    workers = offer.cell[1]
    cost = grid.run_worker_seconds(offer, offer.most_steps, step_time)
    least = grid.other_seconds.get(workers, 0.0) * workers
    is_over = left[workers] < least or left[workers] <= 0
    return Next(offer, cost, np.nan, "budget" if is_over else "")


def still_open(offers: Sequence[Offer], runs: pd.DataFrame) -> list[Offer]:
    """Return those of the offered runs whose batch size may still reach the target, see
    `forecast.are_unreached`.

    All runs of a search are planned with the same number of examples. The examples to a target,
    E_min + S_min B, grow with the batch B. So a batch as large as one that missed the target, or
    larger, is left out, unless a run of a larger one reached the target. A run that diverged leaves
    nothing out, because it did not train to its end. Nor does a batch size with another learning
    rate to try.
    """
    trials = {offer.cell[0] for offer in offers if offer.is_trial}
    ended = runs[(runs["status"] != "diverged") & ~runs["global_batch"].isin(trials)]
    missed = are_unreached(pd.Series([offer.cell[0] for offer in offers], dtype=int), ended)
    return [offer for offer, is_missed in zip(offers, missed, strict=True) if not is_missed]


def with_rates(
    offers: Sequence[Offer], rates: Sequence[float], seen: Observed | None
) -> list[Offer]:
    """Return those of the offered runs whose learning rate is the one to run next at their batch
    size, with `is_trial` set.

    A batch size without runs begins with the best rate of the nearest batch size that has some, or
    with the middle rate. Then the rates beside the best one so far are tried, until both have runs,
    and all further runs have the best rate. At a batch size where a run diverged, its rate and
    larger ones are not tried.

    Args:
        offers: The runs that can be made, at most one for each cell and rate.
        rates: All learning rates of the search, in order.
        seen: The runs so far, or None.
    """
    if len(rates) < 2:
        return list(offers)
    runs = pd.DataFrame(columns=["global_batch", "lr", "status"])
    runs = runs if seen is None else seen.study.runs[[*runs.columns]]
    best = dict(runs.drop_duplicates("global_batch")[["global_batch", "lr"]].to_numpy(float))
    best |= {} if seen is None else seen.rates
    kept = []
    for offer in offers:
        batch = offer.cell[0]
        tried = runs[runs["global_batch"] == batch]
        if tried.empty:
            near = min(best, key=lambda other: abs(math.log(other / batch)), default=None)
            begins = rates[len(rates) // 2] if near is None else best[near]
            kept += [replace(offer, is_trial=True)] if offer.rate == begins else []
            continue
        too_large = tried.loc[tried["status"] == "diverged", "lr"].astype(float).min()
        place = rates.index(best[batch])
        beside = {*rates[max(0, place - 1) : place + 2]} - {*tried["lr"]}
        beside = {rate for rate in beside if not rate >= too_large}
        if beside and offer.rate in beside:
            kept.append(replace(offer, is_trial=True))
        elif not beside and offer.rate == best[batch] and not offer.rate >= too_large:
            kept.append(offer)
    return kept


def has_known_steps(prediction: Prediction) -> bool:
    """Return True if the steps to the target are known at two batch sizes or more, so that a search
    may recommend a cell.
    """
    return len(exact_batches(prediction.seen.runs)) >= _FEWEST_BATCHES


def is_proven(prediction: Prediction, batch: int) -> bool:
    """Return False for the recommended batch size if it is larger than all at which a run reached
    the target. Such a batch size may never reach it, whatever the formula says.
    """
    reached = prediction.seen.runs.loc[prediction.seen.runs["reached"].eq(True), "global_batch"]
    return batch != prediction.recommended["global_batch"] or bool(batch <= reached.max())


def next_run(
    grid: Grid, offers: Sequence[Offer], prediction: Prediction, left: Mapping[int, float]
) -> Next:
    """Return the run that a search trains next: the one that is expected to improve the
    recommendation most per worker-second, within the budget. `first_run` describes the arguments.

    A search does not end before a run has proven the recommended batch size (`is_proven`), and,
    with several learning rates, before it has run this batch size with the best rate and those
    beside it, if the budget pays for these runs. Until the
    steps of two batch sizes are known, it is a run of a further batch size, whatever it gains. A
    batch size no larger than one that reached the target at its first evaluation would do so too,
    and tell as little.
    """
    is_known = has_known_steps(prediction)
    if not is_known:
        runs = prediction.seen.runs
        most = runs.loc[runs["is_bound"].eq(True), "global_batch"].max()
        known = exact_batches(runs)
        offers = still_open(offers, runs)
        offers = [
            offer for offer in offers if offer.cell[0] not in known and not offer.cell[0] <= most
        ]
    table = _gains(grid, offers, prediction)
    is_over = is_known and prediction.recommended["probability_close"] >= SURE
    if table.empty:
        return Next(None, 0.0, 0.0, "sure" if is_over else "runs")
    worth = table[table["gain"] >= LEAST_GAIN] if is_known else table
    is_paid = table["cost"] <= table["workers"].map(left)
    if not is_over and len(worth):
        paid = worth[is_paid[worth.index]]
        return _best(paid, "") if len(paid) else _best(worth, "budget")
    best = prediction.recommended["global_batch"]
    proves = [
        not is_proven(prediction, offer.cell[0]) or (offer.is_trial and offer.cell[0] == best)
        for offer in table["offer"]
    ]
    proving = table[is_paid & np.array(proves)]
    return _best(proving, "") if len(proving) else _best(table, "sure" if is_over else "gain")


def _gains(grid: Grid, offers: Sequence[Offer], prediction: Prediction) -> pd.DataFrame:
    """Return a table of the runs that a search could train next, with the expected `gain`, the
    `cost` in worker-seconds and the `workers` of each.
    """
    batches = {*prediction.seen.runs["global_batch"]}
    means = log_objective(prediction.forecast, prediction.objective).mean(axis=0)
    cells = prediction.gains().assign(slower=means - means[prediction.choice.place])
    facts = cells[["gain", "steps", "slower"]].to_numpy(float)
    known = dict(zip(keys_of(cells), facts.tolist(), strict=True))
    rows = []
    for offer in offers:
        gain, steps, slower = known[offer.cell]
        if offer.is_trial and offer.cell[0] in batches:
            gain = _gain_of_rate(slower)
        cost = grid.run_worker_seconds(offer, steps, prediction.fitted.step_time)
        rows.append((offer, gain, cost, offer.cell[1]))
    return pd.DataFrame(rows, columns=["offer", "gain", "cost", "workers"])


def _gain_of_rate(slower: float) -> float:
    """Return the fraction that trying another learning rate in a cell is expected to save, for a
    cell whose log time (or log cost) is by so much larger than that of the recommended cell.
    """
    far = slower / _RATE_EFFECT
    density = np.exp(-(far**2) / 2) / np.sqrt(2 * np.pi)
    return float(_RATE_EFFECT * (density - far * ndtr(-far)))


def _best(table: pd.DataFrame, ends: End) -> Next:
    if table.empty:
        return Next(None, 0.0, 0.0, ends)
    # Of runs that gain nothing, the cheapest is the best.
    worth = table["gain"].clip(lower=1e-9) / table["cost"].clip(lower=1e-9)
    row = table.iloc[int(worth.to_numpy(float).argmax())]
    return Next(row["offer"], float(row["cost"]), float(row["gain"]), ends)
