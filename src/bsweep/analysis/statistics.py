"""Means and intervals over seeds, and whether an accuracy is more than chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import betainc, stdtrit
from scipy.stats import ttest_ind_from_stats

MIN_SEEDS_FOR_INTERVAL = 3  # of two seeds an interval is wider than anything it could tell apart
CHANCE_ALPHA = 0.001  # small, for a study asks it of each of its cells


def over_seeds(
    runs: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str] | pd.Index
) -> pd.DataFrame:
    """Means over the seeds of each group of runs: `n` counts distinct seeds, of which each is
    averaged first.

    `runs` needs the column `seed`. A run repeated with its seed says how much a time scatters,
    nothing of other seeds. Columns: `n`, the metrics and, as `<metric>_ci95`, half the width of
    their 95 % t-interval, NaN below three seeds.
    """
    seeds = runs.groupby([*keys, "seed"])[list(metrics)].mean().groupby(level=list(keys))
    count = seeds.count()
    half_width = (seeds.sem() * stdtrit(count - 1, 0.975)).where(count >= MIN_SEEDS_FOR_INTERVAL)
    return pd.DataFrame({"n": seeds.size()}).join(seeds.mean()).join(half_width.add_suffix("_ci95"))


def seed_points(runs: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """What `over_seeds` averages: of each metric a tuple by seed, without what is missing, as
    `<metric>_points`.
    """
    seeds = runs.groupby([*keys, "seed"])[list(metrics)].mean().groupby(level=list(keys))
    return seeds.agg(_without_missing).add_suffix("_points")


def _without_missing(values: pd.Series[float]) -> tuple[float, ...]:
    return tuple(values.dropna())


def beats_chance(
    accuracy: ArrayLike, num_classes: ArrayLike, num_answers: ArrayLike
) -> pd.Series[bool]:
    """Whether so many correct answers have a probability below `CHANCE_ALPHA` for one who guesses;
    NA if not known.

    One-sided binomial test against 1 / `num_classes`. Of a mean accuracy over seeds, the answers
    are those of one test set, for all seeds answer the same questions.
    """
    shares, classes, answers = (
        np.asarray(values, float) for values in (accuracy, num_classes, num_answers)
    )
    correct = np.floor(shares * answers + 1e-6)
    probability = np.where(correct > 0, betainc(correct, answers - correct + 1, 1 / classes), 1.0)
    is_known = np.isfinite(shares) & np.isfinite(classes) & np.isfinite(answers)
    return pd.Series(probability < CHANCE_ALPHA, dtype="boolean").where(pd.Series(is_known))


def differ_by_chance(one: ArrayLike, other: ArrayLike) -> float:
    """How likely means are at least as far apart that do not differ, by Welch's t-test of two or
    more values each.

    NaN where all values are equal.
    """
    samples = [np.asarray(values, float) for values in (one, other)]
    moments = [(sample.mean(), sample.std(ddof=1), len(sample)) for sample in samples]
    return float(ttest_ind_from_stats(*moments[0], *moments[1], equal_var=False).pvalue)
