"""Batches that change while training against the best fixed one, seed by seed: time to a target on several workers.

    python scripts/policies.py results/measured/truth --target-accuracy 0.65

Beside what `truth.py` reads the folder has `policies`, the tables of a study whose runs differ in `batching` and seed.
All are
of single workers; on N workers the same steps take what `steps` says of each batch, between measured ones interpolated
in logarithms. The best fixed batch is chosen for each N by all its seeds, and ratios of time are of equal seeds:
below 1 the policy is sooner. Written there: `policies.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from truth import Measured, measured

from bsweep.analysis import load
from bsweep.analysis.study import Study
from bsweep.analysis.targets import to_target
from bsweep.config import Target, target_of

_OF_RUN = ["batching", "seed", "global_batch", "epochs_to_target"]


def seconds_to(truth: Measured, batches: pd.DataFrame, epochs: float, workers: int) -> float:
    """Seconds of a run's first epochs on so many workers.

    Args:
        truth: what a step of each batch takes.
        batches: the `global_batch` up to each of `epochs_done`, in order.
        epochs: until where; the last batch holds beyond the last record.
        workers: how many.
    """
    cells = sorted(cell for cell in truth.cells if cell[1] == workers)
    batch, ends = (batches[name].to_numpy(float) for name in ("global_batch", "epochs_done"))
    ends = np.append(ends[:-1], np.inf)
    step = np.exp(np.interp(np.log(batch), np.log([cell[0] for cell in cells]), np.log([*map(truth.step, cells)])))
    return float(np.diff(np.minimum(ends, epochs), prepend=0.0) @ (truth.num_train / batch * step))


def times(truth: Measured, study: Study) -> pd.DataFrame:
    """Of each run that reached the target its `rule`, `seed` and `seconds`, by `num_workers`."""
    runs = study.runs.drop(columns="epochs_to_target", errors="ignore").set_index("run_id")
    runs = runs.join(to_target(study, truth.target)["epochs_to_target"]).dropna(subset="epochs_to_target")
    runs["batching"] = runs["batching"].replace("", np.nan).fillna("fixed") if "batching" in runs else "fixed"
    rows = []
    for run_id, policy, seed, batch, epochs in runs[_OF_RUN].itertuples(name=None):
        own = study.batches[study.batches["run_id"] == run_id]
        if own.empty:  # its batch never changed
            own = pd.DataFrame({"epochs_done": [0.0], "global_batch": [batch]})
        rule = f"fixed {batch}" if policy == "fixed" else policy
        for workers in sorted({cell[1] for cell in truth.cells}):
            seconds = seconds_to(truth, own, float(epochs), workers)
            rows.append({"rule": rule, "seed": seed, "num_workers": workers, "seconds": seconds})
    return pd.DataFrame(rows)


def compared(known: pd.DataFrame) -> pd.DataFrame:
    """Each rule against the best fixed batch on as many workers, by logarithms of ratios of equal seeds.

    Columns: `ratio`, geometric mean, with `low` and `high`, its 95 % t-interval; `p_sooner`, of the one-sided paired
    t-test that it is sooner; `num_seeds`.
    """
    rows = []
    for workers, of in known.groupby("num_workers"):
        table = np.log(of.pivot_table(index="seed", columns="rule", values="seconds"))
        fixed = [name for name in table if name.startswith("fixed")]
        best = min(fixed, key=lambda name: table[name].mean())
        for rule in table:
            ratios = (table[rule] - table[best]).dropna()
            if rule == best or len(ratios) < 2:
                continue
            low, high = stats.t.interval(0.95, len(ratios) - 1, ratios.mean(), stats.sem(ratios))
            test = stats.ttest_1samp(ratios, 0, alternative="less")
            rows.append({
                "num_workers": workers, "best_fixed": best, "rule": rule, "num_seeds": len(ratios),
                "ratio": np.exp(ratios.mean()), "low": np.exp(low), "high": np.exp(high), "p_sooner": test.pvalue,
            })  # fmt: skip
    return pd.DataFrame(rows)


def main(folder: Path, target: Target) -> None:
    truth = measured(folder, target)
    known = pd.concat([times(truth, truth.study), times(truth, load(folder / "policies", mix=True))])
    table = compared(known)
    table.to_csv(folder / "policies.csv", index=False, float_format="%.6g")
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target-accuracy", type=float, required=True)
    given = parser.parse_args()
    main(given.folder, target_of(accuracy=given.target_accuracy))
