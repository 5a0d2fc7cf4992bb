"""Tables of studies with rounds: of the idle seconds of uneven workers, and of the training losses
that cells reach in equal time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bsweep.analysis.cell_tables.keys import ALLOCATION_LISTS, cell_keys, chosen, keyed, levels
from bsweep.analysis.cell_tables.statistics import summarise
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study

# In the order of a table: the baseline, published methods A, B and C, then the other allocations.
ALLOCATIONS = (
    "uniform", "batch_by_flops", "batch_by_memory", "steps_by_flops", "steps_by_speed", "hybrid",
    "network_aware",
)  # fmt: skip
NODE = "node {}: idle_seconds"  # a column of `idle_table`; nodes count from 1, as in the paper


def round_times(study: Study) -> pd.DataFrame:
    """Return a table of the training loss, the examples and the seconds of each timed round,
    indexed by `run_id` and `round`.

    Columns:
        `train_loss` and `num_examples`: Those of the round.
        `seconds`: From the first worker's begin to the last worker's end, or to the begin of the
            next round if the exchange overlaps it.
        `elapsed_seconds`: The sum of `seconds` up to the round's end, without evaluations between
            rounds.
        `midpoint_seconds`: The same up to the round's middle.
        `worker_seconds`, `idle_seconds` and `exchange_seconds`: Sums over the workers.

    Args:
        study: The study.

    Returns:
        The table. All times are in seconds.
    """
    spent = ["began_seconds", "compute_seconds", "idle_seconds", "exchange_seconds"]
    rounds = _timed(study)
    grouped = rounds.assign(ended_seconds=rounds[spent].sum(axis=1)).groupby(["run_id", "round"])
    table = grouped[["train_loss", "num_examples"]].first()
    began, ended = grouped["began_seconds"].min(), grouped["ended_seconds"].max()
    next_began = began.groupby(level="run_id").shift(-1)
    table["seconds"] = np.fmin(ended, next_began) - began
    table["elapsed_seconds"] = table["seconds"].groupby(level="run_id").cumsum()
    table["midpoint_seconds"] = table["elapsed_seconds"] - table["seconds"] / 2
    table["worker_seconds"] = table["seconds"] * grouped.size()
    return table.join(grouped[["idle_seconds", "exchange_seconds"]].sum())


def _timed(study: Study) -> pd.DataFrame:
    """Return the rows of a study's table of rounds (one for each run, round and worker) that have
    recorded times.
    """
    return study.rounds.dropna(subset="compute_seconds")


@cached
def idle_table(study: Study) -> pd.DataFrame:
    """Return the idle seconds of each worker and of all workers together, as means over those
    completed runs of a cell that recorded rounds.

    The table has the form of table 3 of the paper on uneven GPUs, which calls a worker a node.
    Rounds that the end of an epoch cuts short do not count if the run has whole ones. The baseline
    of a cell is the allocation `uniform` without lists, everything else being equal. Without a
    baseline `change` is NaN.

    Columns:
        `n`: The number of seeds.
        `rounds`: The rounds of a run.
        A column `NODE` for each worker, and `idle_seconds`, their total: Each with its interval
            `<name>_ci95`, summed over the rounds.
        `idle_seconds_points`: The totals by seed.
        `change`: The change of the total of one round against the baseline as a fraction, from
            runs of equal seed if there are any, with `change_ci95`.
        `idle_seconds_per_round`: The total of one round.
        `idle_share` and `exchange_share`: Fractions of the workers' time.
        `examples_per_second`, and `tokens_per_second` for text.

    Args:
        study: The study.

    Returns:
        The table, indexed by `cell_keys`; it is empty for a study without rounds.
    """
    runs, keys = _by_run(study), cell_keys(study.runs)
    idle = [*node_columns(runs), "idle_seconds"]
    shares = [
        "idle_seconds_per_round", "idle_share", "exchange_share", "examples_per_second",
        "tokens_per_second",
    ]  # fmt: skip
    groups, changes = runs.groupby(keys), ["change", "change_ci95"]
    table = summarise(runs, keys, ["rounds", *idle, *shares])
    rows = [_change(cell, runs) for _, cell in groups]
    table = table.join(pd.DataFrame(rows, table.index, changes, dtype=float))
    columns = ["n", "rounds", *idle, *(f"{name}_ci95" for name in idle), *changes, *shares]
    return _in_order(table[[*columns, "idle_seconds_points"]], groups["allocation"].first())


def node_columns(table: pd.DataFrame) -> list[str]:
    """Return the names of those columns of a table of idle times that each hold one worker's idle
    seconds, such as `node 1: idle_seconds`.

    Args:
        table: A table of `idle_table`.

    Returns:
        The names, without those of intervals.
    """
    names = [str(name) for name in table if str(name).startswith("node ")]
    return [name for name in names if not name.endswith("_ci95")]


@cached
def loss_by_time(study: Study) -> pd.DataFrame:
    """Return the training loss of cells by elapsed training time, as means and intervals over
    seeds.

    The table is indexed by `cell_keys` and `elapsed_seconds`. A round's loss is a mean over the
    round, so it is placed at the round's midpoint in time. A run's loss is interpolated between
    these midpoints, over the time that all runs of the cell cover, at as many times as the run with
    the fewest rounds has rounds.

    Args:
        study: The study.

    Returns:
        The table with the columns `n`, `train_loss` and `train_loss_ci95`.
    """
    points = []
    for curves in _loss_curves(study):
        first = max(curve["midpoint_seconds"].iloc[0] for curve in curves)
        last = min(curve["midpoint_seconds"].iloc[-1] for curve in curves)
        times = np.linspace(first, last, min(map(len, curves)))
        points += [_at(curve, times) for curve in curves]
    keys = [*cell_keys(study.runs), "elapsed_seconds"]
    table = pd.concat(points) if points else pd.DataFrame(columns=[*keys, "seed", "train_loss"])
    return summarise(table, keys, ["train_loss"]).drop(columns="train_loss_points")


@cached
def equal_time_losses(study: Study) -> pd.DataFrame:
    """Return the training losses of cells at one elapsed training time, which is the same for all
    cells that are compared with each other.

    The table is indexed by `cell_keys`. Cells that differ in the variant only are compared. The
    time is the last one at which the loss of all compared runs is known: the earliest midpoint of a
    last round, half a round before the shortest run ended.

    Columns: `n`; `elapsed_seconds`, that time; `num_examples` trained on until then; `train_loss`
    with its interval and points, interpolated between the midpoints of rounds, and NaN if the first
    midpoint is later.

    Args:
        study: The study.

    Returns:
        The table; it is empty for a study without rounds.
    """
    keys, amounts = cell_keys(study.runs), ["elapsed_seconds", "num_examples", "train_loss"]
    others = [name for name in keys if name != "variant"]
    curves = [curve for of_cell in _loss_curves(study) for curve in of_cell]
    columns = ["n", *amounts, "train_loss_ci95", "train_loss_points"]
    if not curves:
        return summarise(pd.DataFrame(columns=[*keys, "seed", *amounts]), keys, amounts)[columns]
    ends = pd.concat([curve[[*others, "midpoint_seconds"]].iloc[-1:] for curve in curves])
    shortest = ends.groupby(others)["midpoint_seconds"].transform("min")
    table = pd.concat(map(_at, curves, shortest.to_numpy()[:, None]))
    allocations = table.groupby(keys)["allocation"].first()
    return _in_order(summarise(table, keys, amounts)[columns], allocations)


_LENGTH = "data.sequence_length"


@cached
def _by_run(study: Study) -> pd.DataFrame:
    """Return one row for each completed run that recorded rounds, with the settings of its cell and
    its idle and exchange times. Runs that differ in allocation and seed only have the same number
    in the column `everything_else`.
    """
    runs = study.runs
    alike = runs.drop(columns=[name for name in runs if str(name).startswith("allocation")])
    asked = chosen(runs)
    lists = [name for name in ALLOCATION_LISTS if name in asked]
    filled = keyed(runs).assign(
        everything_else=keyed(alike).groupby(cell_keys(alike)).ngroup(),
        is_baseline=(asked["allocation"] == "uniform") & asked[lists].isna().all(axis="columns"),
    )
    times, rounds = round_times(study), _timed(study)
    # Totals must not depend on where epochs end: cut rounds count only where a run has no others.
    counts = rounds["is_whole"] | ~rounds.groupby("run_id")["is_whole"].transform("any")
    rounds = rounds[counts]
    times = times.loc[pd.MultiIndex.from_frame(rounds[["run_id", "round"]].drop_duplicates())]
    grouped = times.groupby(level="run_id")
    amounts = ["num_examples", "seconds", "worker_seconds", "idle_seconds", "exchange_seconds"]
    sums, num_rounds = grouped[amounts].sum(), grouped.size()
    by_run = pd.DataFrame({
        "rounds": num_rounds,
        "idle_seconds": sums["idle_seconds"],
        "idle_share": sums["idle_seconds"] / sums["worker_seconds"],
        "exchange_share": sums["exchange_seconds"] / sums["worker_seconds"],
        "examples_per_second": sums["num_examples"] / sums["seconds"],
        "idle_seconds_per_round": sums["idle_seconds"] / num_rounds,
    })  # fmt: skip
    settings = runs.set_index("run_id").reindex(by_run.index, columns=[_LENGTH]).astype(float)
    by_run["tokens_per_second"] = by_run["examples_per_second"] * settings[_LENGTH]
    of_nodes = rounds.groupby(["run_id", "worker"])["idle_seconds"].sum().unstack("worker")
    by_run = by_run.join(of_nodes.rename(columns=lambda worker: NODE.format(worker + 1)))
    columns = ["run_id", "seed", "everything_else", "allocation", "is_baseline", *cell_keys(runs)]
    return filled.loc[filled["status"] == "completed", columns].merge(by_run, on="run_id")


def _change(cell: pd.DataFrame, runs: pd.DataFrame) -> tuple[float, float]:
    """Return by what fraction the idle seconds of a cell's rounds differ from those of the baseline
    (otherwise equal cells with the allocation `uniform` without lists), and half the width of this
    fraction's interval.

    Runs of equal seed are compared if there are any. The interval is that of a ratio of means
    (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    baseline = runs[runs["is_baseline"] & runs["everything_else"].isin(cell["everything_else"])]
    if baseline.empty or cell["is_baseline"].all():
        return float("nan"), float("nan")
    means, base_means = (
        table.groupby("seed")["idle_seconds_per_round"].mean() for table in (cell, baseline)
    )
    paired = pd.DataFrame({"ours": means, "theirs": base_means}).dropna()
    if paired.empty:
        return _over(means.mean() - base_means.mean(), base_means.mean()), float("nan")
    base = paired["theirs"].mean()
    ratio = _over(paired["ours"].mean(), base)
    # The residuals of the ratio of means.
    rest = (paired["ours"] - ratio * paired["theirs"]).rename("rest").reset_index()
    (half_width,) = summarise(rest.assign(cell=""), ["cell"], ["rest"])["rest_ci95"]
    return ratio - 1, _over(half_width, base)


def _over(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _loss_curves(study: Study) -> Iterator[list[pd.DataFrame]]:
    """Yield the loss curves of the completed runs of each cell that has some. A curve is a table of
    the rounds that have a training loss, with the settings of the cell.
    """
    keys, times = cell_keys(study.runs), round_times(study)
    filled = keyed(study.runs)
    completed = filled.loc[filled["status"] == "completed", ["run_id", "seed", "allocation", *keys]]
    curves = times[times["train_loss"].notna()].reset_index().merge(completed, on="run_id")
    for _, cell in curves.groupby(keys):
        yield [curve for _, curve in cell.groupby("run_id")]


def _at(curve: pd.DataFrame, seconds: ArrayLike) -> pd.DataFrame:
    """Return a run's training loss and the examples that it trained on at elapsed times; the loss
    is NaN before the midpoint of the first round.
    """
    times = np.asarray(seconds, float)
    ends, examples = curve["elapsed_seconds"], curve["num_examples"].cumsum()
    first = curve.iloc[[0] * len(times)].drop(columns=["midpoint_seconds"])
    return first.assign(
        elapsed_seconds=times,
        train_loss=np.interp(times, curve["midpoint_seconds"], curve["train_loss"], left=np.nan),
        num_examples=np.interp(times, [0, *ends], [0, *examples]),
    )


def _in_order(table: pd.DataFrame, allocations: pd.Series[str]) -> pd.DataFrame:
    """Sort a table of cells by their settings. Cells that differ in nothing but the variant are in
    the order of their allocations in `ALLOCATIONS`.
    """
    if table.empty:
        return table
    order = {allocation: place for place, allocation in enumerate(ALLOCATIONS)}
    ranks = allocations.map(order).fillna(len(ALLOCATIONS))
    others = [name for name in levels(table) if name != "variant"]
    places = table.index.to_frame(index=False).assign(rank=ranks.to_numpy())
    return table.iloc[places.sort_values([*others, "rank", "variant"], kind="stable").index]
