"""The runs that a prediction uses, with the steps and seconds that each took, and the learning rate
that is chosen for each batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables import tuning
from bsweep.analysis.cell_tables.means import run_steps
from bsweep.analysis.prediction.comparable_runs import (
    refuse_mixed,
    refuse_unsynchronised,
    selected,
)
from bsweep.analysis.prediction.likelihood import CellRuns, cell_runs
from bsweep.analysis.prediction.step_time import Timing
from bsweep.analysis.prediction.steps import SCATTER
from bsweep.analysis.prediction.ways import WHOLE, Way, passes_of, ways_of
from bsweep.analysis.study.derived import ONE_NODE, continues
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import Target

CELL = ["global_batch", "num_workers", "passes"]
_SECONDS = ["step_seconds", "exposed_seconds", "waiting_seconds"]
_OF_STEP = {"total_seconds": "step_seconds", "wait_seconds": "waiting_seconds"}
_TIMED = ["way", *CELL, "step_seconds", "exposed_seconds"]
_REPETITIONS = 4000  # of a choice of the best rate


@dataclass(frozen=True, eq=False)
class Observed:
    """The runs from which a prediction is made, with the target and the steps and seconds of each
    run.

    `runs` has a row for each run, with the columns of `to_target` and four more, NaN where not
    measured. `passes` is the forward passes of a step. `step_seconds` is the mean over all steps of
    a run. `exposed_seconds` is the part of a step that is waiting, or exchange that no computing
    hid; `waiting_seconds` is the waiting alone.

    `continued` holds the runs that began at another run's checkpoint. Their first steps are the
    other run's, so the fit of steps to the target leaves them out. `ways` are the ways in which
    workers share a model, by the names in the column `way`. `rates` is the chosen learning
    rate of each global batch if several were tried. `optimism` is how much the log steps of its
    runs are expected to lie too low because they were chosen, see `chosen_too_low`. `probed` has
    what was timed beside the runs, as by `bsweep probe`.
    """

    study: Study
    target: Target
    runs: pd.DataFrame
    continued: pd.DataFrame
    ways: Mapping[str, Way] = field(default_factory=lambda: {"": WHOLE})
    rates: Mapping[int, float] = field(default_factory=dict)
    optimism: Mapping[int, float] = field(default_factory=dict)
    probed: tuple[Timing, ...] = ()

    def steps(self) -> dict[float, CellRuns]:
        """Return the steps that the runs of each global batch took to the target. Runs that did not
        reach it, or reached it at their first evaluation, give bounds.
        """
        known = self.runs.dropna(subset="reached")
        steps = {}
        for size, runs in known.groupby("global_batch", sort=False):
            batch, needed = int(str(size)), to_target_of(runs, "steps")
            optimism = self.optimism.get(batch, 0.0)
            steps[float(batch)] = replace(needed, exact=needed.exact + optimism)
        return steps

    def timings(self) -> list[Timing]:
        """Return the mean seconds of each run's steps and, for runs on several workers, of the
        exposed part of the exchange, where they were measured, and what was timed beside the runs.
        """
        rows = pd.concat([table[_TIMED] for table in (self.runs, self.continued)])
        timings = []
        for name, batch, workers, passes, seconds, exposed in rows.itertuples(index=False):
            cell = self.ways[name].cell(float(batch), int(workers), int(passes))
            timings += [Timing(cell, float(seconds))] if seconds > 0 else []
            # The exchanges of a split model are a part of its passes.
            is_apart = exposed > 0 and workers > 1 and not cell.form.is_split
            timings += [Timing(cell, float(exposed), "exposed")] if is_apart else []
        return [*timings, *self.probed]

    def byte_seconds(self) -> float | None:
        """Return the median seconds of a sent byte, of those runs that measured their exchanges;
        None if no run did.
        """
        steps = run_steps(self.study).reindex(self.runs["run_id"])
        seconds = steps["exchange_seconds"] / steps["sent_bytes"].where(steps["sent_bytes"] > 0)
        return float(seconds.median()) if (seconds > 0).any() else None

    def of_way(self, name: str) -> Observed:
        """Return a copy of the selected runs with those of one way alone."""
        runs, continued = (table[table["way"] == name] for table in (self.runs, self.continued))
        return replace(self, runs=runs, continued=continued, ways={name: self.ways[name]})

    def across_from(self) -> int | None:
        """Return the fewest workers whose runs span several nodes, if all runs on several but fewer
        workers keep to one node, and there are some; otherwise None.
        """
        several = self.runs[self.runs["num_workers"] > 1]
        is_within = several["placement"].fillna(ONE_NODE) == ONE_NODE
        within, across = (several.loc[chosen, "num_workers"] for chosen in (is_within, ~is_within))
        is_known = len(within) and len(across) and within.max() < across.min()
        return int(across.min()) if is_known else None

    def without(self, name: str, value: float) -> Observed:
        """Return a copy of the selected runs that leaves out the runs, and what was timed beside
        them, of one global batch or one worker count.
        """
        runs, continued = (table[table[name] != value] for table in (self.runs, self.continued))
        probed = [timing for timing in self.probed if getattr(timing.cell, name) != value]
        return replace(self, runs=runs, continued=continued, probed=tuple(probed))


def to_target_of(runs: pd.DataFrame, amount: str) -> CellRuns:
    """Return the steps, or the seconds, that each of the given runs took to the target, as
    logarithms.

    `amount` is `steps` or `seconds`. Runs that did not reach the target, or reached it at their
    first evaluation, give bounds.
    """
    # NumPy's arrays, because a prediction does this for each cell and each batch size left out.
    reached, is_missed, is_bound = (
        runs[name].eq(value).to_numpy(bool)
        for name, value in (("reached", True), ("reached", False), ("is_bound", True))
    )
    needed, trained, between = (
        runs[name].to_numpy(float)
        for name in (f"{amount}_to_target", f"trained_{amount}", "steps_between")
    )
    is_known = reached & ~np.isnan(needed)
    is_exact = is_known & ~is_bound
    return cell_runs(
        exact=needed[is_exact],
        below=needed[is_known & is_bound],
        above=trained[is_missed & (trained > 0)],
        spacing=between[is_exact] if amount == "steps" else 0.0,
    )


def observed(
    study: Study,
    target: Target,
    where: Mapping[str, str] | None = None,
    ways: Mapping[str, str] | None = None,
) -> Observed:
    """Select the runs of a study from which the time to a target can be predicted, and return them
    with the steps and seconds that each took.

    Args:
        study: The study.
        target: The target.
        where: Columns of the runs, and the value to select in each.
        ways: The names of the ways in which workers share a model, by run id. None: the names tell
            in what the runs differ.

    Raises:
        ValueError: If `where` fits no run, no runs are left, their workers do not take every step
            together, or they differ in settings that matter. The message says why, and how to
            choose runs.
    """
    runs = selected(study.runs, where or {})
    target = replace(target, part=evaluated_part(runs))
    refuse_unsynchronised(study, runs)
    refuse_mixed(study.runs, runs)
    reached = to_target(study, target)
    way_names, all_ways = ways_of(study, runs, ways)
    # A run's own columns about its own target would collide with those of `to_target`.
    runs = (
        runs.drop(columns=runs.columns.intersection(reached.columns))
        .assign(passes=passes_of(runs).astype(int), way=way_names)
        .join(reached, on="run_id")
        .join(run_steps(study).rename(columns=_OF_STEP)[_SECONDS], on="run_id")
    )
    facts = runs[["way", *CELL]].itertuples(index=False)
    runs["local_batch"] = [all_ways[name].local_batch(*cell) for name, *cell in facts]
    is_continued = continues(runs)
    if is_continued.all():
        raise ValueError(
            "all selected runs began at a checkpoint of another run, so there is nothing to "
            "predict from. Train some runs from their beginning."
        )
    known = runs[~is_continued]
    has_rates = known.groupby("global_batch")["lr"].nunique().gt(1).any()
    rates = best_rates(known, target) if has_rates else {}
    optimism = chosen_too_low(known, rates)
    if rates:
        known = known[known["lr"] == known["global_batch"].map(rates)]
    return Observed(study, target, known, runs[is_continued], all_ways, rates, optimism)


def exact_batches(runs: pd.DataFrame) -> list[int]:
    """Return the global batch sizes at which a run reached the target after its first evaluation,
    so that the steps to the target are known and not only an upper bound.
    """
    return sorted({int(batch) for batch in runs.loc[_is_exact(runs), "global_batch"]})


def _is_exact(runs: pd.DataFrame) -> pd.Series[bool]:
    return runs["reached"].eq(True) & ~runs["is_bound"].eq(True)


def rate_rule(seen: Observed) -> str:
    """Return the name of the learning-rate rule of the runs from which a prediction is made.

    If several rates were tried, the text also gives the rate taken for each batch size.
    """
    rules = seen.runs["lr_rule"].dropna().astype(str).unique()
    rule = " or ".join(filter(None, rules)) or "not known"
    tried = ", ".join(f"{rate:g} at {batch}" for batch, rate in sorted(seen.rates.items()))
    if not tried:
        return rule
    return (
        f"{rule}, with the optimizer.lr that needs the fewest steps to the target at each batch: "
        f"{tried}"
    )


def best_rates(runs: pd.DataFrame, target: Target) -> dict[int, float]:
    """Return the best learning rate among those that were tried for each global batch, by the rule
    of `tuning.best_rates`.

    The cost of a rate is the mean of the logarithms of the steps. A run that did not reach the
    target counts with the steps that it trained, a lower bound. If no run of a batch reached it,
    the rate with the best accuracy or loss is taken.
    """
    logs = np.log(runs["steps_to_target"].fillna(runs["trained_steps"]).astype(float).clip(lower=1))
    best = runs["best"].fillna(runs["last"]).astype(float)  # a run may have one evaluation only
    scores = runs.assign(steps=logs, missed=~runs["reached"].eq(True), best=-target.sign * best)
    means = scores.groupby(["global_batch", "lr"])[["missed", "steps", "best"]].mean()
    costs = means["steps"].where(means["missed"] < 1, means["best"])
    best_ones = tuning.best_rates(means.assign(cost=costs), ["global_batch"])
    return {int(batch): float(rate) for batch, rate in best_ones}


def chosen_too_low(runs: pd.DataFrame, rates: Mapping[int, float]) -> dict[int, float]:
    """Return for each global batch by how much the mean log steps of its best learning rate are
    expected to lie below those of further runs with this rate (the winner's curse).

    It is the mean over repetitions in which normal noise is added to the mean of each rate, and the
    best one is chosen again: by how much the chosen one's noise lowers it. Rates compete if at
    least as large a share of their runs as of the chosen rate's reached the target. The noise is
    the scatter between runs with one rate, counted together with three runs that scatter by 8 %.
    """
    logs = runs["steps_to_target"].astype(float).where(_is_exact(runs)).map(np.log)
    groups = logs.groupby([runs["global_batch"], runs["lr"]])
    shares = runs["reached"].eq(True).groupby([runs["global_batch"], runs["lr"]]).mean()
    tried = pd.DataFrame({"mean": groups.mean(), "count": groups.count(), "share": shares})
    squares = ((logs - groups.transform("mean")) ** 2).sum() + 3 * SCATTER**2
    sigma = np.sqrt(squares / (3 + (tried["count"] - 1).clip(lower=0).sum()))
    rng, optimism = np.random.default_rng(0), {}
    for batch, rate in rates.items():
        rivals = tried.loc[batch]
        rivals = rivals[(rivals["share"] >= rivals["share"].loc[rate]) & (rivals["count"] > 0)]
        if len(rivals) > 1:
            errors = sigma / np.sqrt(rivals["count"].to_numpy(float))
            noise = errors * rng.standard_normal((_REPETITIONS, len(rivals)))
            best = (rivals["mean"].to_numpy(float) + noise).argmin(axis=1)
            optimism[batch] = float(max(0.0, -noise[np.arange(_REPETITIONS), best].mean()))
    return optimism
