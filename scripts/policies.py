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
from measured_grid import Measured, measured
from scipy import stats

from bsweep.analysis import load
from bsweep.analysis.study import Study
from bsweep.analysis.targets import to_target
from bsweep.config import Target, target_of

_OF_RUN = ["batching", "seed", "global_batch", "epochs_to_target"]


def seconds_to(truth: Measured, batches: pd.DataFrame, epochs: float, workers: int) -> float:
    """Seconds of a run's first epochs on so many workers, rather too many: a batch changes where it costs most.

    Args:
        truth: what a step of each batch takes.
        batches: the `global_batch` of the last step at each of `epochs_done`, in order; it changed since the last row.
        epochs: until where; the last batch holds beyond the last row.
        workers: how many.

    Raises:
        ValueError: a batch lies beyond those whose steps were timed.
    """
    cells = sorted(cell for cell in truth.cells if cell[1] == workers)
    batch, ends = (batches[name].to_numpy(float) for name in ("global_batch", "epochs_done"))
    if batch.min() < cells[0][0] or batch.max() > cells[-1][0]:
        raise ValueError(
            f"batches of {batch.min():g} to {batch.max():g}: steps of {cells[0][0]} to {cells[-1][0]} are known"
        )
    step = np.exp(np.interp(np.log(batch), np.log([cell[0] for cell in cells]), np.log([*map(truth.step, cells)])))
    epoch = truth.num_train / batch * step
    epoch = np.maximum(epoch, np.append(epoch[0], epoch[:-1]))
    return float(np.diff(np.minimum(np.append(ends[:-1], np.inf), epochs), prepend=0.0) @ epoch)


def times(truth: Measured, study: Study) -> pd.DataFrame:
    """Of each run that ended its `rule`, with the batch that it began with, `seed` and `seconds`, by `num_workers`.

    NaN where the target was not reached. Goodput decides by the seconds of the worker that it had: it has no others.
    """
    runs = study.runs.drop(columns="epochs_to_target", errors="ignore").set_index("run_id")
    runs = runs.join(to_target(study, truth.target)["epochs_to_target"])
    runs = runs[runs["epochs_to_target"].notna() | runs["status"].eq("completed")]
    runs["batching"] = runs["batching"].replace("", np.nan).fillna("fixed") if "batching" in runs else "fixed"
    rows = []
    for run_id, policy, seed, batch, epochs in runs[_OF_RUN].itertuples(name=None):
        own = study.batches[study.batches["run_id"] == run_id]
        if own.empty:  # its batch never changed
            own = pd.DataFrame({"epochs_done": [0.0], "global_batch": [batch]})
        rule = f"fixed {batch}" if policy == "fixed" else f"{policy} from {batch}"
        for workers in sorted({cell[1] for cell in truth.cells} if policy != "goodput" else {1}):
            seconds = seconds_to(truth, own, float(epochs), workers)
            rows.append({"rule": rule, "seed": seed, "num_workers": workers, "seconds": seconds})
    return pd.DataFrame(rows)


def compared(known: pd.DataFrame) -> pd.DataFrame:
    """Each rule against the best fixed batch on as many workers, by logarithms of ratios of equal seeds.

    Columns: `ratio`, geometric mean, with `low` and `high`, its 95 % t-interval; `p_sooner`, of the one-sided paired
    t-test that it is sooner, and `p_holm`, that of all policies on as many workers together (Holm, 1979); `num_seeds`;
    `num_missed`, runs that did not reach the target, of which a ratio says nothing.
    """
    tables = []
    for workers in sorted(set(known["num_workers"].tolist())):
        of = known[known["num_workers"] == workers]
        table = of.assign(log=np.log(of["seconds"])).pivot(index="seed", columns="rule", values="log")
        fixed = [str(name) for name in table.columns if str(name).startswith("fixed")]
        shared = table[fixed].dropna(thresh=len(fixed))
        best = min(fixed, key=lambda name: float(shared[name].mean()))
        rows = [_ratio(table, str(rule), best) for rule in table if rule != best]
        found = pd.DataFrame([row for row in rows if row]).assign(num_workers=workers, best_fixed=best)
        order = found[~found["rule"].isin(fixed)].sort_values("p_sooner")
        adjusted = order["p_sooner"] * np.arange(len(order), 0, -1)
        tables.append(found.assign(p_holm=adjusted.cummax().clip(upper=1)))
    return pd.concat(tables, ignore_index=True)


def _ratio(table: pd.DataFrame, rule: str, best: str) -> dict[str, object]:
    ratios = (table[rule] - table[best]).dropna()
    if len(ratios) < 2:
        return {}
    low, high = stats.t.interval(0.95, len(ratios) - 1, ratios.mean(), stats.sem(ratios))
    test = stats.ttest_1samp(ratios, 0, alternative="less")
    told = {"rule": rule, "num_seeds": len(ratios), "ratio": float(np.exp(ratios.mean()))}
    return told | {"low": float(np.exp(low)), "high": float(np.exp(high)), "p_sooner": float(test.pvalue)}


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
