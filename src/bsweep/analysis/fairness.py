"""Two comparisons of a study's batch sizes: at one learning rate or rule for all, and at the best
learning rate of each batch size.

Together they tell whether an effect of the batch size survives its best learning rate, or was an
effect of the rate. A study that ran several rates at a batch size allows both:

- One rate or rule for all: the setting that was run with the most batch sizes. Of several such
  settings, one that gives all batch sizes the same rate is preferred, then the one with the fewest
  missed seeds, then the best on average.
- The best rate of each batch size. Each seed is scored at the rate that the other seeds find best,
  so that a batch size gains nothing from having more rates.

Both compare all pairs of batch sizes by differences of means over seeds; seconds are compared by
their logarithms. Welch's t-intervals at 95 % hold for all pairs together (Bonferroni). A difference
whose interval contains zero counts as no difference.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from bsweep.analysis.keys import RATES, levels
from bsweep.analysis.loaded import Study
from bsweep.analysis.naming import evaluated_part, words
from bsweep.analysis.numbers import number, setting_text
from bsweep.analysis.once import once
from bsweep.analysis.statistics import ALPHA, MIN_SEEDS_FOR_INTERVAL, half_width
from bsweep.analysis.tuning import rates, scores_by_seed
from bsweep.config.target import score_said
from bsweep.core.sentences import joined, listed_said, said

ENOUGH_RATES = 3  # a best rate between two others takes three rates of a batch size
_MOST_GROUPS = 4  # groups that have sentences
# The score of each seed by batch size; NaN for a seed that diverged or missed the target.
Scores = Mapping[int, Sequence[float]]


@dataclass(frozen=True)
class Difference:
    """The difference in test accuracy, or in the time to a target, between two batch sizes, with
    its 95 % interval.

    For test accuracies, `value` is how far `worse` is below `better`. For seconds, it is the
    logarithm of how many times as long `worse` takes. `low` and `high` are the ends of its
    interval; they are NaN where there are too few seeds for one.
    """

    better: int
    worse: int
    value: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Return True if the difference between the two batch sizes is significant: the interval
        for the lead of the better one lies above zero.
        """
        return self.low > 0


@dataclass(frozen=True)
class Fairness:
    """Two comparisons of the batch sizes of otherwise equal cells: at one learning rate or rule for
    all, and at the best learning rate of each.

    `apart` says in words what distinguishes these cells from those of other comparisons. `one_rate`
    and `best_rates` are None where fewer than two batch sizes have a score of every seed that was
    run. `missed` are the batch sizes of which a seed diverged or did not reach the target even at
    its best rate. `lacking_seeds` says how many more seeds a batch size needs for an interval.
    `lacking_rates` says how many more rates it needs for a best rate between two others. `edges`
    holds `at_edge` of `rates` for the best rates that are the lowest or highest tried.
    """

    apart: str
    metric: str
    rate: str
    one_rate: Difference | None
    best_rates: Difference | None
    missed: tuple[int, ...]
    lacking_seeds: Mapping[int, int]
    lacking_rates: Mapping[int, int]
    edges: Mapping[int, str]


@once
def fairness(study: Study) -> list[Fairness]:
    """Compare the batch sizes within the largest groups of otherwise equal cells, at one learning
    rate or rule for all and at the best learning rate of each.

    At most `_MOST_GROUPS` groups are compared. The list is empty if each cell was run at one rate,
    or if no group has two batch sizes.
    """
    table = rates(study)
    if table.empty:
        return []
    apart = [name for name in levels(table) if name not in (*RATES, "local_batch")]
    known = scores_by_seed(study)
    groups = [
        (key, of)
        for key, of in table.groupby(level=apart)
        if of.index.get_level_values("local_batch").nunique() > 1
    ]
    groups.sort(key=lambda group: -len(group[1]))
    varying = [name for name in apart if table.index.get_level_values(name).nunique() > 1]
    return [
        _of_group(
            joined((words(n, v) for n, v in zip(apart, key, strict=True) if n in varying), ", "),
            of,
            known,
        )
        for key, of in groups[:_MOST_GROUPS]
    ]


def _of_group(apart: str, table: pd.DataFrame, known: pd.DataFrame) -> Fairness:
    sign = -1 if table["metric"].iloc[0] == "seconds_to_target" else 1
    best, one = _tuned_scores(table, known, sign), one_rate_for_all(table)
    by_key = dict(zip(known.index, known.to_numpy(float), strict=True))
    of_one = {batch: list(by_key[key][~np.isinf(by_key[key])]) for batch, key in _by_batch(one)}
    ends = dict(zip(table.index, table["at_edge"], strict=True))
    whole = {batch: scores for batch, scores in best.items() if not np.isnan(scores).any()}
    counts = table.groupby(level="local_batch")["learning_rate"].nunique()
    return Fairness(
        apart=apart,
        metric=str(table["metric"].iloc[0]),
        rate=rate_words(one),
        one_rate=_largest(
            {batch: scores for batch, scores in of_one.items() if not np.isnan(scores).any()}, sign
        ),
        best_rates=_largest(whole, sign),
        missed=tuple(batch for batch in best if batch not in whole),
        lacking_seeds=_lacking(
            {batch: len(scores) for batch, scores in best.items()}, MIN_SEEDS_FOR_INTERVAL
        ),
        lacking_rates=_lacking(
            {int(str(batch)): int(count) for batch, count in counts.items()}, ENOUGH_RATES
        ),
        edges={batch: ends[key] for batch, key in _by_batch(table) if ends[key]},
    )


def one_rate_for_all(table: pd.DataFrame) -> pd.DataFrame:
    """Select the learning-rate setting (a rate or a rule) that was run with the most batch sizes,
    and return the rows of `table` that have this setting.

    Of several such settings, one whose learning rate is the same for all batch sizes is taken. Of
    several such settings again, the one with the fewest missed seeds and then the best mean is
    taken.
    """
    settings = [name for name in levels(table) if name in RATES]
    sign = -1 if table["metric"].iloc[0] == "seconds_to_target" else 1
    value = np.log(table["score"]) if sign < 0 else table["score"]
    by = table.assign(value=sign * value).groupby(level=settings)
    order = pd.DataFrame({
        "size": by.size(), "is_one": by["learning_rate"].nunique() == 1,
        "missed": -by["missed"].sum(),
        "value": by["value"].mean(),
    })  # fmt: skip
    chosen = order.sort_values(["size", "is_one", "missed", "value"]).index[-1]
    return table[[_settings(key, table, settings) == _key(chosen) for key in table.index]]


def _settings(
    key: tuple[Hashable, ...], table: pd.DataFrame, names: Sequence[str]
) -> tuple[Hashable, ...]:
    return tuple(value for name, value in zip(levels(table), key, strict=True) if name in names)


def _key(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def rate_words(table: pd.DataFrame) -> str:
    """Return in words how the learning rate was set for all batch sizes: by one rate, or by one
    rule.
    """
    if table["learning_rate"].nunique() == 1:
        rate = f"{table['learning_rate'].iloc[0]:g}"
        return said("one learning rate for all ({rate})", rate=rate)
    parts = {"lr": "base rate {}", "lr_rule": "{}", "optimizer.reference_batch": "at batch {}"}
    values = {
        name: setting_text(table.index.get_level_values(name)[0])
        for name in RATES
        if name in levels(table)
    }
    rule = ", ".join(parts[name].format(value.replace("_", " ")) for name, value in values.items())
    return said("one learning-rate rule for all ({rule})", rule=rule)


def _by_batch(table: pd.DataFrame) -> list[tuple[int, tuple[Hashable, ...]]]:
    place = levels(table).index("local_batch") if len(table) else 0
    return sorted((int(key[place]), key) for key in table.index)


def _tuned_scores(table: pd.DataFrame, known: pd.DataFrame, sign: int) -> dict[int, list[float]]:
    """Return for each batch size the score (accuracy or time) of each seed, at the learning rate
    that is best for the other seeds.
    """
    found = {}
    for batch, of in table.groupby(level="local_batch"):
        found[int(str(batch))] = list(seeds_left_out(known.loc[of.index].to_numpy(float), sign))
    return found


def seeds_left_out(values: np.ndarray, sign: int) -> Iterator[float]:
    """Yield one score (accuracy or time) for each seed that was run: the seed's score at the
    learning rate that is best on all other seeds, or on the seed itself if there is only one.

    Args:
        values: Scores of shape (rates, seeds); inf for a seed that was not run, NaN for one that
            missed.
        sign: 1 if more is better, -1 if less is better.
    """
    for seed in range(values.shape[1]):
        candidates = np.flatnonzero(~np.isinf(values[:, seed]))
        if len(candidates):
            others = np.delete(values, seed, axis=1) if values.shape[1] > 1 else values
            yield float(values[min(candidates, key=lambda rate: _rank(others[rate], sign)), seed])


def _rank(scores: np.ndarray, sign: int) -> tuple[float, float]:
    """Return the sort key of a learning rate, which is least for the best rate. The key is the
    fraction of its seeds that diverged or missed the target, then the mean time, or the negative
    mean accuracy, of its other seeds.
    """
    run = scores[~np.isinf(scores)]
    reached = run[~np.isnan(run)]
    return (
        (1 - len(reached) / len(run), -sign * float(reached.mean()))
        if len(reached)
        else (1.0, np.inf)
    )


def _largest(scores: Scores, sign: int) -> Difference | None:
    """Return the largest difference in score (accuracy or time) between two batch sizes, among
    those whose interval excludes zero, if there are any, else among all.

    The result is None for fewer than two batch sizes.
    """
    values = {
        batch: np.log(of) if sign < 0 else np.asarray(of, float)
        for batch, of in scores.items()
        if len(of)
    }
    if len(values) < 2:
        return None
    num_pairs = len(values) * (len(values) - 1) / 2
    found = [_difference(*pair, values, sign, num_pairs) for pair in combinations(values, 2)]
    return max(found, key=lambda one: (one.is_told, one.value))


def _difference(
    one: int, other: int, values: Mapping[int, np.ndarray], sign: int, num_pairs: float
) -> Difference:
    better, worse = sorted((one, other), key=lambda batch: -sign * float(values[batch].mean()))
    off = sign * float(values[better].mean() - values[worse].mean())
    counts = [len(values[batch]) for batch in (better, worse)]
    if min(counts) < MIN_SEEDS_FOR_INTERVAL:
        return Difference(better, worse, off, np.nan, np.nan)
    half = half_width(values[better], values[worse], ALPHA / num_pairs)
    return Difference(better, worse, off, off - half, off + half)


def _lacking(counts: Mapping[int, int], enough: int) -> dict[int, int]:
    return {batch: enough - count for batch, count in counts.items() if count < enough}


def fairness_words(study: Study) -> list[str]:
    """Return lines that say whether the results differ between batch sizes, one for each of the
    largest groups of otherwise equal cells (at most four). A line compares the batch sizes at one
    learning rate or rule for all and at the best learning rate of each.

    The list is empty if each cell was run at one rate.

    Args:
        study: The study.

    Returns:
        One line for each compared group of cells.
    """
    part = evaluated_part(study.runs)
    return [joined(_sentences(one, part)) for one in fairness(study)]


def _sentences(one: Fairness, part: str) -> Iterator[str]:
    if one.apart:
        yield said("{where}:", where=one.apart)
    if one.best_rates is None or one.lacking_seeds:
        yield said(
            "These runs cannot tell whether batch sizes differ at the best learning rate of each."
        )
        if one.lacking_seeds:
            yield said(
                "An interval needs {n} seeds of each batch size. Run {batches} at each rate (as in "
                "seed=0,1,2).",
                n=MIN_SEEDS_FOR_INTERVAL,
                batches=joined([
                    said("{n:more seed} of local batch {batches}", n=n, batches=_named(batches))
                    for n, batches in _by_number(one.lacking_seeds)
                ], "; "),
            )  # fmt: skip
        else:
            yield said("Fewer than two batch sizes have a score of every seed.")
    else:
        before, after = one.one_rate, one.best_rates
        if before is not None and not np.isnan(before.low):
            yield said(
                "With {rate}, {difference}.",
                rate=one.rate,
                difference=_said(before, one.metric, part),
            )
        yield said(
            "With the best rate of each batch size (each seed at the rate that the other seeds "
            "find best), {difference}.",
            difference=_said(after, one.metric, part),
        )
        if after.is_told:
            yield said("So the batch size has an effect that its best learning rate does not undo.")
        elif before is not None and before.is_told:
            yield said(
                "So the difference at one rate or rule for all may come from the learning rate."
            )
    yield from _caveats(one)


def _said(of: Difference, metric: str, part: str) -> str:
    is_time = metric == "seconds_to_target"
    ends = (of.low, of.value, of.high)
    low, value, high = (number(float(np.exp(end)) if is_time else end) for end in ends)
    values = {"worse": of.worse, "better": of.better, "value": value}
    difference = (
        said("local batch {worse} takes {value} times as long to the target as {better}", **values)
        if is_time
        else said(
            "the {score} of local batch {worse} is {value} below that of {better}",
            score=score_said("test_accuracy", part),
            **values,
        )
    )
    numbers = {"difference": difference, "low": low, "high": high}
    if of.is_told:
        return said(
            "{difference} (95 % interval {low} to {high}, which holds for all pairs at once)",
            **numbers,
        )
    return said(
        "no difference between batch sizes is significant (the largest: {difference}, 95 % "
        "interval {low} to {high}, which holds for all pairs at once)",
        **numbers,
    )


def _named(batches: Sequence[int]) -> str:
    return listed_said([*map(str, batches)], most=len(batches))


def _caveats(one: Fairness) -> Iterator[str]:
    """Yield sentences on what limits a comparison of batch sizes, such as few learning rates."""
    if one.missed:
        is_time = one.metric == "seconds_to_target"
        yield said(
            "Not compared: local batch {batches}, because not all seeds {did} even at the best "
            "rate. The batch size may be the cause, unless an untried rate does better.",
            batches=_named(one.missed),
            did=said("reached the target") if is_time else said("stayed finite"),
        )
    if one.lacking_rates:
        yield said(
            "The best rate of a batch size should lie between two other tried rates. Run {batches} "
            "(optimizer.lr=...).",
            batches=joined([
                said("{n:more rate} of local batch {batches}", n=n, batches=_named(batches))
                for n, batches in _by_number(one.lacking_rates)
            ], "; "),
        )  # fmt: skip
    at = {
        end: _named([
            batch
            for batch in one.edges
            if one.edges[batch] == end and batch not in one.lacking_rates
        ])
        for end in ("lowest", "highest")
    }  # fmt: skip
    if at["lowest"]:
        yield said(
            "The best rate of local batch {batches} is the lowest tried: a better rate may lie "
            "below it.",
            batches=at["lowest"],
        )
    if at["highest"]:
        yield said(
            "The best rate of local batch {batches} is the highest tried: a better rate may lie "
            "above it.",
            batches=at["highest"],
        )


def _by_number(lacking: Mapping[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each number of seeds or rates that batch sizes lack, the largest first, with these
    batch sizes.
    """
    for number_of in sorted(set(lacking.values()), reverse=True):
        yield number_of, [batch for batch in lacking if lacking[batch] == number_of]
