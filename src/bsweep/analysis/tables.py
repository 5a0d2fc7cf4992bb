"""Tables over the cells of a study: means and intervals, the paper's ratios, speed-up, the fit over
batch sizes.

A cell is what repeats over seeds. `cells` is indexed by what tells cells apart, `local_batch` last,
and the other tables are made from it and indexed alike. Cells that differ in `local_batch` alone
are a series: one curve.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bsweep.analysis.derived import of_rounds
from bsweep.analysis.keys import cell_keys, entangled, keyed, levels
from bsweep.analysis.loaded import Study
from bsweep.analysis.once import once
from bsweep.analysis.statistics import beats_chance, over_seeds, seed_points
from bsweep.core.words import counted

METRICS = [
    "train_seconds",
    "images_per_second",
    "train_accuracy",
    "train_loss",
    "test_accuracy",
    "test_loss",
]
CURVES = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]
EXAMPLES_OF_A_UNIT = 1_000
_MIN_BATCHES_FOR_FIT = 3  # two points lie on every curve of two parameters


@dataclass(frozen=True)
class Line:
    """`y = intercept + slope * x`. `r_squared` is NaN if all y are equal."""

    intercept: float
    slope: float
    r_squared: float


@once
def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, indexed by `cell_keys`: means over the seeds of its completed runs.

    Columns: `global_batch`; `learning_rate` and, where they are uneven, `local_batches` (see
    `Study`); `threads` of a worker that computes on a CPU; `num_runs`; `n`, the seeds of which
    a run completed; `other_statuses`, of the runs that did not; of `METRICS` the mean,
    `<metric>_ci95` and `<metric>_points`, see `over_seeds` and `seed_points`; `has_learned`,
    whether the mean test accuracy `beats_chance`, NA where classes or test examples are not known.
    """
    keys, known = cell_keys(runs), keyed(runs)
    grouped = known.groupby(keys)
    completed = known[known["status"] == "completed"]
    table = grouped[["global_batch", "learning_rate"]].first()
    table["threads"] = (
        known["threads"]
        .where(known["device"] == "cpu")
        .groupby([known[name] for name in keys])
        .first()
    )
    table["local_batches"] = grouped["local_batches"].agg(_either)
    table["num_runs"], table["other_statuses"] = (
        grouped.size(),
        grouped["status"].agg(_other_statuses),
    )
    table = table.join(over_seeds(completed, keys, METRICS)).join(
        seed_points(completed, keys, METRICS)
    )
    table["n"] = table["n"].fillna(0).astype("int64")
    answers = grouped[["num_classes", "num_test"]].first()
    table["has_learned"] = beats_chance(
        table["test_accuracy"], answers["num_classes"], answers["num_test"]
    ).array
    return table


def by_cell(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs themselves, indexed as `cells`."""
    return keyed(runs).set_index(cell_keys(runs))


def batch_ratios(cells: pd.DataFrame) -> pd.DataFrame:
    """Each cell's metrics divided by those of the next smaller batch measured, everything else
    being equal.

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

    `speedup` is images per second over those of the smallest worker count measured with everything
    else equal, threads of a worker included: `base_workers`; `efficiency` is that over the ratio of
    worker counts. Cells with no such partner are left out; see `unequal_threads`.
    """
    is_timed = (cells["n"] > 0) & cells["images_per_second"].notna()
    measured = cells.loc[is_timed, ["threads", "images_per_second"]].reset_index("num_workers")
    grouped = measured.groupby([*levels(measured), "threads"], dropna=False)
    # The index is sorted: the fewest workers.
    base = grouped[["num_workers", "images_per_second"]].transform("first")
    table = measured.drop(columns="threads").assign(
        base_workers=base["num_workers"],
        speedup=measured["images_per_second"] / base["images_per_second"],
    )
    table["efficiency"] = table["speedup"] * table["base_workers"] / table["num_workers"]
    partnered = grouped["num_workers"].transform("size") > 1
    return (
        table[partnered]
        .dropna(subset="speedup")
        .set_index("num_workers", append=True)
        .reorder_levels(levels(cells))
    )


def unequal_threads(cells: pd.DataFrame) -> str:
    """Why `scaling` leaves out cells of other worker counts, as a sentence; empty if threads are no
    reason.
    """
    measured = cells.loc[cells["n"] > 0, ["threads"]].reset_index("num_workers")
    series = measured.groupby(level=levels(measured))["threads"]
    mixed = measured[series.transform("nunique") > 1]
    if mixed.empty:
        return ""
    had: list[str] = []
    for workers in sorted(map(int, mixed["num_workers"].unique())):
        threads = mixed.loc[mixed["num_workers"] == workers, "threads"].dropna()
        counts = " or ".join(f"{count:.0f}" for count in sorted(threads.unique()))
        threads_of = counts if had else counted(counts, "thread")
        had.append(f"{counted(workers, 'worker')} had {threads_of}{' each' * (workers != 1)}")
    where = "" if scaling(cells).empty else " between unequal threads"
    return f"No speed-up{where}: {', '.join(had)}."


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    """The least-squares line through points at two places or more, `x` and `y` of shape (n,)."""
    places, values = np.asarray(x, float), np.asarray(y, float)
    slope, intercept = np.polyfit(places, values, 1)
    unexplained = float(np.sum((values - intercept - slope * places) ** 2))
    total = float(np.sum((values - values.mean()) ** 2))
    return Line(float(intercept), float(slope), 1 - unexplained / total if total else float("nan"))


def seconds_fits(runs: pd.DataFrame) -> pd.DataFrame:
    """Fit a + c / local batch to the training time of every completed run of each series with three
    sizes or more.

    Indexed by the series. Columns: `fixed_seconds`, a, which does not depend on the batch size;
    `batch_seconds`, c, the fixed cost of a step times the examples that a worker trains on;
    `r_squared`; `lowest_residual` and `highest_residual`, times less what the fit says, as
    fractions of the times; `num_batches`; `step_seconds`, the fixed cost of one forward and
    backward pass that c amounts to; `image_seconds`, what each image adds to it.
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
        missed = 1 - (line.intercept + line.slope / group["local_batch"]) / group["train_seconds"]
        images = float(
            (group["images_per_second"] * group["train_seconds"] / group["num_workers"]).mean()
        )
        per_image = (line.slope / images, line.intercept / images)
        rows[key] = (
            line.intercept, line.slope, line.r_squared, missed.min(), missed.max(), num_batches,
            *per_image,
        )  # fmt: skip
    columns = [
        "fixed_seconds", "batch_seconds", "r_squared", "lowest_residual", "highest_residual",
        "num_batches",
        "step_seconds", "image_seconds",
    ]  # fmt: skip
    index = (
        pd.MultiIndex.from_tuples(rows, names=series)
        if rows
        else pd.MultiIndex.from_arrays([[]] * len(series))
    )
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)


@once
def step_times(study: Study) -> pd.DataFrame:
    """Seconds of a training step by what they went into, one row a cell: means over its completed
    runs.

    Columns: `n`, `total_seconds`, `compute_seconds` (the rest), `codec_seconds` (NaN without one,
    and where it computes beside the steps), `exposed_exchange_seconds` (what computing did not
    hide; with what the codec computes where that is beside the steps, and in older records),
    `wait_seconds` (a worker's mean), `sent_bytes` (of a worker), `sent_of_ring` (these over
    `ring_bytes`); NaN where not measured. Where workers take unequal steps, all are for as many
    examples as `step_unit` says.
    """
    return cell_means(study, step_seconds(study).dropna(subset="total_seconds"))


def step_seconds(study: Study) -> pd.DataFrame:
    """The columns of `step_times` by `run_id`."""
    epochs, runs = study.epochs, study.runs.reindex(columns=["run_id", "strategy.overlap"])
    exposed = epochs["exposed_exchange_seconds"].fillna(epochs["exchange_seconds"])
    # Where rounds overlap, workers compute while the codec does, and wait for it as a part of the
    # exchange.
    is_beside = epochs["run_id"].isin(runs.loc[runs["strategy.overlap"].eq(True), "run_id"])
    parts = epochs[["run_id", "train_seconds", "wait_seconds", "sent_bytes"]].assign(
        codec_seconds=epochs["codec_seconds"].mask(is_beside),
        exposed_exchange_seconds=exposed,
        num_steps=epochs["num_steps"]
        if step_unit(study) == "step"
        else _examples(epochs) / EXAMPLES_OF_A_UNIT,
    )
    totals = (
        parts.astype({"sent_bytes": float, "num_steps": float}).groupby("run_id").sum(skipna=False)
    )
    times = totals.div(totals.pop("num_steps"), axis="index").rename(
        columns={"train_seconds": "total_seconds"}
    )
    spent = (
        times["exposed_exchange_seconds"] + times["wait_seconds"] + times["codec_seconds"].fillna(0)
    )
    # The clocks are not the same.
    times.insert(1, "compute_seconds", (times["total_seconds"] - spent).clip(lower=0))
    order = [
        "total_seconds",
        "compute_seconds",
        "codec_seconds",
        "exposed_exchange_seconds",
        "wait_seconds",
    ]
    times["sent_of_ring"] = (
        times["sent_bytes"] / ring_bytes(study.runs) if step_unit(study) == "step" else np.nan
    )
    return times[[*order, "sent_bytes", "sent_of_ring"]]


def ring_bytes(runs: pd.DataFrame) -> pd.Series[float]:
    """2 (p - 1) / p n by `run_id`: what each of p workers sends where a ring sums n bytes of
    gradient; NaN for one.

    No all-reduce of the whole gradient among workers alone sends less (Patarasuk and Yuan, 2009).
    """
    known = runs.set_index("run_id").reindex(columns=["num_workers", "num_parameters", "precision"])
    element_bytes = known["precision"].map({"fp64": 8}).fillna(4)
    workers = known["num_workers"].where(known["num_workers"] > 1)
    return 2 * (workers - 1) / workers * known["num_parameters"].astype(float) * element_bytes


def step_unit(study: Study) -> str:
    """What `step_times` are of: a `step`, or `1,000 examples` where a run's workers take unequal
    local steps.
    """
    steps = study.rounds.groupby(["run_id", "round"])["local_steps"].nunique()
    return f"{EXAMPLES_OF_A_UNIT:,} examples" if (steps > 1).any() else "step"


def _examples(epochs: pd.DataFrame) -> pd.Series[float]:
    return epochs["images_per_second"] * epochs["train_seconds"]


@once
def server_loads(study: Study) -> pd.DataFrame:
    """How evenly parameter servers share their work, one row a cell: means over its completed runs.

    Columns: `n`, `num_servers`, `largest_share` (of the parameters), `busiest_load` (of the
    training time), `queue_seconds` (that a push waits for its server), `max_lead` (clocks).
    """
    grouped = study.servers.groupby("run_id")
    loads = pd.DataFrame({
        "num_servers": grouped.size(),
        "largest_share": grouped["share"].max(),
        "busiest_load": grouped["load"].max(),
        "queue_seconds": grouped["queue_seconds"].sum(min_count=1) / grouped["pushes"].sum(),
        "max_lead": grouped["max_lead"].max(),
    })  # fmt: skip
    return cell_means(study, loads)


def server_shares(study: Study) -> pd.DataFrame:
    """The part of the parameters on each server, one row a cell, one column a server; NaN for no
    such server.
    """
    shares = study.servers.pivot(index="run_id", columns="server", values="share")
    return cell_means(study, shares.astype(float)).drop(columns="n")


@once
def epoch_curves(study: Study) -> pd.DataFrame:
    """Loss and accuracy by epoch, indexed by `cell_keys` and `epoch`: means and intervals over
    seeds, as in `cells`.

    Runs that did not complete stand in only for cells in which none did; `completed` says which it
    is. Runs that end with a round are left out: their last epoch is a fragment.
    """
    keys, known = cell_keys(study.runs), keyed(study.runs)
    known = known[~of_rounds(study.runs)]
    known["completed"] = known["status"] == "completed"
    stands_in = ~known.groupby(keys)["completed"].transform("any")
    shown = known.loc[known["completed"] | stands_in, ["run_id", "seed", "completed", *keys]]
    epochs, by = (
        study.epochs[["run_id", "epoch", *CURVES]].merge(shown, on="run_id"),
        [*keys, "epoch"],
    )
    return pd.DataFrame({"completed": epochs.groupby(by)["completed"].first()}).join(
        over_seeds(epochs, by, CURVES)
    )


def failures(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that did not complete, with status and message."""
    columns = ["run_id", "strategy", "num_workers", "local_batch", "seed", "status", "message"]
    return runs.loc[runs["status"] != "completed", columns].reset_index(drop=True)


def caveats(study: Study) -> list[str]:
    """What a reader of a study's tables and figures should know of its cells, in sentences."""
    changing = [_CHANGING.get(name, f"{name} changes") for name in entangled(study.runs)]
    lines = [
        f"{what} along with the batch size or the workers: curves show both effects."
        for what in changing
    ]
    completed = study.runs["status"] == "completed"
    repeated = int(
        by_cell(study.runs[completed]).set_index("seed", append=True).index.duplicated().sum()
    )
    if repeated:
        lines.append(
            f"{repeated} {'run repeats' if repeated == 1 else 'runs repeat'} a seed of the same "
            "cell: repetitions are averaged first, for n and intervals are over seeds."
        )
    return lines


_CHANGING = {"threads": "The threads of a worker change", "lr": "The base learning rate changes"}


def cell_means(study: Study, by_run: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds of the completed runs of each cell, of a table indexed by `run_id`."""
    known, keys = keyed(study.runs), cell_keys(study.runs)
    joined = known.loc[known["status"] == "completed", ["run_id", "seed", *keys]].merge(
        by_run, on="run_id"
    )
    return over_seeds(joined, keys, by_run.columns)[["n", *by_run]]


def _either(texts: pd.Series[str]) -> str:
    return " or ".join(dict.fromkeys(text for text in texts if text))


def _other_statuses(statuses: pd.Series[str]) -> str:
    counts = Counter(status for status in statuses if status != "completed")
    return ", ".join(
        status if count == 1 else f"{count} {status}" for status, count in sorted(counts.items())
    )
