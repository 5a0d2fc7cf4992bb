"""Means and intervals over seeds, and tests of whether an accuracy or a difference
may be chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import betainc, stdtr, stdtrit

MIN_SEEDS_FOR_INTERVAL = 3  # an interval from two seeds is too wide to tell anything apart
ALPHA = 0.05  # of intervals and of tests whose p-values are corrected for their number
CHANCE_ALPHA = 0.001  # small, because a study tests each of its cells


def over_seeds(
    runs: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str] | pd.Index
) -> pd.DataFrame:
    """Return means and intervals of metrics over the seeds of each group of runs; runs of equal
    seed are averaged first.

    A run repeated with its seed shows how much a time varies, but nothing about other seeds.

    Columns: `n`, the number of distinct seeds; the metrics; and, as `<metric>_ci95`, half the width
        of their 95 % t-interval, NaN below three seeds with a value.

    Args:
        runs: A table with the keys, the metrics and the column `seed`.
        keys: The columns that tell groups apart.
        metrics: The columns to average.
    """
    seeds = runs.groupby([*keys, "seed"])[list(metrics)].mean().groupby(level=list(keys))
    count = seeds.count()
    half_width = (seeds.sem() * stdtrit(count - 1, 0.975)).where(count >= MIN_SEEDS_FOR_INTERVAL)
    return pd.DataFrame({"n": seeds.size()}).join(seeds.mean()).join(half_width.add_suffix("_ci95"))


def seed_points(runs: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return the metrics of each group of runs as tuples with one value for each seed that has one,
    in columns `<metric>_points`.

    `over_seeds` averages these values.
    """
    seeds = runs.groupby([*keys, "seed"])[list(metrics)].mean().groupby(level=list(keys))
    return seeds.agg(_without_missing).add_suffix("_points")


def _without_missing(values: pd.Series[float]) -> tuple[float, ...]:
    return tuple(values.dropna())


def beats_chance(accuracy: ArrayLike, chance: ArrayLike, num_answers: ArrayLike) -> pd.Series[bool]:
    """Return for each test accuracy True if guessing, which gives a right answer with the
    probability `chance`, would reach it with a probability below 0.001 (`CHANCE_ALPHA`); NA where
    unknown.

    The test is a one-sided binomial test. For a mean accuracy over seeds, give the number of
    answers of one test set, because all seeds answer the same questions.
    """
    shares, guess, answers = (
        np.asarray(values, float) for values in (accuracy, chance, num_answers)
    )
    correct = np.floor(shares * answers + 1e-6)
    probability = np.where(correct > 0, betainc(correct, answers - correct + 1, guess), 1.0)
    is_known = np.isfinite(shares) & np.isfinite(guess) & np.isfinite(answers)
    return pd.Series(probability < CHANCE_ALPHA, dtype="boolean").where(pd.Series(is_known))


def differ_by_chance(one: ArrayLike, other: ArrayLike) -> float:
    """Return the p-value of Welch's t-test between two samples of two or more values each.

    It is the probability that samples from populations of equal means have means at least as far
    apart. It is NaN where all values are equal.
    """
    difference = abs(float(np.asarray(one, float).mean() - np.asarray(other, float).mean()))
    variance, freedom = _welch(one, other)
    if not variance:
        return 0.0 if difference else math.nan
    return 2 * float(stdtr(freedom, -difference / math.sqrt(variance)))


def _half_width(one: ArrayLike, other: ArrayLike, alpha: float) -> float:
    """Return half the width of Welch's t-interval for the difference between the means of two
    samples of two or more values each.

    Args:
        one: The first sample.
        other: The second sample.
        alpha: The probability that the interval misses the difference.
    """
    variance, freedom = _welch(one, other)
    return float(stdtrit(min(freedom, 1e6), 1 - alpha / 2)) * math.sqrt(variance)


def _welch(one: ArrayLike, other: ArrayLike) -> tuple[float, float]:
    """Return the variance of the difference between the means of two samples, and its degrees of
    freedom, infinite if the variance is 0.
    """
    samples = [np.asarray(values, float) for values in (one, other)]
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in samples]
    total = float(sum(parts))
    freedom = (
        total**2
        / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
        if total
        else math.inf
    )
    return total, freedom


def holm(p_values: pd.Series[float]) -> pd.Series[float]:
    """Return the p-values of tests that are made together, corrected by Holm's method (1979); a
    missing one stays missing, and counts as no test.
    """
    p = p_values.dropna().sort_values(kind="stable")
    corrected = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1)
    return corrected.reindex(p_values.index)


def compare_means(ones: pd.Series[Any], others: pd.Series[Any], null: float) -> pd.DataFrame:
    """Compare the means of pairs of samples by Welch's t-test, corrected by Holm's method for all
    pairs that have enough values.

    Columns: `difference` of the means, other less one; `p_holm`, the corrected p-value of the
        hypothesis that the true difference is `null`; `low` and `high`, the ends of the interval
        for the difference. The interval has the level at which Holm's method tests the pair, so it
        excludes `null` exactly where `p_holm` is below 0.05. The last three are NaN where a sample
        has fewer than three values.

    Args:
        ones: The first sample of each pair.
        others: The second sample of each pair, with the same index.
        null: The difference of the hypothesis.
    """
    pairs = [
        (np.asarray(one, float), np.asarray(other, float))
        for one, other in zip(ones, others, strict=True)
    ]
    is_tested = [min(map(len, pair)) >= MIN_SEEDS_FOR_INTERVAL for pair in pairs]
    # Without a value, all are equal.
    p_values = [
        np.nan_to_num(differ_by_chance(one + null, other), nan=1.0) if enough else np.nan
        for enough, (one, other) in zip(is_tested, pairs, strict=True)
    ]
    p = pd.Series(p_values, dtype=float)
    corrected = holm(p)
    rejected = int((corrected <= ALPHA).sum())
    levels = ALPHA / (sum(is_tested) - (p.rank(method="first") - 1).clip(upper=rejected))
    found = pd.DataFrame({
        "difference": [
            float(other.mean() - one.mean()) if len(one) and len(other) else np.nan
            for one, other in pairs
        ],
        "half": [
            _half_width(*pair, level) if level == level else np.nan
            for pair, level in zip(pairs, levels, strict=True)
        ],
    })  # fmt: skip
    ends = {"low": found["difference"] - found["half"], "high": found["difference"] + found["half"]}
    table = found[["difference"]].assign(**ends, p_holm=corrected)
    return table.set_axis(ones.index)
