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

from bsweep.analysis.loading import OTHER_COLUMNS, RUN_COLUMNS, SETTING_COLUMNS, Study

METRICS = ["train_seconds", "images_per_second", "train_accuracy", "train_loss", "test_accuracy", "test_loss"]
CURVES = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]
_FOUND_OUT = ("device", "hardware", "precision", "num_train")  # not known of a run that failed before it started
_MIN_BATCHES_FOR_FIT = 3  # two points lie on every curve of two parameters


@dataclass(frozen=True)
class TimeFit:
    """`seconds = fixed_seconds + batch_seconds / local_batch`, by least squares.

    The first term does not depend on the batch size; the second is the fixed cost of a step times the examples
    that a worker trains on. `r_squared` is NaN if all times are equal.
    """

    fixed_seconds: float
    batch_seconds: float
    r_squared: float


def cell_keys(runs: pd.DataFrame) -> list[str]:
    """The columns that tell cells apart: all settings that differ within the study, then strategy, workers, batch.

    Settings that follow from others, as `optimizer.momentum` from the optimizer, are left out, for these tell the
    cells apart already; so is hardware that follows from the strategy, say. `entangled` settings, which would tear a
    curve over batch sizes into points, are left out too; hardware that changes with the batch size or the workers is
    not, so that no curve ever mixes hardware.
    """
    return [*_told_apart(runs)[0], "strategy", "num_workers", "local_batch"]


def entangled(runs: pd.DataFrame) -> list[str]:
    """Learning rate and lesser settings that change along with batch or workers: curves show both effects."""
    return _told_apart(runs)[1]


def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, indexed by `cell_keys`: means over the seeds of its completed runs.

    Columns: `global_batch`, `num_runs`, `n` (of them completed), `other_statuses` (of the rest), and of `METRICS` the
    mean and, as `<metric>_ci95`, the half-width of its 95 % t-interval (NaN for one run).
    """
    keys, keyed = cell_keys(runs), _keyed(runs)
    grouped = keyed.groupby(keys)
    completed = keyed[keyed["status"] == "completed"].groupby(keys)
    table = pd.DataFrame({"global_batch": grouped["global_batch"].first(), "num_runs": grouped.size()})
    table["n"] = completed.size().reindex(table.index, fill_value=0)
    table["other_statuses"] = grouped["status"].agg(_other_statuses)
    return table.join(_mean_and_interval(completed, METRICS))


def levels(table: pd.DataFrame) -> list[str]:
    """The names of a table's index: what tells its cells apart."""
    return [str(name) for name in table.index.names]


def by_cell(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs themselves, indexed as `cells`."""
    return _keyed(runs).set_index(cell_keys(runs))


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


def fit_seconds(local_batch: ArrayLike, seconds: ArrayLike) -> TimeFit:
    """Fit `TimeFit` to times measured at several batch sizes, both of shape (n,), with at least two sizes."""
    inverse, times = 1 / np.asarray(local_batch, float), np.asarray(seconds, float)
    design = np.stack([np.ones_like(inverse), inverse], axis=1)
    solution, *_ = np.linalg.lstsq(design, times, rcond=None)
    unexplained = float(np.sum((times - design @ solution) ** 2))
    total = float(np.sum((times - times.mean()) ** 2))
    return TimeFit(float(solution[0]), float(solution[1]), 1 - unexplained / total if total else float("nan"))


def seconds_fits(runs: pd.DataFrame) -> pd.DataFrame:
    """The fit of training time to batch size, to every completed run of each series with three sizes or more.

    Indexed by the series. Columns: those of `TimeFit`; `num_batches`; `step_seconds`, the fixed cost of one forward
    and backward pass that the fit amounts to; `image_seconds`, what each image adds to it.
    """
    keyed = _keyed(runs)
    completed = keyed[(keyed["status"] == "completed") & keyed["train_seconds"].notna()]
    series = cell_keys(runs)[:-1]
    rows = {}
    for key, group in completed.groupby(series):
        num_batches = group["local_batch"].nunique()
        if num_batches < _MIN_BATCHES_FOR_FIT:
            continue
        fit = fit_seconds(group["local_batch"], group["train_seconds"])
        images = float((group["epochs"] * group["num_train"] / group["num_workers"]).astype(float).mean())
        per_image = (fit.batch_seconds / images, fit.fixed_seconds / images)
        rows[key] = (fit.fixed_seconds, fit.batch_seconds, fit.r_squared, num_batches, *per_image)
    columns = ["fixed_seconds", "batch_seconds", "r_squared", "num_batches", "step_seconds", "image_seconds"]
    index = pd.MultiIndex.from_tuples(rows, names=series) if rows else pd.MultiIndex.from_arrays([[]] * len(series))
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)


def epoch_curves(study: Study) -> pd.DataFrame:
    """Loss and accuracy by epoch, indexed by `cell_keys` and `epoch`: means and intervals over seeds, as in `cells`.

    Runs that did not complete stand in only for cells in which none did; `completed` says which it is.
    """
    keys, keyed = cell_keys(study.runs), _keyed(study.runs)
    keyed["completed"] = keyed["status"] == "completed"
    stands_in = ~keyed.groupby(keys)["completed"].transform("any")
    shown = keyed.loc[keyed["completed"] | stands_in, ["run_id", "completed", *keys]]
    grouped = study.epochs[["run_id", "epoch", *CURVES]].merge(shown, on="run_id").groupby([*keys, "epoch"])
    table = pd.DataFrame({"completed": grouped["completed"].first(), "n": grouped.size()})
    return table.join(_mean_and_interval(grouped, CURVES))


def failures(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that did not complete, with status and message."""
    columns = ["run_id", "strategy", "num_workers", "local_batch", "seed", "status", "message"]
    return runs.loc[runs["status"] != "completed", columns].reset_index(drop=True)


def _told_apart(runs: pd.DataFrame) -> tuple[list[str], list[str]]:
    keyed = _keyed(runs)
    kept: list[str] = []
    mixed: list[str] = []
    for column in _settings(runs):
        if keyed[column].nunique() < 2 or _follows(keyed, column, [*kept, "strategy"]):
            continue
        lesser = column == "lr" or column not in SETTING_COLUMNS
        if lesser and _follows(keyed, column, [*kept, "strategy", "num_workers", "local_batch"]):
            mixed.append(column)
        else:
            kept.append(column)
    return kept, mixed


def _follows(keyed: pd.DataFrame, column: str, others: Sequence[str]) -> bool:
    """Whether the others' values decide the column's."""
    return bool(keyed.groupby(list(others))[column].nunique().max() <= 1)


def _settings(runs: pd.DataFrame) -> list[str]:
    return [column for column in runs.columns if column not in (*RUN_COLUMNS, *OTHER_COLUMNS)]


def _keyed(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with settings to group by: no nulls in any that is set somewhere.

    What a run never found out, such as its device, is taken to be what all others found.
    """
    keyed = runs.copy()
    for column in _settings(runs):
        values = runs[column].astype(object).where(runs[column].notna() & (runs[column] != ""))
        known = values.dropna().unique()
        if not len(known) or not values.isna().any():
            continue
        if column in _FOUND_OUT and len(known) == 1:
            keyed[column] = values.where(values.notna(), known[0])
        else:
            missing = "unknown" if column in _FOUND_OUT else "none"
            keyed[column] = [missing if pd.isna(value) else setting_text(value) for value in values]
    return keyed


def setting_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _other_statuses(statuses: pd.Series[str]) -> str:
    counts = Counter(status for status in statuses if status != "completed")
    return ", ".join(status if count == 1 else f"{count} {status}" for status, count in sorted(counts.items()))


def _mean_and_interval(grouped: DataFrameGroupBy[Any, Any], metrics: Sequence[str]) -> pd.DataFrame:
    """Mean, and half-width of the 95 % interval by Student's t with n - 1 degrees of freedom."""
    values = grouped[list(metrics)]
    half_width: pd.DataFrame = values.sem() * stdtrit(values.count() - 1, 0.975)
    return values.mean().join(half_width.add_suffix("_ci95"))
