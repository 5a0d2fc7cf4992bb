"""Tables over the cells of a study: means and intervals, the paper's ratios, speed-up, the fit over batch sizes.

A cell is what repeats over seeds. `cells` is indexed by what tells cells apart, `local_batch` last, and the other
tables are made from it and indexed alike. Cells that differ in `local_batch` alone are a series: one curve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pandas.api.typing import DataFrameGroupBy
from scipy.special import stdtrit

from bsweep.analysis.keys import cell_keys, keyed, levels, timing
from bsweep.analysis.loading import Study

METRICS = ["train_seconds", "images_per_second", "train_accuracy", "train_loss", "test_accuracy", "test_loss"]
EXCHANGE = ["exchange_seconds", "wait_seconds", "sent_bytes"]
CURVES = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]
_MIN_BATCHES_FOR_FIT = 3  # two points lie on every curve of two parameters


@dataclass(frozen=True)
class Line:
    """`y = intercept + slope * x`. `r_squared` is NaN if all y are equal."""

    intercept: float
    slope: float
    r_squared: float


def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, indexed by `cell_keys`: means over the seeds of its completed runs.

    Columns: `global_batch`, `num_runs`, `n` (of them completed), `other_statuses` (of the rest), and of `METRICS` the
    mean and, as `<metric>_ci95`, the half-width of its 95 % t-interval (NaN for one run).
    """
    keys, known = cell_keys(runs), keyed(runs)
    grouped = known.groupby(keys)
    completed = known[known["status"] == "completed"].groupby(keys)
    table = pd.DataFrame({"global_batch": grouped["global_batch"].first(), "num_runs": grouped.size()})
    table["n"] = completed.size().reindex(table.index, fill_value=0)
    table["other_statuses"] = grouped["status"].agg(_other_statuses)
    return table.join(mean_and_interval(completed, METRICS))


def by_cell(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs themselves, indexed as `cells`."""
    return keyed(runs).set_index(cell_keys(runs))


def batch_ratios(cells: pd.DataFrame) -> pd.DataFrame:
    """Each cell's metrics divided by those of the next smaller batch measured, everything else being equal.

    The ratios of the first paper's section 3.2. Columns: `smaller_batch`, `<metric>_ratio`.
    """
    measured = cells[cells["n"] > 0].reset_index("local_batch")
    metrics = ["local_batch", *METRICS]
    smaller = measured.groupby(level=levels(measured))[metrics].shift(1)
    ratios = (measured[METRICS] / smaller[METRICS]).add_suffix("_ratio")
    ratios.insert(0, "smaller_batch", smaller["local_batch"])
    table = ratios.set_index(measured["local_batch"], append=True).dropna(subset="smaller_batch")
    return table.astype({"smaller_batch": "int64"})


def scaling(cells: pd.DataFrame) -> pd.DataFrame:
    """Speed-up and efficiency over workers at equal *local* batch: weak scaling.

    `speedup` is images per second over those of the smallest worker count measured with everything else equal,
    `base_workers`; `efficiency` is that over the ratio of worker counts. Cells with no such partner are left out.
    """
    measured = cells.loc[cells["n"] > 0, ["images_per_second"]].reset_index("num_workers")
    grouped = measured.groupby(level=levels(measured))
    base = grouped.transform("first")  # the index is sorted, so that this is the smallest worker count
    table = measured.assign(
        base_workers=base["num_workers"],
        speedup=measured["images_per_second"] / base["images_per_second"],
    )
    table["efficiency"] = table["speedup"] * table["base_workers"] / table["num_workers"]
    partnered = grouped["num_workers"].transform("size") > 1
    return table[partnered].set_index("num_workers", append=True).reorder_levels(levels(cells))


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    """The least-squares line through points at two places or more, `x` and `y` of shape (n,)."""
    places, values = np.asarray(x, float), np.asarray(y, float)
    slope, intercept = np.polyfit(places, values, 1)
    unexplained = float(np.sum((values - intercept - slope * places) ** 2))
    total = float(np.sum((values - values.mean()) ** 2))
    return Line(float(intercept), float(slope), 1 - unexplained / total if total else float("nan"))


def seconds_fits(runs: pd.DataFrame) -> pd.DataFrame:
    """Fit a + c / local batch to the training time of every completed run of each series with three sizes or more.

    Indexed by the series. Columns: `fixed_seconds`, a, which does not depend on the batch size; `batch_seconds`, c,
    the fixed cost of a step times the examples that a worker trains on; `r_squared`; `num_batches`; `step_seconds`,
    the fixed cost of one forward and backward pass that c amounts to; `image_seconds`, what each image adds to it.
    """
    known = keyed(runs)
    completed = known[(known["status"] == "completed") & known["train_seconds"].notna()]
    series = cell_keys(runs)[:-1]
    rows = {}
    for key, group in completed.groupby(series):
        num_batches = group["local_batch"].nunique()
        if num_batches < _MIN_BATCHES_FOR_FIT:
            continue
        line = fit_line(1 / group["local_batch"], group["train_seconds"])
        images = float((group["images_per_second"] * group["train_seconds"] / group["num_workers"]).mean())
        per_image = (line.slope / images, line.intercept / images)
        rows[key] = (line.intercept, line.slope, line.r_squared, num_batches, *per_image)
    columns = ["fixed_seconds", "batch_seconds", "r_squared", "num_batches", "step_seconds", "image_seconds"]
    index = pd.MultiIndex.from_tuples(rows, names=series) if rows else pd.MultiIndex.from_arrays([[]] * len(series))
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)


def step_times(study: Study) -> pd.DataFrame:
    """Seconds of a training step by what they went into, one row a cell: means over its completed runs.

    Columns: `n`, `total_seconds`, `compute_seconds` (the rest), `exchange_seconds`, `wait_seconds` (a worker's mean),
    `sent_bytes` (of a worker); NaN where not measured. Cells that differ in optimizer settings alone count as one.
    """
    sums = ["train_seconds", *EXCHANGE]
    # A sum with an epoch missing is missing.
    totals = study.epochs.astype(dict.fromkeys(["num_steps", *sums], float)).groupby("run_id").sum(skipna=False)
    times = totals[sums].div(totals["num_steps"], axis="index")
    times = times.rename(columns={"train_seconds": "total_seconds"})
    spent = times["exchange_seconds"] + times["wait_seconds"]
    times.insert(1, "compute_seconds", (times["total_seconds"] - spent).clip(lower=0))  # the clocks are not the same
    return cell_means(study, times)


def server_loads(study: Study) -> pd.DataFrame:
    """How evenly parameter servers share their work, one row a cell: means over its completed runs.

    Columns: `n`, `num_servers`, `largest_share` (of the parameters), `busiest_load` (of the training time),
    `queue_seconds` (that a push waits for its server), `max_lead` (clocks).
    """
    grouped = study.servers.groupby("run_id")
    loads = pd.DataFrame({
        "num_servers": grouped.size(),
        "largest_share": grouped["share"].max(),
        "busiest_load": grouped["load"].max(),
        "queue_seconds": grouped["queue_seconds"].sum() / grouped["pushes"].sum(),
        "max_lead": grouped["max_lead"].max(),
    })  # fmt: skip
    return cell_means(study, loads)


def server_shares(study: Study) -> pd.DataFrame:
    """The part of the parameters on each server, one row a cell, one column a server; NaN for no such server."""
    shares = study.servers.pivot(index="run_id", columns="server", values="share")
    return cell_means(study, shares.astype(float)).drop(columns="n")


def epoch_curves(study: Study) -> pd.DataFrame:
    """Loss and accuracy by epoch, indexed by `cell_keys` and `epoch`: means and intervals over seeds, as in `cells`.

    Runs that did not complete stand in only for cells in which none did; `completed` says which it is.
    """
    keys, known = cell_keys(study.runs), keyed(study.runs)
    known["completed"] = known["status"] == "completed"
    stands_in = ~known.groupby(keys)["completed"].transform("any")
    shown = known.loc[known["completed"] | stands_in, ["run_id", "completed", *keys]]
    grouped = study.epochs[["run_id", "epoch", *CURVES]].merge(shown, on="run_id").groupby([*keys, "epoch"])
    table = pd.DataFrame({"completed": grouped["completed"].first(), "n": grouped.size()})
    return table.join(mean_and_interval(grouped, CURVES))


def failures(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that did not complete, with status and message."""
    columns = ["run_id", "strategy", "num_workers", "local_batch", "seed", "status", "message"]
    return runs.loc[runs["status"] != "completed", columns].reset_index(drop=True)


def cell_means(study: Study, by_run: pd.DataFrame) -> pd.DataFrame:
    """Means over the completed runs of cells that may differ in time, of a table indexed by `run_id`."""
    runs = timing(study.runs)
    known = keyed(runs)
    joined = known.loc[known["status"] == "completed", ["run_id", *cell_keys(runs)]].merge(by_run, on="run_id")
    grouped = joined.groupby(cell_keys(runs))
    return pd.DataFrame({"n": grouped.size()}).join(grouped[list(by_run)].mean())


def _other_statuses(statuses: pd.Series[str]) -> str:
    counts = Counter(status for status in statuses if status != "completed")
    return ", ".join(status if count == 1 else f"{count} {status}" for status, count in sorted(counts.items()))


def mean_and_interval(grouped: DataFrameGroupBy[Any, Any], metrics: Sequence[str]) -> pd.DataFrame:
    """Mean, and half-width of the 95 % interval by Student's t with n - 1 degrees of freedom."""
    values = grouped[list(metrics)]
    half_width: pd.DataFrame = values.sem() * stdtrit(values.count() - 1, 0.975)
    return values.mean().join(half_width.add_suffix("_ci95"))
