"""Warnings on whether the learning rates suit the batch sizes, judged by the settings of runs and
by the steps to a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from bsweep.analysis.numbers import number
from bsweep.analysis.prediction.cells import CellRuns
from bsweep.analysis.prediction.selection import Observed, rate_rule, schedule
from bsweep.analysis.statistics import differ_by_chance

_BEYOND_CHANCE = 2.5  # standard errors of a difference

_RULES = {
    "fixed": "the learning rate is the same for all batch sizes",
    "per_worker": "the learning rate follows the number of workers, not the batch size",
}


def warnings(seen: Observed, sigma: float) -> Iterator[str]:
    """Yield warnings on the learning rates of a prediction's runs, and on batch sizes and worker
    counts whose runs contradict the formula for the steps to a target.
    """
    runs = seen.runs
    if runs["global_batch"].nunique() > 1 and runs["lr"].nunique() <= 1:
        for rule in sorted(set(runs["lr_rule"].dropna()) & _RULES.keys()):
            yield (
                f"optimizer.lr_rule={rule}: {_RULES[rule]}, but the formula for the steps, S_min + "
                "E_min / B, needs a rate that suits each batch. The prediction holds only for this "
                "rule, and is a guess beyond the batches of the runs. Use a rule that follows the "
                "batch, such as optimizer.lr_rule=linear, or tune optimizer.lr for each batch."
            )
    if (how := schedule(runs)) != "constant":
        yield (
            f"the learning rate follows a schedule ({how}) over the configured epochs of a run. So "
            "the steps to a target depend on the number of epochs, and a run that ends at its "
            "target does not reach the end of the schedule."
        )
    if seen.rates:
        yield (
            "several learning rates were tried: each batch uses its best rate, at which the "
            "largest share of runs reaches the target, and among equals the one with the fewest "
            f"steps ({rate_rule(seen)}). Use --where lr=... to keep one rate."
        )
        more = 100 * np.expm1(max(seen.optimism.values(), default=0.0))
        if more >= 0.05:
            yield (
                "runs that chose the learning rates needed fewer steps than new runs would, so "
                f"their steps count as up to {more:.1f} % more."
            )
    yield from contradictions(seen.steps(), sigma, rate_rule(seen))
    yield from _by_column(runs)


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
        worst, found = 0.0, ""
        for small, large in combinations(sorted(runs), 2):
            more, less = (small, large) if each else (large, small)
            least = _at_least(runs[more]) + each * np.log(more)
            most = _at_most(runs[less]) + each * np.log(less)
            counts = [len(of.exact) for of in (runs[more], runs[less])]
            chance = (
                sigma * _BEYOND_CHANCE * np.sqrt(1 / counts[0] + 1 / counts[1])
                if all(counts)
                else 0.0
            )
            if least >= most + chance and (not found or least - most > worst):
                worst = least - most
                at_least, at_most = (number(float(np.exp(log))) for log in (least, most))
                if counts[0]:
                    found = (
                        f"batch {more:g} took {at_least} {unit} to the target, batch {less:g} at "
                        f"most {at_most}."
                    )
                else:
                    found = (
                        f"batch {more:g} did not reach the target in {at_least} {unit}, batch "
                        f"{less:g} needed at most {at_most}."
                    )
        if found:
            yield (
                f"{found} The formula for the steps, S_min + E_min / B, does not explain this. "
                f"Possible causes are the learning rate (rule: {rule}), generalisation and "
                "BatchNorm."
            )


def _at_least(runs: CellRuns) -> float:
    """Return a lower bound of the mean log steps that runs need to reach the target. It is NaN if
    only an upper bound is known of a run, or if there are no runs.
    """
    known = [*runs.exact, *runs.above]
    return float(np.mean(known)) if known and not len(runs.below) else np.nan


def _at_most(runs: CellRuns) -> float:
    known = [*runs.exact, *runs.below]
    return float(np.mean(known)) if known and not len(runs.above) else np.nan


def _by_column(runs: pd.DataFrame) -> Iterator[str]:
    """Yield warnings where the steps to a target differ significantly between worker counts or
    strategies at one global batch.

    BatchNorm is a possible cause: on local batches, and in a pipeline on micro-batches.
    """
    for column, alike, more in (
        ("num_workers", "worker counts", ""),
        ("way", "strategies", ", and in a pipeline one micro-batch"),
    ):
        for batch, change in _differences(runs, column):
            yield (
                f"at global batch {batch}, the steps to the target differ by {change} % between "
                f"{alike}, but the prediction treats them as equal. BatchNorm is a possible cause, "
                f"because it sees only the local batch{more}."
            )


def _differences(runs: pd.DataFrame, column: str) -> Iterator[tuple[str, str]]:
    """Yield each global batch at which the steps to the target differ significantly between two
    values of a column, with the difference in per cent.
    """
    reached = runs[runs["reached"].eq(True)]
    for batch, of in reached.groupby("global_batch"):
        groups = [
            np.log(group["steps_to_target"]) for _, group in of.groupby(column) if len(group) > 1
        ]
        for one, other in combinations(groups, 2):
            if differ_by_chance(one, other) < 0.01:
                change = float(np.exp(abs(one.mean() - other.mean()))) - 1
                yield f"{batch:g}", f"{100 * change:.0f}"
