"""Tables of the cells of a study: means and intervals over seeds, ratios between batch sizes,
speed-up, and fits of the training time.

A cell is the points that differ by seed only. `cells` is indexed by the settings that tell cells
apart, `local_batch` last. Most of the other tables have the same index. Cells that differ in
`local_batch` only are a series, which a figure draws as one curve.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.keys import cell_keys, entangled, keyed, levels
from bsweep.analysis.cell_tables.statistics import beats_chance, summarise
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.columns import heading
from bsweep.analysis.study.derived import continues, have_round_limits, trained_examples
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import evaluated_part
from bsweep.analysis.study.targets import best_scores
from bsweep.core.words import counted

METRICS = [
    "train_seconds", "images_per_second", "train_accuracy", "train_loss", "test_accuracy",
    "test_loss",
]  # fmt: skip
CURVES = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]
EXAMPLES_OF_A_UNIT = 1_000
_MIN_BATCHES_FOR_FIT = 3  # two points lie on every curve of two parameters


@cached
def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the cells of a study: means of metrics, such as training time and accuracy,
    over the seeds of each cell's completed runs. The table is indexed by `cell_keys`.

    Columns:
        `global_batch`, `learning_rate`: Those of the cell.
        `local_batches`: Those of the workers, where they are uneven; see `Study`. Different lists
            are joined by `or`.
        `threads`: The threads of a worker that computes on a CPU, unless they are in the index.
        `num_runs`: The number of runs, completed or not.
        `n`: The number of seeds of which a run completed.
        `other_statuses`: The statuses of the runs that did not complete.
        For each of `METRICS`: The mean, `<metric>_ci95` and `<metric>_points`; see `summarise`.
        `has_learned`: True if the mean test accuracy `beats_chance`; NA where the accuracy, the
            chance level or the number of test examples is not known.

    Args:
        runs: The table `Study.runs`.

    Returns:
        The table. Cells of which no run completed are in it, with `n` 0.
    """
    keys, filled = cell_keys(runs), keyed(runs)
    firsts = ["global_batch", "learning_rate"]
    if "threads" not in keys:
        filled = filled.assign(threads=filled["threads"].where(filled["device"] == "cpu"))
        firsts.append("threads")
    groups = filled.groupby(keys)
    table = groups[firsts].first()
    table["local_batches"] = groups["local_batches"].agg(_either)
    table["num_runs"] = groups.size()
    table["other_statuses"] = groups["status"].agg(_other_statuses)
    table = table.join(summarise(filled[filled["status"] == "completed"], keys, METRICS))
    answers = groups[["chance", "num_test"]].first()
    has_learned = beats_chance(table["test_accuracy"], answers["chance"], answers["num_test"])
    return table.assign(n=table["n"].fillna(0).astype("int64"), has_learned=has_learned.array)


def measured_once(study: Study) -> pd.DataFrame:
    """Return for each cell the accuracy on the test set after training, for runs that were
    evaluated on validation examples, as a mean over the seeds of the completed runs.

    Args:
        study: The study.

    Returns:
        The columns `final_test_accuracy`, `final_test_accuracy_ci95` and
        `final_test_accuracy_points`, indexed by `cell_keys`; see `summarise`. No rows if no run was
        evaluated so.
    """
    if "final_test_accuracy" not in study.runs:
        return pd.DataFrame(columns=["final_test_accuracy"])
    values = study.runs.set_index("run_id")[["final_test_accuracy"]].astype(float)
    return cell_means(study, values).drop(columns="n")


def best_medians(study: Study) -> pd.DataFrame:
    """Return for each cell the best median of three successive evaluations of the test accuracy,
    which decides whether a target is reached, as a mean over the seeds of the completed runs.

    Args:
        study: The study.

    Returns:
        The columns `best_median`, `best_median_ci95` and `best_median_points`, indexed by
        `cell_keys`; see `summarise`.
    """
    best = best_scores(study, "test_accuracy").reindex(study.runs["run_id"])
    return cell_means(study, best.to_frame("best_median")).drop(columns="n")


def by_cell(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs with the settings that tell cells apart as its index, so that all
    runs of a cell have the same index value.

    Args:
        runs: The table `Study.runs`.

    Returns:
        One row for each run.
    """
    return keyed(runs).set_index(cell_keys(runs))


def batch_ratios(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics of cells, such as the training time, divided by those of the next smaller
    measured batch, all other settings being equal.

    These are the ratios of section 3.2 of the published batch-size study. Columns: `smaller_batch`,
    `<metric>_ratio`.

    Args:
        cells: A table of `cells`.

    Returns:
        One row for each cell that has a next smaller batch, indexed like `cells`.
    """
    measured = cells[cells["n"] > 0].reset_index("local_batch")
    metrics = ["local_batch", *METRICS]
    smaller = measured.groupby(level=levels(measured))[metrics].shift(1)
    ratios = (measured[METRICS] / smaller[METRICS]).add_suffix("_ratio")
    ratios.insert(0, "smaller_batch", smaller["local_batch"])
    table = ratios.set_index(measured["local_batch"], append=True).dropna(subset="smaller_batch")
    return table.astype({"smaller_batch": "int64"})


def scaling(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up and the efficiency of cells over the smallest worker count, at equal
    local batch (weak scaling).

    A cell is left out if no cell of another worker count is equal in everything else, threads
    included; see `unequal_threads`.

    Columns:
        `base_workers`: The smallest worker count measured with everything else equal, including a
            worker's threads.
        `speedup`: Images per second over those at `base_workers`.
        `efficiency`: `speedup` over the ratio of the worker counts.

    Args:
        cells: A table of `cells`.

    Returns:
        One row for each cell that has a partner, indexed like `cells`.
    """
    is_timed = (cells["n"] > 0) & cells["images_per_second"].notna()
    measured = cells[is_timed].reset_index("num_workers")
    grouped = measured.groupby([*dict.fromkeys([*levels(measured), "threads"])], dropna=False)
    # The index is sorted, so the first row has the fewest workers.
    base = grouped[["num_workers", "images_per_second"]].transform("first")
    table = measured[["num_workers", "images_per_second"]].assign(
        base_workers=base["num_workers"],
        speedup=measured["images_per_second"] / base["images_per_second"],
    )
    table["efficiency"] = table["speedup"] * table["base_workers"] / table["num_workers"]
    partnered = grouped["num_workers"].transform("size") > 1
    paired = table[partnered].dropna(subset="speedup").set_index("num_workers", append=True)
    return paired.reorder_levels(levels(cells))


def unequal_threads(cells: pd.DataFrame) -> str:
    """Return a sentence on worker counts whose workers had unequal numbers of threads, between
    which no speed-up is given; empty if there are none.

    Args:
        cells: A table of `cells`.

    Returns:
        One sentence, or an empty text.
    """
    if "threads" not in cells:  # they are swept, and tell the cells apart
        return ""
    measured = cells.loc[cells["n"] > 0, ["threads"]].reset_index("num_workers")
    series = measured.groupby(level=levels(measured))["threads"]
    mixed = measured[series.transform("nunique") > 1]
    if mixed.empty:
        return ""
    clauses: list[str] = []
    for workers, threads in mixed.dropna().groupby("num_workers")["threads"]:
        counts = " or ".join(f"{count:.0f}" for count in sorted(threads.unique()))
        number = counts if clauses else counted(counts, "thread")
        clauses.append(f"{counted(workers, 'worker')} had {number}{' each' * (workers != 1)}")
    between = "" if scaling(cells).empty else " between unequal threads"
    return f"No speed-up{between}: {', '.join(clauses)}."


def seconds_fits(runs: pd.DataFrame) -> pd.DataFrame:
    """Return fits of a + c / local batch to training times, one for each series of three or more
    cells that differ in their local batch only.

    A fit takes all timed completed runs of a series. The table is indexed by the series.

    Columns:
        `fixed_seconds`: a, which does not depend on the batch size.
        `batch_seconds`: c, the fixed cost of a pass times the examples that a worker trains on.
        `r_squared`: That of the fit.
        `lowest_residual` and `highest_residual`: Measured less fitted times, as fractions of the
            measured times.
        `num_batches`: The number of batch sizes.
        `step_seconds`: The fixed cost of one forward and backward pass that follows from c.
        `image_seconds`: The time that each image adds to a pass.

    Args:
        runs: The table `Study.runs`.

    Returns:
        The table, one row for each series. It is empty if no series has three batch sizes.
    """
    filled, series = keyed(runs), cell_keys(runs)[:-1]
    # Whole seconds of a clock may round a short time down to 0.
    timed = filled[(filled["status"] == "completed") & (filled["train_seconds"] > 0)]
    fits = [
        (*key, *_fit_seconds(group))
        for key, group in timed.groupby(series)
        if group["local_batch"].nunique() >= _MIN_BATCHES_FOR_FIT
    ]
    return pd.DataFrame(fits, columns=[*series, *_OF_FIT]).set_index(series)


_OF_FIT = (
    "fixed_seconds", "batch_seconds", "r_squared", "lowest_residual", "highest_residual",
    "num_batches", "step_seconds", "image_seconds",
)  # fmt: skip


def _fit_seconds(runs: pd.DataFrame) -> tuple[float, ...]:
    """Return the columns of `seconds_fits` for the runs of one series, by least squares; the
    coefficient of determination is NaN if all times are equal.
    """
    batches, seconds = (runs[name].to_numpy(float) for name in ("local_batch", "train_seconds"))
    slope, intercept = np.polyfit(1 / batches, seconds, 1)
    unexplained = float(np.sum((seconds - intercept - slope * (1 / batches)) ** 2))
    total = float(np.sum((seconds - seconds.mean()) ** 2))
    missed = 1 - (intercept + slope / batches) / seconds
    images = (trained_examples(runs) / runs["num_workers"]).mean()
    return (
        intercept, slope, 1 - unexplained / total if total else np.nan, missed.min(), missed.max(),
        len({*batches}), slope / images, intercept / images,
    )  # fmt: skip


@cached
def step_times(study: Study) -> pd.DataFrame:
    """Return the seconds of a training step and of its parts, such as computing and exchange, as
    means over the completed runs of each cell.

    If workers take unequal steps, seconds and bytes are for as many examples as `step_unit` says,
    instead of a step. Values that were not measured are NaN.

    Columns:
        `n`: The number of seeds.
        `total_seconds`: The time of a step, with `total_seconds_ci95`; see `summarise`.
        `compute_seconds`: The rest after the other parts.
        `codec_seconds`: NaN without a codec, and where its time was not recorded.
        `exposed_exchange_seconds`: The exchange that computing did not hide. Where the codec's time
            was not recorded, it is part of this.
        `wait_seconds`: The mean over workers.
        `sent_bytes`: The bytes that a worker sends, the mean over workers.
        `sent_of_ring`: These bytes over `ring_bytes`; NaN if workers take unequal steps.

    Args:
        study: The study.

    Returns:
        The table, indexed by `cell_keys`.
    """
    unit = step_unit(study)
    times = run_steps(study, unit)
    of_ring = times["sent_bytes"] / ring_bytes(study.runs) if unit == "step" else np.nan
    times = times[_PARTS].assign(sent_of_ring=of_ring)
    means = cell_means(study, times.dropna(subset="total_seconds"))
    return means[["n", *times, "total_seconds_ci95"]]


def step_parts(study: Study) -> pd.DataFrame:
    """Return for each run and epoch the mean seconds and sent bytes of a training step and the
    seconds of its parts.

    The columns are those of `step_times` except `n` and `sent_of_ring`.

    Args:
        study: The study.

    Returns:
        The table, indexed by `run_id` and `epoch`.
    """
    amounts = _amounts_of_epochs(study, step_unit(study))
    return _per_step(amounts.set_index(["run_id", "epoch"]))[_PARTS]


@cached
def run_steps(study: Study, unit: str = "step") -> pd.DataFrame:
    """Return for each run the mean seconds and sent bytes of a training step and the seconds of its
    parts. An amount is NaN if an epoch of the run did not record it. Of a run that began at another
    run's checkpoint, only its own steps count, and only their total is known, because an epoch may
    have steps of both runs.

    Columns:
        Those of `step_parts`. In the unit `step`, the total is over all steps until the last
            evaluation, also if the run ended within an epoch.
        `exchange_seconds`: The exchange, hidden by computing or not.
        `exposed_seconds`: The exchange that computing did not hide, and the waiting. A waiting that
            was not measured counts as none here, but makes `compute_seconds` NaN.
        `exchange_steps`: The messages that followed one another.

    Args:
        study: The study.
        unit: `step`, whatever the workers' numbers of local steps are, or that of `step_unit`.

    Returns:
        The table, indexed by `run_id`.
    """
    epochs = _amounts_of_epochs(study, unit).groupby("run_id")[_AMOUNTS]
    is_known = epochs.count().eq(epochs.size(), axis="index")
    times = _per_step(epochs.sum().where(is_known))
    branches = study.runs[continues(study.runs)].set_index("run_id")
    times = times[~times.index.isin(branches.index)]
    if unit != "step":
        return times
    ends = study.evaluations.groupby("run_id")[[*_OF_BRANCH.values()]].last().astype(float)
    starts = branches.reindex(columns=[*_OF_BRANCH]).rename(columns=_OF_BRANCH).astype(float)
    amounts = ends - starts.reindex(ends.index, fill_value=0.0)
    total = amounts["train_seconds"] / amounts["num_steps"].where(amounts["num_steps"] > 0)
    times = times.reindex(times.index.union(total.index))
    return times.assign(total_seconds=total.fillna(times["total_seconds"]))


_OF_BRANCH = {"branch_seconds": "train_seconds", "branch_steps": "num_steps"}
_PARTS = [
    "total_seconds", "compute_seconds", "codec_seconds", "exposed_exchange_seconds",
    "wait_seconds", "sent_bytes",
]  # fmt: skip
_AMOUNTS = [
    "train_seconds", "codec_seconds", "exposed_exchange_seconds", "wait_seconds", "sent_bytes",
    "exchange_seconds", "exchange_steps", "num_steps",
]  # fmt: skip


def _amounts_of_epochs(study: Study, unit: str) -> pd.DataFrame:
    """Return for each run and epoch its steps (or examples in the given unit), its seconds and
    those of their parts, and the bytes that a worker sent.
    """
    epochs = study.epochs.reindex(columns=["run_id", "epoch", *_AMOUNTS])
    exposed = epochs["exposed_exchange_seconds"].fillna(epochs["exchange_seconds"])
    epochs = epochs.assign(exposed_exchange_seconds=exposed).astype(dict.fromkeys(_AMOUNTS, float))
    if unit != "step":
        epochs["num_steps"] = trained_examples(study.epochs) / EXAMPLES_OF_A_UNIT
    return epochs


def _per_step(amounts: pd.DataFrame) -> pd.DataFrame:
    """Return amounts for each step, with what computing did not hide of them together, and with the
    rest of a step's time, which is computing.
    """
    times = amounts.drop(columns="num_steps").div(amounts["num_steps"], axis="index")
    times = times.rename(columns={"train_seconds": "total_seconds"})
    exchange, waiting = times["exposed_exchange_seconds"], times["wait_seconds"]
    spent = exchange + waiting + times["codec_seconds"].fillna(0)
    return times.assign(
        exposed_seconds=exchange + waiting.fillna(0),
        # The parts come from different clocks, so the rest can be slightly negative.
        compute_seconds=(times["total_seconds"] - spent).clip(lower=0),
    )


def ring_bytes(runs: pd.DataFrame) -> pd.Series[float]:
    """Return for each run the bytes that a worker would send to sum a gradient by a ring
    all-reduce. They are 2 (p - 1) / p n for p workers and n bytes of gradient.

    The result is indexed by `run_id`. The value is NaN for one worker and for an unknown number of
    parameters. No all-reduce of the whole gradient among the workers alone sends less (Patarasuk
    and Yuan, 2009).
    """
    known = runs.set_index("run_id").reindex(columns=["num_workers", "num_parameters", "precision"])
    element_bytes = known["precision"].map({"fp64": 8}).fillna(4)
    workers = known["num_workers"].where(known["num_workers"] > 1)
    return 2 * (workers - 1) / workers * known["num_parameters"].astype(float) * element_bytes


def step_unit(study: Study) -> str:
    """Return the unit of training in the table of step times: `step`, or `1,000 examples` if the
    workers of some run take unequal numbers of local steps in a round.

    Args:
        study: The study.

    Returns:
        The unit in words.
    """
    steps = study.rounds.groupby(["run_id", "round"])["local_steps"].nunique()
    return f"{EXAMPLES_OF_A_UNIT:,} examples" if (steps > 1).any() else "step"


@cached
def server_loads(study: Study) -> pd.DataFrame:
    """Return how evenly parameter servers share their work, one row for each cell that has servers:
    means over the cell's completed runs.

    Columns: `n`; `num_servers`; `largest_share`, of the parameters; `busiest_load`, of the training
    time; `queue_seconds`, the mean seconds that a push waits for its server; `max_lead`, in clocks.

    Args:
        study: The study.

    Returns:
        The table, indexed by `cell_keys`; it is empty for a study without parameter servers.
    """
    grouped = study.servers.groupby("run_id")
    loads = pd.DataFrame({
        "num_servers": grouped.size(),
        "largest_share": grouped["share"].max(),
        "busiest_load": grouped["load"].max(),
        "queue_seconds": grouped["queue_seconds"].sum(min_count=1) / grouped["pushes"].sum(),
        "max_lead": grouped["max_lead"].max(),
    })  # fmt: skip
    return cell_means(study, loads)[["n", *loads]]


def server_shares(study: Study) -> pd.DataFrame:
    """Return the fraction of the parameters that each parameter server holds, one row for each cell
    that has servers and one column for each server: means over the cell's completed runs.

    The fraction is NaN where a cell has no such server.

    Args:
        study: The study.

    Returns:
        The fractions, indexed by `cell_keys`.
    """
    shares = study.servers.pivot(index="run_id", columns="server", values="share")
    return cell_means(study, shares.astype(float))[[*shares]]


@cached
def epoch_curves(study: Study) -> pd.DataFrame:
    """Return the losses and the accuracies of cells by epoch, as means and intervals over seeds.

    The table is indexed by `cell_keys` and `epoch`. Runs that did not complete are used only for
    cells in which no run completed; the column `completed` is then False. Runs that may end with a
    round are left out, because their last epoch may be a fragment.

    Args:
        study: The study.

    Returns:
        The table, with `completed`, the metrics and their intervals.
    """
    keys = cell_keys(study.runs)
    runs = keyed(study.runs)[~have_round_limits(study.runs)]
    runs["completed"] = runs["status"] == "completed"
    stands_in = ~runs.groupby(keys)["completed"].transform("any")
    shown = runs.loc[runs["completed"] | stands_in, ["run_id", "seed", "completed", *keys]]
    epochs = study.epochs[["run_id", "epoch", *CURVES]].merge(shown, on="run_id")
    completed = epochs.groupby([*keys, "epoch"])[["completed"]].first()
    return completed.join(summarise(epochs, [*keys, "epoch"], CURVES))


def failures(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the runs that did not complete, with their status and message.

    Args:
        runs: The table `Study.runs`.

    Returns:
        One row for each such run, with a plain index.
    """
    columns = ["run_id", "strategy", "num_workers", "local_batch", "seed", "status", "message"]
    return runs.loc[runs["status"] != "completed", columns].reset_index(drop=True)


def cell_warnings(study: Study) -> list[str]:
    """Return warnings for a reader of a study's tables and figures: on settings that change along
    with the batch size or the workers, on repeated seeds, and on runs evaluated on different
    examples.

    Args:
        study: The study.

    Returns:
        One sentence for each element.
    """
    lines: list[str] = [
        f"{_CHANGING.get(name) or f'{heading(name)} changes'} together with the batch size or the "
        "number of workers, so curves show both effects."
        for name in entangled(study.runs)
    ]
    completed = by_cell(study.runs[study.runs["status"] == "completed"])
    if repeated := completed.set_index("seed", append=True).index.duplicated().sum():
        lines.append(
            f"Runs that repeat a seed of the same cell: {repeated}. They are averaged first, "
            "because n and the intervals count seeds."
        )
    if " " in evaluated_part(study.runs):
        lines.append(
            "Some runs were evaluated on validation examples (data.validation_share), others on "
            "the test set: their accuracies and losses cannot be compared."
        )
    return lines


_CHANGING = {
    "threads": "The number of threads of a worker changes",
    "lr": "The base learning rate changes",
}


def cell_means(study: Study, by_run: pd.DataFrame) -> pd.DataFrame:
    """Return for each cell what `summarise` says of the columns of `by_run` over the seeds of the
    cell's completed runs; `by_run` is indexed by `run_id`, and by further levels, such as `epoch`,
    if the means are to be indexed by them too.
    """
    filled, keys = keyed(study.runs), cell_keys(study.runs)
    completed = filled.loc[filled["status"] == "completed", ["run_id", "seed", *keys]]
    further = [name for name in levels(by_run) if name != "run_id"]
    rows = completed.merge(by_run.reset_index(further), on="run_id")
    return summarise(rows, [*keys, *further], by_run.columns)


def _either(texts: pd.Series[str]) -> str:
    return " or ".join(dict.fromkeys(text for text in texts if text))


def _other_statuses(statuses: pd.Series[str]) -> str:
    counts = sorted(Counter(status for status in statuses if status != "completed").items())
    return ", ".join(status if count == 1 else f"{count} {status}" for status, count in counts)
