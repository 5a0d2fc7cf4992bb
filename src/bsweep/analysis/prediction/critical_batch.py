"""Three estimates of the critical batch size: from the steps to a target, from the gradient noise
scale, and from branches. Branches are runs that begin at one checkpoint and have several batch
sizes.

The first is E_min / S_min of the law in `steps`. The definitions of the three differ, and the
estimates normally agree within a factor of a few (McCandlish et al., arXiv 1812.06162). The noise
scale describes the gradient along one run. Steps to a target integrate over whole runs. Branches
begin at one checkpoint. An estimate that was measured and is identifiable has an interval; another
one has a verdict that says why it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array
from bsweep.analysis.prediction.seen_runs import Observed, to_target_of
from bsweep.analysis.prediction.steps import CriticalBatchPrior, StepsFit, fit_steps
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.numbers import interval_text
from bsweep.analysis.study.targets import crossings
from bsweep.core.words import counted

INTERVAL = (0.05, 0.95)  # quantiles at the ends of every interval of a prediction
LEVEL = f"{100 * (INTERVAL[1] - INTERVAL[0]):.0f} %"
P95 = 1.645  # standard deviations from the median to the 95th percentile
# One standard deviation between a noise scale and the critical batch of steps to a target.
_NOISE_FACTOR = 3.0
_FEWEST_RECORDS = 8  # Fewer records of a noise scale are too few for a bootstrap.
_NUM_BOOTSTRAPS = 2000
_MOST_WIDTH = 0.7  # of the prior's width; a wider posterior owes too little to the runs


@dataclass(frozen=True)
class CriticalBatch:
    """An estimate of the critical batch size, in examples, with its 90 % interval.

    `verdict` is empty, or says why the estimate was not measured or is not identifiable.
    `ratio_of_sums` is the other definition of the noise scale of runs: the sum of all variances
    over the sum of all squared gradients.
    """

    source: str
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    verdict: str = ""
    ratio_of_sums: float = np.nan

    @property
    def is_known(self) -> bool:
        return not self.verdict

    def as_prior(self) -> CriticalBatchPrior:
        """Return this estimate of the critical batch size as a prior, for the fit of the law of the
        steps to a target.

        The prior's width combines the estimate's own width and the factor by which definitions may
        differ.
        """
        width = np.log(self.high / self.low) / (2 * P95)
        return CriticalBatchPrior(self.value, float(np.exp(np.hypot(np.log(_NOISE_FACTOR), width))))


def from_steps(fit: StepsFit) -> CriticalBatch:
    """Return the estimate of the critical batch size that follows from the fitted law of the steps
    to a target.
    """
    low, value, high = np.quantile(fit.critical_batch, [INTERVAL[0], 0.5, INTERVAL[1]])
    width = np.std(np.log(fit.critical_batch)) / np.log(10)
    few = f"not identifiable: {counted(len(fit.batches), 'batch size')} determine it poorly"
    verdict = few if width > _MOST_WIDTH else ""
    return CriticalBatch("steps to target", float(value), float(low), float(high), verdict)


def from_noise_scale(records: pd.DataFrame) -> CriticalBatch:
    """Return the critical batch size as estimated from records of the gradient noise scale.

    It is the mean over a run of the local noise scale (McCandlish et al., appendix D), which is the
    sum of variances over the sum of squared gradients in a part of the run's consecutive records.
    The parts are as short as a squared gradient above zero allows, because a ratio whose
    denominator is near zero would dominate the mean. If even whole runs are too short, the sums
    go over all runs. The interval comes from resampling blocks of consecutive records of each part
    (circular block bootstrap; Politis and Romano, 1992), since neighbouring records are alike.

    The estimate is not identifiable from fewer than eight records, or if the squared gradient or
    the variance is zero or less in all records together or in more than one of twenty resamples.

    Args:
        records: The records, with the columns of `Study.noise_scales`.
    """
    source, columns = "noise scale", ["variance", "gradient_square"]
    known = records.dropna(subset=columns)
    runs = [run[columns].to_numpy(float) for _, run in known.groupby("run_id")]
    if len(known) < _FEWEST_RECORDS:
        lacking = _FEWEST_RECORDS - len(known)
        are = "record is" if lacking == 1 else "records are"
        few = f"not identifiable: {lacking} {are} missing" if len(known) else "not measured"
        return CriticalBatch(source, verdict=few)
    rng, total = np.random.default_rng(0), np.sum(np.concatenate(runs), axis=0)
    groups = [[part] for part in _parts(runs)] or [runs]
    weights = np.array([sum(map(len, group)) for group in groups]) / len(known)
    sums = np.stack([sum(_block_sums(part, rng) for part in group) for group in groups])
    is_bad = (sums <= 0).any(axis=(0, 2))
    if is_bad.mean() > INTERVAL[0] or (total <= 0).any():
        verdict = (
            "not identifiable: the squared gradient or the variance may be zero; average more steps"
        )
        return CriticalBatch(source, verdict=verdict)
    ratios = weights @ (sums[:, ~is_bad, 0] / sums[:, ~is_bad, 1])
    low, high = np.quantile(ratios, [INTERVAL[0], min(1.0, INTERVAL[1] / (1 - is_bad.mean()))])
    local = [np.sum(np.concatenate(group), axis=0) for group in groups]
    value = float(weights @ [variance / square for variance, square in local])
    of_sums = float(total[0] / total[1])
    return CriticalBatch(source, value, float(low), float(high), ratio_of_sums=of_sums)


def _parts(runs: Sequence[Array]) -> list[Array]:
    """Return parts of consecutive records of runs, the shortest ones in which the mean of the
    squared gradients exceeds its standard error three times or more; none if there are none.

    The standard error allows for neighbouring records that are alike.
    """
    count = max(map(len, runs)) // _FEWEST_RECORDS
    while count:
        parts = [
            part
            for run in runs
            for part in np.array_split(run, max(1, min(count, len(run) // _FEWEST_RECORDS)))
        ]
        if all(map(_is_clear, parts)):
            return parts
        count //= 2
    return []


def _is_clear(part: Array) -> bool:
    error = part[:, 1].std() * np.sqrt(_block_length(len(part)) / len(part))
    return len(part) > 1 and part[:, 0].sum() > 0 and part[:, 1].mean() >= 3 * error


def noise_scale(study: Study) -> pd.DataFrame:
    """Return the gradient noise scale, in examples, of each run that measured it.

    Args:
        study: The study.

    Returns:
        A row for each run, with `noise_scale`, the ends `low` and `high` of its 90 % interval,
            `ratio_of_sums`, and `verdict`. The verdict is empty, or says why there is no estimate;
            see `from_noise_scale`.
    """
    rows = [
        {"run_id": run_id, **asdict(from_noise_scale(records))}
        for run_id, records in study.noise_scales.groupby("run_id", sort=False)
    ]
    names = ["run_id", "value", "low", "high", "ratio_of_sums", "verdict"]
    return pd.DataFrame(rows, columns=names).rename(columns={"value": "noise_scale"})


def _block_length(num_records: int) -> int:
    return max(1, min(num_records, round(1.5 * float(np.cbrt(num_records)))))


def _block_sums(values: Array, rng: np.random.Generator) -> Array:
    """Return the sums of a run's gradient noise records over block-bootstrap resamples, one sum for
    each column, of shape (resamples, columns).
    """
    n = len(values)
    length = _block_length(n)
    starts = rng.integers(n, size=(_NUM_BOOTSTRAPS, -(-n // length)))
    places = (starts[:, :, None] + np.arange(length)) % n
    return np.asarray(values[places.reshape(_NUM_BOOTSTRAPS, -1)[:, :n]].sum(axis=1))


def from_branches(branches: pd.DataFrame, num_draws: int = NUM_DRAWS) -> CriticalBatch:
    """Return the critical batch size as estimated from branches, which are runs that continue one
    checkpoint at several batch sizes.

    Args:
        branches: A row for each run, with `global_batch` and the columns of `to_target` computed
            from the evaluations since the checkpoint. Steps are counted from the checkpoint.
        num_draws: The number of draws from the posterior.
    """
    source = "branched runs"
    if branches.empty:
        return CriticalBatch(source, verdict="not measured")
    reached = branches[branches["reached"].astype(bool)]
    if (count := reached["global_batch"].nunique()) < 2:
        verdict = (
            f"not identifiable: {counted(count, 'batch size')} reached the target from the "
            "checkpoint, two are needed"
        )
        return CriticalBatch(source, verdict=verdict)
    groups = branches.groupby("global_batch", sort=False)
    steps = {float(str(batch)): to_target_of(runs, "steps") for batch, runs in groups}
    return replace(from_steps(fit_steps(steps, num_draws=num_draws)), source=source)


def branches_of(seen: Observed) -> pd.DataFrame:
    """Return a table of the branches of one checkpoint and of the run that wrote it, with the steps
    that each run took from the checkpoint to the target.

    The target is that of the prediction. It is given beforehand, so it is the same for any number
    of branches. A loss that the branches reached by chance would favour the branch from which it is
    taken. Branches that did not reach the target count as bounds. Branches of different checkpoints
    would need separate fits; those of the checkpoint that has branches of the most batch sizes are
    taken.
    """
    runs = seen.continued
    # It may not be known after how many steps they began.
    starts = runs.dropna(subset=["branch_of", "branch_steps"]) if len(runs) else runs
    if starts.empty:
        return pd.DataFrame({"global_batch": []})
    sizes = starts.groupby(["branch_of", "branch_steps"])["global_batch"].nunique()
    source, begun = sizes.index[int(sizes.to_numpy().argmax())]
    branches = runs[(runs["branch_of"] == source) & (runs["branch_steps"] == begun)]
    origin = seen.runs[seen.runs["run_id"] == source]
    batches = pd.concat([branches, origin]).set_index("run_id")["global_batch"]
    since = seen.study.evaluations
    since = since[since["run_id"].isin(batches.index)]
    since = since.assign(num_steps=since["num_steps"].astype(float) - begun)
    return crossings(since[since["num_steps"] > 0], seen.target).join(batches)


def records_until_target(seen: Observed) -> pd.DataFrame:
    """Return those records of the gradient noise scale that each run wrote until it reached the
    target; all records of a run that did not reach it.
    """
    ends = seen.runs.set_index("run_id")["steps_to_target"].fillna(np.inf)
    records = seen.study.noise_scales
    records = records[records["run_id"].isin(ends.index)]
    return records[records["num_steps"].astype(float) <= records["run_id"].map(ends).astype(float)]


def disagreements(estimates: Sequence[CriticalBatch]) -> Iterator[str]:
    """Yield a warning for each pair of critical batch estimates whose intervals do not overlap."""
    known = [estimate for estimate in estimates if estimate.is_known]
    for pair in combinations(known, 2):
        if max(estimate.low for estimate in pair) > min(estimate.high for estimate in pair):
            sources = " and ".join(
                f"from {estimate.source} ({interval_text(estimate.low, estimate.high)})"
                for estimate in pair
            )
            yield (
                "two estimates of the critical batch size disagree beyond their intervals: "
                f"{sources}. The two are defined differently, and an estimate from the steps to "
                "the target may be wrong if the learning rates do not suit the batch sizes."
            )
