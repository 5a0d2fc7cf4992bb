"""The selection of the runs that a prediction uses; of the settings that change their steps or
seconds, these may differ only in batch size, worker count, passes, the way of splitting the model,
learning rate and seed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from bsweep.analysis import columns
from bsweep.analysis.beside_others import timed_beside
from bsweep.analysis.keys import cell_keys, keyed
from bsweep.analysis.loaded import Study
from bsweep.analysis.naming import evaluated_part
from bsweep.analysis.numbers import number, setting_text
from bsweep.analysis.prediction.cells import CellRuns, cell_runs
from bsweep.analysis.prediction.step_time import Timing
from bsweep.analysis.prediction.ways import (
    WHOLE,
    Way,
    capabilities_of,
    differ_in_ways_alone,
    ways_of,
)
from bsweep.analysis.tables import run_steps
from bsweep.analysis.targets import to_target
from bsweep.config.target import Target
from bsweep.config.values import did_you_mean
from bsweep.core.words import counted, joined, listed

CELL = ["global_batch", "num_workers", "passes"]
_TIMED = ["way", "global_batch", "num_workers", "passes", "step_seconds", "exposed_seconds"]

# The planned length of a run and the times of its evaluations: they change neither its steps nor
# their seconds.
_NO_DIFFERENCE = ("target_accuracy", "target_loss", "stop_at_target", "evaluate_every_examples")
_MEASURING = ("measure.",)
_MOST_CHOICES = 8  # parts of a study that a message names
_SCATTER, _REPETITIONS = 0.08, 4000  # of log steps between runs; of a choice of the best rate
_WANTED_EVALUATIONS = 10  # of a run before its target
_ONE_NODE = "1 node"  # the placement of workers on one host, see `derived.placement`


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
    runs are expected to lie too low because they were chosen, see `chosen_too_low`.
    """

    study: Study
    target: Target
    runs: pd.DataFrame
    continued: pd.DataFrame
    ways: Mapping[str, Way] = field(default_factory=lambda: {"": WHOLE})
    rates: Mapping[int, float] = field(default_factory=dict)
    optimism: Mapping[int, float] = field(default_factory=dict)

    def steps(self) -> dict[float, CellRuns]:
        """Return the steps that the runs of each global batch took to the target. Runs that did not
        reach it, or reached it at their first evaluation, give bounds.
        """
        known = self.runs.dropna(subset="reached")
        batches = known.groupby("global_batch", sort=False)
        found = {float(str(batch)): to_target_of(of, "steps") for batch, of in batches}
        return {
            batch: replace(of, exact=of.exact + self.optimism.get(int(batch), 0.0))
            for batch, of in found.items()
        }

    def timings(self) -> list[Timing]:
        """Return the mean seconds of each run's steps and, for runs on several workers, of the
        exposed part of the exchange, where they were measured.
        """
        rows = pd.concat([table[_TIMED] for table in (self.runs, self.continued)])
        found = []
        for name, batch, workers, passes, seconds, exposed in rows.itertuples(index=False):
            cell = self.ways[name].cell(float(batch), int(workers), int(passes))
            found += [Timing(cell, float(seconds))] if seconds > 0 else []
            # The exchanges of a split model are a part of its passes.
            is_apart = exposed > 0 and workers > 1 and not cell.form.is_split
            found += [Timing(cell, float(exposed), "exposed")] if is_apart else []
        return found

    def byte_seconds(self) -> float | None:
        """Return the median seconds of a sent byte, of those runs that measured their exchanges;
        None if no run did.
        """
        names = ["run_id", "exchange_seconds", "sent_bytes"]
        known = self.study.epochs.reindex(columns=names).dropna().set_index("run_id").astype(float)
        sums = known[known.index.isin(self.runs["run_id"])].groupby(level=0).sum()
        of_byte = sums["exchange_seconds"] / sums["sent_bytes"].where(sums["sent_bytes"] > 0)
        return float(of_byte.median()) if (of_byte > 0).any() else None

    def of_way(self, name: str) -> Observed:
        """Return a copy of the selected runs with those of one way alone."""
        runs, continued = (table[table["way"] == name] for table in (self.runs, self.continued))
        return replace(self, runs=runs, continued=continued, ways={name: self.ways[name]})

    def across_from(self) -> int | None:
        """Return the fewest workers whose runs span several nodes, if all runs on several but fewer
        workers keep to one node, and there are some; otherwise None.
        """
        of_several = self.runs[self.runs["num_workers"] > 1]
        if "placement" not in of_several:
            return None
        is_within = of_several["placement"].fillna(_ONE_NODE) == _ONE_NODE
        within, across = (of_several.loc[of, "num_workers"] for of in (is_within, ~is_within))
        is_told = len(within) and len(across) and within.max() < across.min()
        return int(across.min()) if is_told else None

    def without(self, name: str, value: float) -> Observed:
        """Return a copy of the selected runs that leaves out the runs of one global batch or one
        worker count.
        """
        runs, continued = (table[table[name] != value] for table in (self.runs, self.continued))
        return replace(self, runs=runs, continued=continued)


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
    _refuse_unsynchronised(study, runs)
    _refuse_mixed(study.runs, runs)
    reached = to_target(study, target)
    passes = pd.to_numeric(runs["accumulation_steps"], errors="coerce").fillna(1).astype(int)
    # A run's own columns about its own target would collide with these.
    others = runs.drop(columns=runs.columns.intersection(reached.columns))
    joined = (
        others.assign(passes=passes)
        .join(reached, on="run_id")
        .join(_step_seconds(study), on="run_id")
    )
    names, found = ways_of(runs, study.epochs, ways)
    facts = zip(names, joined["global_batch"], joined["num_workers"], joined["passes"], strict=True)
    joined = joined.assign(
        way=names, local_batch=[found[name].local_batch(*numbers) for name, *numbers in facts]
    )
    is_continued = continues(joined)
    if is_continued.all():
        raise ValueError(
            "all selected runs began at a checkpoint of another run, so there is nothing to "
            "predict from. Train some runs from their beginning."
        )
    known = joined[~is_continued]
    whole = known["train_seconds"] / known["num_steps"].astype(float)
    known = known.assign(step_seconds=known["step_seconds"].fillna(whole))
    has_rates = known.groupby("global_batch")["lr"].nunique().gt(1).any()
    chosen = best_rates(known, target) if has_rates else {}
    optimism = chosen_too_low(known, chosen)
    if chosen:
        known = known[known["lr"] == known["global_batch"].map(chosen)]
    return Observed(study, target, known, joined[is_continued], found, chosen, optimism)


def continues(runs: pd.DataFrame) -> pd.Series[bool]:
    """Return for each run True if it began at a checkpoint of another run, whether with the same
    global batch or another one.
    """
    return (
        runs["branch_of"].notna() & (runs["branch_of"] != "")
        if "branch_of" in runs
        else runs["run_id"].isna()
    )


def selected(runs: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    shown = keyed(runs)
    kept = runs
    for name, value in where.items():
        if name not in shown:
            near = did_you_mean(name, [str(column) for column in shown])
            raise ValueError(f"--where {name}={value}: runs have no such column.{near}")
        texts = shown.loc[kept.index, name].map(setting_text)
        among = " that the other --where select" if len(kept) < len(runs) else ""
        if not (texts == value).any():
            raise ValueError(
                f"--where {name}={value}: no run{among} has this value. Known values: "
                f"{', '.join(sorted(set(texts)))}."
            )
        kept = kept[texts == value]
    kept = of_one_batch(kept)
    if kept.empty:
        chosen = "run that --where selects" if where else "run of the study"
        raise ValueError(
            f"each {chosen} has a batching policy that may change its batch size, but a prediction "
            "needs runs with a fixed batch size. Train some runs with batching=fixed."
        )
    return kept


def of_one_batch(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a fixed batch size, which no policy changes during the run."""
    return (
        runs[runs["batching"].isna() | runs["batching"].isin(["", "fixed"])]
        if "batching" in runs
        else runs
    )


def told_apart(runs: pd.DataFrame) -> list[str]:
    """Return the names of the columns that tell the cells of runs apart and that matter to a
    prediction, except batch size and workers.

    One of them may be `lr`, in which comparable runs may differ. See `keyed`.
    """
    return [
        name for name in cell_keys(_compared(runs)) if name not in ("num_workers", "local_batch")
    ]


def _compared(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.drop(columns=[name for name in runs if _makes_no_difference(runs, str(name))])


def unsynchronised(study: Study, runs: pd.DataFrame) -> list[str]:
    """Return the names of the strategies of those runs whose workers do not take every step
    together.

    A prediction refuses such runs.
    """
    in_rounds = runs["run_id"].isin(study.rounds["run_id"])
    is_apart = pd.Series(
        [not can.lockstep for can in capabilities_of(runs)], runs.index, dtype=bool
    )
    return sorted(set(runs.loc[in_rounds | is_apart, "strategy"]))


def _refuse_unsynchronised(study: Study, runs: pd.DataFrame) -> None:
    if names := unsynchronised(study, runs):
        raise ValueError(
            f"the workers of the runs with {', '.join(names)} do not take every step together: a "
            "prediction needs steps that all workers take with one gradient of the global batch. "
            "Choose or train other runs, as in --where strategy=horovod."
        )


def _refuse_mixed(all_runs: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Raise ValueError if runs differ in a setting that affects the number of their steps to a
    target or the seconds of a step.

    Batch size, workers, passes of a step, the way of splitting the model, learning rate and seed
    may differ.
    """
    found = _differing(runs)
    if not found or (found.keys() == {"variant"} and differ_in_ways_alone(runs)):
        return
    remedy = f"Choose one part: {choices(all_runs, runs)}."
    if "hardware" in found:
        differ = (
            "of different hardware, and their times cannot be compared: "
            f"{'; '.join(found['hardware'])}"
        )
        raise ValueError(f"the runs are {differ}. {remedy}")
    told = "; ".join(
        f"{columns.heading(name)}: {', '.join(values)}" for name, values in found.items()
    )
    raise ValueError(
        f"the runs differ in more than batch size, workers and seed ({told}). {remedy}"
    )


def _differing(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return the settings, with their values, in which runs differ so that they cannot be
    compared.
    """
    known = keyed(_compared(runs))
    found = {
        name: sorted({setting_text(value) for value in known[name]}) for name in told_apart(runs)
    }
    return {name: values for name, values in found.items() if len(values) > 1 and name != "lr"}


def choices(all_runs: pd.DataFrame, runs: pd.DataFrame, among: pd.DataFrame | None = None) -> str:
    """Return a text with the `--where` options that select sets of comparable runs (at most eight),
    the largest set first.

    Args:
        all_runs: All runs of the study.
        runs: The runs to choose from.
        among: The runs whose differing settings become options, by default `runs`.
    """
    names = list(_differing(runs if among is None else among))
    known = (
        keyed(all_runs).loc[runs.index, names].map(setting_text)
    )  # in the form that `_chosen` compares
    counts = known.groupby(names, sort=False).size().sort_values(ascending=False, kind="stable")
    shown = [
        " ".join(
            f"--where {name}={shlex.quote(value)}" for name, value in zip(names, key, strict=True)
        )
        + f" ({counted(count, 'run')})"
        for key, count in zip(counts.index.to_frame().to_numpy(), counts, strict=True)
    ]
    left = len(shown) - _MOST_CHOICES
    return "; ".join([*shown[:_MOST_CHOICES], *([f"and {left} more"] if left > 0 else [])])


def _makes_no_difference(runs: pd.DataFrame, name: str) -> bool:
    if name == "planned_epochs":  # At a constant rate a longer run is the same run, continued.
        return schedule(runs) == "constant"
    return name in _NO_DIFFERENCE or name == "accumulation_steps" or name.startswith(_MEASURING)


def schedule(runs: pd.DataFrame) -> str:
    """Return the name of the runs' learning-rate schedule; several names are joined by `or`."""
    schedules = runs.get("optimizer.schedule", pd.Series(dtype=object)).dropna().unique()
    return " or ".join(map(str, schedules)) or "constant"


def _step_seconds(study: Study) -> pd.DataFrame:
    """Return for each run the mean seconds of a step, of the exposed exchange in a step (with its
    waiting), and of the waiting alone, indexed by `run_id`.

    For a run that began at another run's checkpoint, only its own steps count, and only the first
    of the three is known, because an epoch may have steps of both runs.
    """
    steps, begun = run_steps(study), study.runs.loc[continues(study.runs)].set_index("run_id")
    exposed = steps["exposed_exchange_seconds"] + steps["wait_seconds"].fillna(0)
    found = pd.DataFrame({
        "step_seconds": steps["total_seconds"],
        "exposed_seconds": exposed,
        "waiting_seconds": steps["wait_seconds"],
    })  # fmt: skip
    if len(begun):
        last = study.evaluations.groupby("run_id")[["train_seconds", "num_steps"]].last()
        before = begun[["branch_seconds", "branch_steps"]].set_axis(last.columns, axis="columns")
        own_steps = last.astype(float) - before.astype(float)
        found.loc[found.index.isin(begun.index)] = np.nan
        found["step_seconds"] = found["step_seconds"].fillna(
            own_steps["train_seconds"] / own_steps["num_steps"].where(own_steps["num_steps"] > 0)
        )
    return found


def exact_batches(runs: pd.DataFrame) -> list[int]:
    """Return the global batch sizes at which a run reached the target after its first evaluation,
    so that the steps to the target are known and not only an upper bound.
    """
    is_exact = runs["reached"].eq(True) & ~runs["is_bound"].eq(True)
    return sorted({int(batch) for batch in runs.loc[is_exact, "global_batch"]})


def missing(seen: Observed, least_batches: int = 2, has_timings: bool = False) -> str:
    """Return a text that says why the runs are too few for a prediction, and what to do; empty if
    they are enough.

    Args:
        seen: The runs.
        least_batches: How many batch sizes must have reached the target after their first
            evaluation, see `exact_batches`.
        has_timings: True if steps were timed elsewhere.
    """
    runs, target = seen.runs, seen.target
    if not runs["reached"].notna().any():
        return f"no run was evaluated on {target.part} examples, so there is no time to a target."
    if not runs["reached"].eq(True).any():
        return f"no run reached {target.said}. {_best_of(runs, target)}"
    known = exact_batches(runs)
    if len(known) < least_batches:
        if not known:
            few = (
                f"not enough runs to tell: the steps to {target.said} are not known for any batch "
                "size, but a curve over batch sizes needs two."
            )
            return joined([few, bounded(runs, target)])
        few = (
            f"not enough runs to tell: the steps to {target.said} are known for global batch "
            f"{known[0]} alone, but a curve over batch sizes needs two."
        )
        remedy = evaluated_once(runs) or "Run one more batch size."
        return joined([few, remedy, bounded(runs, target)])
    if not (runs["step_seconds"] > 0).any() and not has_timings:
        if runs["run_id"].isin(timed_beside(seen.study.provenance)).any():
            return (
                "all runs with timed steps shared the machine with other runs (launch.parallel), "
                "and such times are left out. Time some points alone, for example with "
                "launch.parallel=1 and another seed, or include those times: "
                "bsweep.predict(bsweep.load(STUDY, beside=True), ...)."
            )
        return (
            "no run has timed training steps. Train some points again, or give the file of `bsweep "
            "probe` by bsweep predict --probe."
        )
    return ""


def bounded(runs: pd.DataFrame, target: Target) -> str:
    """Return sentences on the runs that reached the target at their first evaluation, and how to
    learn more of such runs; empty if there are none.
    """
    of = runs[runs["reached"].eq(True) & runs["is_bound"].eq(True)]
    if of.empty:
        return ""
    return (
        f"{counted(len(of), 'run')} reached {target.said} at the first evaluation, so only an "
        f"upper bound of the steps is known. Evaluate more often ({more_evaluations(of)}), or "
        "choose a target that is harder to reach."
    )


def evaluated_once(runs: pd.DataFrame) -> str:
    """Return a sentence on the batch sizes whose runs have a single evaluation, and how to get
    more; empty if there are none.

    Args:
        runs: Runs with the columns of `to_target`.
    """
    single = runs[runs["last"].notna() & runs["best"].isna()]
    if single.empty:
        return ""
    batches = listed(sorted({int(batch) for batch in single["global_batch"]}))
    examples, steps = (single[f"trained_{name}"].min() / 2 for name in ("examples", "steps"))
    often = (
        f" (evaluate_every_examples={examples:.0f}; a program of your own: call run.evaluated "
        f"every {max(1, steps):.0f} steps)"
    )
    return (
        f"A target needs two evaluations of a run, but runs of global batch {batches} have one: "
        f"train for more epochs (epochs=2), or evaluate more often{often if examples > 0 else ''}."
    )


def wanted_evaluations(runs: pd.DataFrame) -> int:
    """Return after how many examples an evaluation should follow, so that the runs that reached the
    target at their first evaluation would be evaluated several times before.
    """
    at_once = runs.loc[runs["is_bound"].eq(True), "examples_to_target"]
    return max(1, round(float(at_once.astype(float).min()) / _WANTED_EVALUATIONS))


def more_evaluations(runs: pd.DataFrame) -> str:
    """Return the setting for `wanted_evaluations`, and what a program of one's own does instead."""
    return (
        f"evaluate_every_examples={wanted_evaluations(runs)}; a program of your own: call "
        "run.evaluated more often"
    )


def _best_of(runs: pd.DataFrame, target: Target) -> str:
    """Return sentences on the run that came nearest to a target that no run reached."""
    if runs["best"].isna().all():
        return evaluated_once(runs)
    best = (
        runs.dropna(subset="best")
        .sort_values("best", ascending=target.metric == "test_loss")
        .iloc[0]
    )
    return (
        f"The best median of three evaluations is {number(float(best['best']))} (last evaluation: "
        f"{number(float(best['last']))}), at global batch {best['global_batch']} on "
        f"{counted(best['num_workers'], 'worker')} after {number(float(best['trained_epochs']))} "
        "epochs. Choose a target that runs reach, or train longer."
    )


def rate_rule(seen: Observed) -> str:
    """Return the name of the learning-rate rule of the runs from which a prediction is made.

    If several rates were tried, the text also gives the rate taken for each batch size.
    """
    rules: Sequence[str] = [
        str(rule) for rule in seen.runs["lr_rule"].dropna().unique() if rule != ""
    ]
    rule = " or ".join(rules) or "not known"
    tried = ", ".join(f"{rate:g} at {batch}" for batch, rate in sorted(seen.rates.items()))
    if not tried:
        return rule
    return (
        f"{rule}, with the optimizer.lr that needs the fewest steps to the target at each batch: "
        f"{tried}"
    )


def best_rates(runs: pd.DataFrame, target: Target) -> dict[int, float]:
    """Return the best learning rate among those that were tried for each global batch.

    The best is the one with which the largest share of runs reaches the target. Among equals it is
    the one with the fewest steps, by the mean of their logarithms. A run that did not reach the
    target counts with the steps that it trained, a lower bound. If no run of a batch reached it,
    the rate with the best accuracy or loss is taken.
    """
    logs = np.log(runs["steps_to_target"].fillna(runs["trained_steps"]).astype(float).clip(lower=1))
    best = runs["best"].fillna(runs["last"]).astype(float)  # a run may have one evaluation only
    scores = runs.assign(steps=-logs, share=runs["reached"].eq(True), best=target.sign * best)
    means = scores.groupby(["global_batch", "lr"])[["share", "steps", "best"]].mean()
    by = means["steps"].where(means["share"] > 0, means["best"])
    order = means.assign(by=by).sort_values(["share", "by"], ascending=False)
    return {
        int(batch): float(rate) for batch, rate in order.groupby(level="global_batch").head(1).index
    }


def chosen_too_low(runs: pd.DataFrame, rates: Mapping[int, float]) -> dict[int, float]:
    """Return for each global batch by how much the mean log steps of its best learning rate are
    expected to lie below those of further runs with this rate (the winner's curse).

    It is the mean over repetitions in which normal noise is added to the mean of each rate, and the
    best one is chosen again: by how much the chosen one's noise lowers it. Rates compete if at
    least as large a share of their runs as of the chosen rate's reached the target. The noise is
    the scatter between runs with one rate, counted together with three runs that scatter by 8 %.
    """
    is_exact = runs["reached"].eq(True) & ~runs["is_bound"].eq(True)
    logs = runs["steps_to_target"].astype(float).where(is_exact).map(np.log)
    groups = logs.groupby([runs["global_batch"], runs["lr"]])
    shares = runs["reached"].eq(True).groupby([runs["global_batch"], runs["lr"]]).mean()
    tried = pd.DataFrame({"mean": groups.mean(), "count": groups.count(), "share": shares})
    squares = ((logs - groups.transform("mean")) ** 2).sum() + 3 * _SCATTER**2
    sigma = np.sqrt(squares / (3 + (tried["count"] - 1).clip(lower=0).sum()))
    rng, found = np.random.default_rng(0), {}
    for batch, rate in rates.items():
        of = tried.loc[batch]
        of = of[(of["share"] >= of["share"].loc[rate]) & (of["count"] > 0)]
        if len(of) > 1:
            errors = sigma / np.sqrt(of["count"].to_numpy(float))
            noise = errors * rng.standard_normal((_REPETITIONS, len(of)))
            best = (of["mean"].to_numpy(float) + noise).argmin(axis=1)
            found[batch] = float(max(0.0, -noise[np.arange(_REPETITIONS), best].mean()))
    return found
