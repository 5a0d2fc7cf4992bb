"""Warnings of a prediction: on learning rates that do not suit the batch sizes, on formulas that
the runs contradict, and on what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.common_target import ENOUGH_BATCHES
from bsweep.analysis.cell_tables.statistics import differ_by_chance
from bsweep.analysis.prediction import critical_batch
from bsweep.analysis.prediction.comparable_runs import schedule
from bsweep.analysis.prediction.fitting import Fits
from bsweep.analysis.prediction.likelihood import CellRuns
from bsweep.analysis.prediction.missing_runs import bounded
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.seen_runs import Observed, exact_batches, rate_rule
from bsweep.analysis.study import mixture
from bsweep.analysis.study.beside_others import timed_beside
from bsweep.analysis.study.numbers import number
from bsweep.core.words import counted

# What a formula misses of a run by the medians of the priors: that of the cell and that of the run.
_NORMAL_STEPS, _NORMAL_SECONDS = 0.09, 0.07
_BEYOND_CHANCE = 2.5  # standard errors of a difference
_RULES = {
    "fixed": "the learning rate is the same for all batch sizes",
    "per_worker": "the learning rate follows the number of workers, not the batch size",
}


def warnings_of(seen: Observed, fits: Fits, cells: pd.DataFrame, place: int) -> Iterator[str]:
    """Yield warnings on a prediction.

    Args:
        seen: The runs.
        fits: The fits to them.
        cells: The predicted cells, see `forecast`.
        place: The number of the recommended one.
    """
    cell, known = cells.iloc[place], exact_batches(seen.runs)
    yield from _of_rates(seen)
    yield from contradictions(seen.steps(), float(np.median(fits.steps.sigma)), rate_rule(seen))
    yield from _of_other_steps(seen.runs)
    lacking = ENOUGH_BATCHES - len(known)
    if lacking > 0:
        yield (
            f"{counted(len(known), 'batch size')} reached the target after the first evaluation, "
            "but the formula for the steps, S_min + E_min / B, has two parameters: "
            f"{lacking} more would test the formula. Until then, the intervals depend on what "
            "bsweep assumes of any study."
        )
    is_bounded = lacking > 0 or int(cell["global_batch"]) not in known
    if is_bounded and (text := bounded(seen.runs, seen.target)):
        yield text
    yield from _of_untimed_workers(seen, cells)
    yield from _of_machines(seen)
    yield from _of_formulas(fits)
    yield from _of_cell(cell)
    yield from critical_batch.disagreements(fits.critical_batches)


def _of_machines(seen: Observed) -> Iterator[str]:
    """Yield warnings on what the runs' times depend on beside the cell. Runs on different hardware
    were refused before.
    """
    runs = seen.runs
    if runs.loc[runs["device"] == "cpu"].groupby("num_workers")["threads"].first().nunique() > 1:
        yield (
            "the threads of a worker change with the number of workers, but the formula for the "
            "seconds of a step takes all workers as equally fast. Give launch.threads_per_worker."
        )
    for name, values in mixture.mixture(runs, seen.study.provenance).items():
        yield (
            f"the runs used different versions of {name}, so their times may differ: "
            f"{mixture.in_words(values)}."
        )
    is_beside = runs["run_id"].isin(timed_beside(seen.study.provenance))
    if count := int((is_beside & runs["train_seconds"].isna()).sum()):
        yield (
            f"{counted(count, 'run')} shared the machine with other runs (launch.parallel). The "
            "prediction uses their numbers of steps, but not their times."
        )


def _of_formulas(fits: Fits) -> Iterator[str]:
    """Yield warnings on formulas that miss the runs by more than usual."""
    for name, fitted, normal in (
        ("steps to the target", fits.steps, _NORMAL_STEPS),
        ("seconds of a step", fits.step_time, _NORMAL_SECONDS),
    ):
        if (missed := float(np.median(np.hypot(fitted.sigma, fitted.tau)))) > 2 * normal:
            yield (
                f"the formula for the {name} misses the runs by about {missed:.0%}, but "
                f"{normal:.0%} is normal. Do not rely on cells that were not measured: a formula "
                "that does not hold can be far off there."
            )


def _of_cell(cell: pd.Series[Any]) -> Iterator[str]:
    """Yield warnings on the recommended cell."""
    if cell["num_runs"] and not cell["num_reached"]:
        yield (
            "no run of the recommended cell reached the target, and its batch size may never reach "
            "it. Train this cell for longer first."
        )
    if cell["is_simulated"]:
        yield (
            "the seconds of a step of the recommended cell are simulated, not measured. Time a few "
            "steps with so many workers before you rent them."
        )
    if cell["beyond"]:
        yield (
            f"the recommended cell lies beyond what was measured: {cell['beyond']}. Train this "
            "cell before you rely on it."
        )


def _of_rates(seen: Observed) -> Iterator[str]:
    """Yield warnings on the learning rates of a prediction's runs."""
    runs = seen.runs
    if runs["global_batch"].nunique() > 1 and runs["lr"].nunique() <= 1:
        for rule in sorted(set(runs["lr_rule"].dropna()) & _RULES.keys()):
            yield (
                f"optimizer.lr_rule={rule}: {_RULES[rule]}, but the formula for the steps, S_min + "
                "E_min / B, needs a rate that suits each batch. Beyond the batches of the runs, it "
                "is a guess. Use optimizer.lr_rule=linear, or tune optimizer.lr for each batch."
            )
    if (name := schedule(runs)) != "constant":
        yield (
            f"the learning rate follows a schedule ({name}) over the configured epochs of a run, "
            "so the steps to a target depend on the number of epochs."
        )
    if seen.rates:
        yield (
            f"several learning rates were tried: each batch uses its best one ({rate_rule(seen)}). "
            "Use --where lr=... to keep one rate."
        )
        more = 100 * np.expm1(max(seen.optimism.values(), default=0.0))
        if more >= 0.05:
            yield (
                "runs that chose the learning rates needed fewer steps than new runs would, so "
                f"their steps count as up to {more:.1f} % more."
            )


def contradictions(runs: Mapping[float, CellRuns], sigma: float, rule: str) -> Iterator[str]:
    """Yield warnings on batch sizes whose runs contradict every law of the form S_min + E_min / B
    for the steps to a target at batch B.

    By that law examples to the target rise with the batch size and steps fall. Two batch sizes
    contradict it if they differ the other way by more than chance. If only bounds are known for the
    steps of one, any such difference counts. Only the worst pair is reported, one for examples and
    one for steps.

    Args:
        runs: The runs by global batch, as log steps to the target.
        sigma: Standard deviation of log steps between runs.
        rule: The learning-rate rule to name in the warning.
    """
    for unit, each in (("examples", 1), ("steps", 0)):
        worst, sentence = -np.inf, ""
        for small, large in combinations(sorted(runs), 2):
            more, less = (small, large) if each else (large, small)
            slow, fast = runs[more], runs[less]
            least = _mean_bound(slow.exact, slow.above, slow.below) + each * np.log(more)
            most = _mean_bound(fast.exact, fast.below, fast.above) + each * np.log(less)
            counts = np.array([len(runs[batch].exact) for batch in (more, less)])
            error = sigma * np.sqrt((1 / counts).sum()) if counts.all() else 0.0
            if least >= most + _BEYOND_CHANCE * error and least - most > worst:
                worst = least - most
                at_least, at_most = (number(float(np.exp(log))) for log in (least, most))
                did, needed = (
                    (f"took {at_least} {unit} to the target", "")
                    if counts[0]
                    else (f"did not reach the target in {at_least} {unit}", "needed ")
                )
                sentence = f"batch {more:g} {did}, batch {less:g} {needed}at most {at_most}."
        if sentence:
            yield (
                f"{sentence} The formula for the steps, S_min + E_min / B, does not explain this, "
                f"but the learning rate (rule: {rule}), generalisation or BatchNorm may."
            )


def _mean_bound(exact: Array, bounds: Array, others: Array) -> float:
    """Return a bound of the mean log steps that runs need to reach the target, from their steps and
    their bounds of one kind; NaN if there are no runs, or some have a bound of the other kind only.
    """
    known = [*exact, *bounds]
    return float(np.mean(known)) if known and not len(others) else np.nan


def _of_other_steps(runs: pd.DataFrame) -> Iterator[str]:
    """Yield warnings where the steps to a target differ significantly between worker counts or
    strategies at one global batch.

    BatchNorm is a possible cause: on local batches, and in a pipeline on micro-batches.
    """
    reached = runs[runs["reached"].eq(True)]
    for column, alike, more in (
        ("num_workers", "worker counts", ""),
        ("way", "strategies", ", and in a pipeline one micro-batch"),
    ):
        for batch, cells in reached.groupby("global_batch"):
            groups = cells.groupby(column)["steps_to_target"]
            logs = [np.log(steps) for _, steps in groups if len(steps) > 1]
            for first, second in combinations(logs, 2):
                if differ_by_chance(first, second) >= 0.01:
                    continue
                change = 100 * np.expm1(abs(first.mean() - second.mean()))
                yield (
                    f"at global batch {batch:g}, the steps to the target differ by {change:.0f} % "
                    f"between {alike}, but the prediction treats them as equal. BatchNorm is a "
                    f"possible cause, because it sees only the local batch{more}."
                )


def _of_untimed_workers(seen: Observed, cells: pd.DataFrame) -> Iterator[str]:
    known = sorted({timing.cell.num_workers for timing in seen.timings()})
    guessed = cells.loc[~cells["is_simulated"], "num_workers"]
    others = sorted(set(guessed) - {1, *known})
    if others and (len(known) < 2 or max(others) > max(known)):
        yield (
            f"steps were timed only on {counted(', '.join(map(str, known)), 'worker')}, so the "
            f"cost of an exchange on {counted(', '.join(map(str, others)), 'worker')} is a guess "
            "with a wide interval. Time a few steps with so many workers, or give bsweep predict "
            "the file of `bsweep probe` with --probe."
        )
