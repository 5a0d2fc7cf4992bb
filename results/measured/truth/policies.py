"""Batches that change while training against the best fixed one, seed by seed: time to a target on
several workers.

    python results/measured/truth/policies.py results/measured/truth --target-accuracy 0.65

The folder has `policies`, the tables of a study whose runs differ in `batching`, learning-rate
rule and seed. If the folder has `steps` too, as `rules.py` reads it, the runs are of single
workers. On N workers the same steps then take what `steps` says of each batch, between measured
ones interpolated in logarithms, and `batchnorm` has fixed batches in passes. Otherwise each run
took the seconds that it recorded, and fixed batches are among the runs. The best fixed batch is
chosen for each N by the seeds that all fixed batches have, and ratios of time are of equal seeds:
below 1 the policy is sooner. Written there: `policies.csv`.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from measured_grid import Measured, arguments, measured
from scipy import stats

from bsweep.analysis import load
from bsweep.analysis.cell_tables.statistics import holm
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import Target

_OF_RUN = [
    "batching",
    "lr_rule",
    "seed",
    "global_batch",
    "local_batch",
    "epochs_to_target",
    "accuracy",
]

_OF_TIME = ["ratio", "low", "high", "p_sooner"]
_OF_ACCURACY = ["accuracy_difference", "accuracy_low", "accuracy_high", "p_less_accurate"]

FINAL_EPOCHS = 9  # after which accuracies are compared


def seconds_to(truth: Measured, batches: pd.DataFrame, epochs: float, workers: int) -> float:
    """Seconds of a run's first epochs on so many workers, rather too many: a batch changes where it
    costs most.

    Args:
        truth: what a step of each batch takes.
        batches: the `global_batch` of the last step at each of `epochs_done`, in order; it changed
            since the last row.
        epochs: until where; the last batch holds beyond the last row.
        workers: how many.

    Raises:
        ValueError: a batch lies beyond those whose steps were timed.
    """
    cells = sorted(cell for cell in truth.cells if cell[1] == workers)
    batch, ends = (batches[name].to_numpy(float) for name in ("global_batch", "epochs_done"))
    if batch.min() < cells[0][0] or batch.max() > cells[-1][0]:
        raise ValueError(
            f"batches of {batch.min():g} to {batch.max():g}: steps of {cells[0][0]} to "
            f"{cells[-1][0]} are known"
        )
    step = np.exp(
        np.interp(
            np.log(batch), np.log([cell[0] for cell in cells]), np.log([*map(truth.step, cells)])
        )
    )
    epoch = truth.num_train / batch * step
    epoch = np.maximum(epoch, np.append(epoch[0], epoch[:-1]))
    return float(np.diff(np.minimum(np.append(ends[:-1], np.inf), epochs), prepend=0.0) @ epoch)


def times(truth: Measured, study: Study) -> pd.DataFrame:
    """Of each run that ended its `rule`, with the batch that it began with, `seed`, and by
    `num_workers` `seconds`.

    Seconds are infinite where the target was not reached; `accuracy`, the test accuracy after
    `FINAL_EPOCHS`, is NaN where a run ended before. Goodput decides by the seconds of the worker
    that it had: it has no others. Who measures the noise in passes stands for several workers, and
    is not held against a lone one; the step is that of one pass.
    """
    runs = study.runs.drop(columns="epochs_to_target", errors="ignore").set_index("run_id")
    runs = runs.join(to_target(study, truth.target)["epochs_to_target"])
    at_end = study.evaluations[study.evaluations["epochs_done"].astype(float) == FINAL_EPOCHS]
    runs["accuracy"] = (
        at_end.drop_duplicates("run_id").set_index("run_id")["test_accuracy"].astype(float)
    )
    runs = runs[runs["epochs_to_target"].notna() | runs["status"].isin(["completed", "diverged"])]
    runs["batching"] = (
        runs["batching"].replace("", np.nan).fillna("fixed") if "batching" in runs else "fixed"
    )
    counts = sorted({cell[1] for cell in truth.cells})
    of_passes, rows = [count for count in counts if count > 1], []
    for run_id, policy, lr_rule, seed, batch, one_pass, epochs, accuracy in runs[
        _OF_RUN
    ].itertuples(name=None):
        own = study.batches[study.batches["run_id"] == run_id]
        if own.empty:  # its batch never changed
            own = pd.DataFrame({"epochs_done": [0.0], "global_batch": [batch]})
        rule = named(policy, lr_rule, batch) + f", passes of {one_pass}" * (one_pass < batch)
        for workers in [1] if policy == "goodput" else of_passes if one_pass < batch else counts:
            seconds = (
                seconds_to(truth, own, float(epochs), workers) if epochs == epochs else math.inf
            )
            rows.append((rule, seed, workers, seconds, accuracy))
    return pd.DataFrame(rows, columns=["rule", "seed", "num_workers", "seconds", "accuracy"])


def named(policy: str, lr_rule: str, batch: int) -> str:
    rule = f"fixed {batch}" if policy == "fixed" else f"{policy} from {batch}"
    return rule + ", AdaScale" * (lr_rule == "adascale")


def recorded_times(study: Study, target: Target) -> pd.DataFrame:
    """The table of `times` for runs that trained on their own workers, by the seconds that they
    recorded; `accuracy` is that of the last evaluation of a run that trained all planned epochs.
    """
    reached = to_target(study, target)
    names = ["seconds_to_target", "is_bound"]
    runs = study.runs.drop(columns=names, errors="ignore").join(reached[names], on="run_id")
    if (early := runs["is_bound"].eq(True)).any():
        sys.exit(
            f"{sorted(runs.loc[early, 'run_id'])}: {target} was reached at the first evaluation, "
            "so the seconds are not known. Choose a target that is harder to reach."
        )
    policies = study.runs["batching"].replace("", np.nan).fillna("fixed")
    rules = map(named, policies, runs["lr_rule"], runs["global_batch"])
    last = study.evaluations.drop_duplicates("run_id", keep="last").set_index("run_id")
    is_whole = last["epochs_done"].astype(float) == runs["planned_epochs"].max()
    accuracy = last["test_accuracy"].astype(float).where(is_whole)
    return runs[["seed", "num_workers"]].assign(
        rule=list(rules),
        seconds=runs["seconds_to_target"].astype(float).fillna(math.inf),
        accuracy=runs["run_id"].map(accuracy),
    )


def compared(known: pd.DataFrame) -> pd.DataFrame:
    """Each rule against the best fixed batch on as many workers, by differences of equal seeds.

    Columns: `num_seeds`, and of them `num_missed`, which did not reach the target; of the others
    `ratio` of seconds, geometric mean, with `low` and `high`, its 95 % t-interval; `p_sooner`, of
    the one-sided paired t-test that it is sooner, 1 where one missed, and `p_holm`, that of all
    policies on as many workers together (Holm, 1979); `regret`, the mean share by which it took
    longer than the fixed batch that was best for the very seed, over the seeds that all fixed
    batches have; `accuracy_difference` with `accuracy_low` and `accuracy_high`, its 95 %
    t-interval, and `p_less_accurate`, of the one-sided test that it ends with less: a large one
    does not prove that it does not.
    """
    tables = []
    for workers in sorted(set(known["num_workers"].tolist())):
        of = known[known["num_workers"] == workers].assign(log=lambda rows: np.log(rows["seconds"]))
        logs, accuracy = (
            of.pivot(index="seed", columns="rule", values=name) for name in ("log", "accuracy")
        )
        fixed = [str(rule) for rule in logs if re.fullmatch(r"fixed \d+", str(rule))]
        of_all = logs[fixed].dropna()
        best = str(of_all.mean().idxmin())
        rows = []
        for rule in logs.columns.drop(best):
            both, regret = (
                (logs[rule] - logs[best]).dropna(),
                logs[rule] - of_all.min(axis="columns"),
            )
            row = {"rule": rule, "num_seeds": len(both), "num_missed": int(np.isposinf(both).sum())}
            row |= zip(_OF_TIME, _paired(both[np.isfinite(both)]), strict=True)
            row["regret"] = float(np.expm1(regret.dropna()).mean())
            row |= zip(
                _OF_ACCURACY, _paired((accuracy[rule] - accuracy[best]).dropna()), strict=True
            )
            rows.append(row)
        found = pd.DataFrame(rows).assign(num_workers=workers, best_fixed=best)
        found[_OF_TIME[:3]] = np.exp(found[_OF_TIME[:3]])
        found["p_sooner"] = found["p_sooner"].mask(found["num_missed"] > 0, 1.0)
        is_policy = ~found["rule"].str.fullmatch(r"fixed \d+(, passes of \d+)?")
        tables.append(found.assign(p_holm=holm(found["p_sooner"].where(is_policy))))
    return pd.concat(tables, ignore_index=True)


def _paired(differences: pd.Series) -> tuple[float, float, float, float]:
    """Mean, its 95 % t-interval, and p of the one-sided test that it is below 0; NaN of fewer than
    two.
    """
    if len(differences) < 2:
        return math.nan, math.nan, math.nan, math.nan
    mean = float(differences.mean())
    if differences.nunique() == 1:
        return mean, mean, mean, float(mean >= 0)
    low, high = stats.t.interval(0.95, len(differences) - 1, mean, stats.sem(differences))
    return (
        mean,
        float(low),
        float(high),
        float(stats.ttest_1samp(differences, 0, alternative="less").pvalue),
    )


def emulated_times(folder: Path, target: Target) -> pd.DataFrame:
    """The table of `times` of all rules, of runs of single workers; see the module's docstring."""
    truth = measured(folder, target)
    of_grid = truth.study.runs
    alone = replace(truth.study, runs=of_grid[of_grid["num_workers"] == 1])
    to_target_alone = pd.concat(
        [times(truth, alone), times(truth, load(folder / "batchnorm", mix=True))]
    )
    policies = times(truth, load(folder / "policies", mix=True))
    known = pd.concat([policies, to_target_alone.assign(accuracy=math.nan)])
    # A seed of a rule that was run to the target and again beyond it counts once.
    return known.sort_values("accuracy", key=pd.isna, kind="stable").drop_duplicates(
        ["rule", "seed", "num_workers"]
    )


def main(folder: Path, target: Target) -> None:
    if (folder / "steps").is_dir():
        table = compared(emulated_times(folder, target))
    else:
        table = compared(recorded_times(load(folder / "policies", mix=True), target))
    table.to_csv(folder / "policies.csv", index=False, float_format="%.6g")
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    main(*arguments(__doc__))
