"""Means and intervals over seeds, and tests of whether an accuracy or a difference
may be chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import betainc, stdtr, stdtrit

MIN_SEEDS_FOR_INTERVAL = 3  # an interval from two seeds is too wide to tell anything apart
ALPHA = 0.05  # of intervals and of tests whose p-values are corrected for their number
SEEDS_LEVEL = f"{100 * (1 - ALPHA):.0f} %"  # of intervals of means over seeds
CHANCE_ALPHA = 0.001  # small, because a study tests each of its cells


def summarise(runs: pd.DataFrame, by: Sequence[str], metrics: Iterable[Any]) -> pd.DataFrame:
    """Return the means, intervals and values of metrics over the seeds of each group of runs; runs
    of equal seed are averaged first.

    A run repeated with its seed shows how much a time varies, but nothing about other seeds.

    Columns: `n`, the number of distinct seeds; the metrics; as `<metric>_ci95`, half the width of
        their 95 % t-interval, NaN below three seeds with a value; and as `<metric>_points`, tuples
        with one value for each seed that has one.

    Args:
        runs: A table with the columns `by`, the metrics and the column `seed`.
        by: The columns that tell groups apart.
        metrics: The columns to average.
    """
    by_seed = runs.groupby([*by, "seed"])[list(metrics)].mean()
    groups = by_seed.groupby(level=list(by))
    count, size = groups.count(), groups.size()
    quantile = stdtrit(count - 1, 1 - ALPHA / 2)
    half_width = (groups.sem() * quantile).where(count >= MIN_SEEDS_FOR_INTERVAL)
    ends = size.cumsum().tolist()[:-1]
    points = {
        f"{metric}_points": [
            tuple(group[~np.isnan(group)].tolist()) for group in split[: len(size)]
        ]
        for metric, values in by_seed.items()
        for split in [np.split(values.to_numpy(float), ends)]
    }
    return (
        pd.DataFrame({"n": size})
        .join(groups.mean())
        .join(half_width.add_suffix("_ci95"))
        .join(pd.DataFrame(points, size.index, dtype=object))
    )


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
    tests = [_welch(*samples, null) for samples in zip(ones, others, strict=True)]
    table = pd.DataFrame(tests, ones.index, ["difference", "error", "freedom", "p"], dtype=float)
    fewest = np.minimum(ones.map(len), others.map(len))
    table.loc[fewest < MIN_SEEDS_FOR_INTERVAL, ["error", "freedom", "p"]] = np.nan
    p_holm = holm(table["p"])
    rejected = int((p_holm <= ALPHA).sum())
    rank = (table["p"].rank(method="first") - 1).clip(upper=rejected)
    level = ALPHA / (table["p"].count() - rank)
    half_width = stdtrit(table["freedom"], 1 - level / 2) * table["error"]
    return table[["difference"]].assign(
        low=table["difference"] - half_width, high=table["difference"] + half_width, p_holm=p_holm
    )


def differ_by_chance(ones: ArrayLike, others: ArrayLike) -> float:
    """Return the p-value of Welch's t-test between two samples of two or more values each.

    It is the probability that samples from populations of equal means have means at least as far
    apart. It is 1 where all values are equal.
    """
    return _welch(ones, others, 0.0)[3]


def _welch(ones: ArrayLike, others: ArrayLike, null: float) -> tuple[float, float, float, float]:
    """Return the difference between the means of two samples, other less one, with its standard
    error, its degrees of freedom, and the p-value of the hypothesis that it is `null`. The last
    three are NaN if a sample has fewer than two values, and the difference if one has none.
    """
    first, second = np.asarray(ones, float), np.asarray(others, float)
    sizes = np.array([len(first), len(second)])
    difference = float(second.mean() - first.mean()) if sizes.all() else math.nan
    if sizes.min() < 2:
        return difference, math.nan, math.nan, math.nan
    away = abs(float((first + null).mean() - second.mean()))
    variances = np.array([first.var(ddof=1), second.var(ddof=1)]) / sizes
    variance = float(variances.sum())
    if not variance:  # all values of a sample are equal
        return difference, 0.0, 1.0, float(not away)
    freedom = variance**2 / float((variances**2 / (sizes - 1)).sum())
    error = math.sqrt(variance)
    return difference, error, freedom, 2 * float(stdtr(freedom, -away / error))
