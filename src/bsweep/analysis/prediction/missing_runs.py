"""Sentences on what a prediction lacks, and on the runs that would add it."""

from __future__ import annotations

import pandas as pd

from bsweep.analysis.prediction.forecast import batch_on_workers
from bsweep.analysis.prediction.seen_runs import Observed, exact_batches
from bsweep.analysis.study.beside_others import timed_beside
from bsweep.analysis.study.numbers import number
from bsweep.config.target import Target
from bsweep.core.words import counted, joined, listed

_WANTED_EVALUATIONS = 10  # of a run before its target


def missing(seen: Observed, least_batches: int = 2) -> str:
    """Return a text that says why the runs are too few for a prediction, and what to do; empty if
    they are enough.

    Args:
        seen: The runs.
        least_batches: How many batch sizes must have reached the target after their first
            evaluation, see `exact_batches`.
    """
    runs, target = seen.runs, seen.target
    if not runs["reached"].notna().any():
        return f"no run was evaluated on {target.part} examples, so there is no time to a target."
    if not runs["reached"].eq(True).any():
        return f"no run reached {target}. {_best_of(runs, target)}"
    known = exact_batches(runs)
    if len(known) < least_batches:
        batches = f"known for global batch {known[0]} alone" if known else ""
        few = (
            f"not enough runs to tell: the steps to {target} are "
            f"{batches or 'not known for any batch size'}, but a curve over batch sizes needs two."
        )
        remedy = (evaluated_once(runs) or "Run one more batch size.") if known else ""
        return joined([few, remedy, bounded(runs, target)])
    if not (runs["step_seconds"] > 0).any() and not seen.probed:
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
    at_once = runs[runs["is_bound"].eq(True)]
    if at_once.empty:
        return ""
    return (
        f"{counted(len(at_once), 'run')} reached {target} at the first evaluation, so only an "
        f"upper bound of the steps is known. Evaluate more often ({more_evaluations(at_once)}), or "
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
    known = runs.dropna(subset="best")
    best = known.sort_values("best", ascending=target.sign < 0).iloc[0]
    return (
        f"The best median of three evaluations is {number(float(best['best']))} (last evaluation: "
        f"{number(float(best['last']))}), at "
        f"{batch_on_workers(best['global_batch'], best['num_workers'])} after "
        f"{number(float(best['trained_epochs']))} epochs. Choose a target that runs reach, or "
        "train longer."
    )
