"""Tables of studies whose workers hold parts of one model: memory, and the time of each way
of splitting.

Each table is indexed by `cell_keys`. It is empty for a study without a completed run of a strategy
that splits a model. Such a run says how many replicas of the model it trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.keys import cell_keys, keyed
from bsweep.analysis.cell_tables.statistics import summarise
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.cards import capabilities_of_kind
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.naming import settings_in_words, words
from bsweep.core.words import joined

REPLICAS = "strategy.replicas"
_OF_STAGES = ("stashed_bytes", "peak_activation_bytes")
PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", *_OF_STAGES)
"""The parts of a worker's memory. Older weights (`stashed_bytes`) and activations are known for
`pipeline` and `pipedream` alone.
"""


def names(table: pd.DataFrame, shown: Sequence[str]) -> list[str]:
    """Return a name for each row of a table of cells, such as `tensor, replicas 2, 4 workers`.

    Args:
        table: A table that has `shown` as index levels, with the names of variants as in the table
            of cells, not in words.
        shown: The settings to name; those with one value in the table are left out.

    Returns:
        The names in words, in the order of the rows.
    """
    settings = table.index.to_frame(index=False)[list(shown)]
    varying = [name for name in shown if settings[name].nunique() > 1]
    rows = settings[varying].astype(object).to_numpy()
    return [settings_in_words(varying, row) for row in rows]


@cached
def worker_memory(study: Study) -> pd.DataFrame:
    """Return the memory of each worker by part, as means over the seeds of a cell's completed runs.

    Columns: `n`, the number of seeds; `PARTS` and `peak_bytes`, the largest of all epochs, with
        intervals as in `summarise`, NaN where they are not known; `global_batch`.

    Args:
        study: The study.

    Returns:
        The table, indexed by `cell_keys` and `worker`.
    """
    keys = [*cell_keys(study.runs), "worker"]
    of_stages = study.stages[["run_id", "worker", *_OF_STAGES]]
    bytes_of = study.memory.merge(of_stages, how="left", on=["run_id", "worker"])
    amounts = [*PARTS, "peak_bytes"]
    rows = bytes_of.astype(dict.fromkeys(amounts, float)).merge(_completed(study), on="run_id")
    if rows.empty:
        return pd.DataFrame()
    return summarise(rows, keys, amounts).join(rows.groupby(keys)["global_batch"].first())


@cached
def ways(study: Study) -> pd.DataFrame:
    """Return the training time of each cell, with its way of splitting the model.

    Columns: `n`, the number of seeds; `train_seconds` with its interval and points, see
        `summarise`; `strategy` in words; `replicas` and `grid`, such as `2x4`
        for two replicas of four workers; 0 and empty for strategies that split no model; `panel`,
        the names of those other settings that vary; `is_fastest`, True for the fastest cell of its
        strategy, grid and batch.

    Args:
        study: The study.

    Returns:
        The table, indexed by `cell_keys`.
    """
    runs, keys = _completed(study), cell_keys(study.runs)
    runs = runs[runs["train_seconds"].notna()]
    if runs.empty:
        return pd.DataFrame()
    table = summarise(runs, keys, ["train_seconds"])
    first = runs.groupby(keys)[["strategy", "asked_replicas", "global_batch"]].first()
    table["strategy"] = [words("variant", name) for name in first["strategy"]]
    table["replicas"] = first["asked_replicas"].fillna(0).astype(int)
    table["global_batch"] = first["global_batch"]
    workers = table.index.get_level_values("num_workers")
    table["grid"] = [
        f"{replicas}x{count // replicas}" if replicas else ""
        for replicas, count in zip(table["replicas"], workers, strict=True)
    ]
    apart = {"variant", "num_workers", "local_batch"}
    table["panel"] = names(table, [name for name in keys if name not in apart])
    alike = ["panel", "num_workers", "local_batch", "strategy", "grid"]
    fastest = table.reset_index().groupby(alike)["train_seconds"].transform("min")
    table["is_fastest"] = (table["train_seconds"].to_numpy() == fastest).to_numpy()
    return table


def ways_in_words(table: pd.DataFrame) -> dict[Any, str]:
    """Return the name of each strategy and number of replicas, with the grids that it has, such as
    `tensor 1x2, 1x4`.

    Args:
        table: A table of `ways`, or some of its rows.

    Returns:
        The names by strategy and number of replicas.
    """
    by_workers = table.sort_index(level="num_workers", sort_remaining=False)
    grids = by_workers.groupby(["strategy", "replicas"], sort=False)["grid"].unique()
    pairs = zip(grids.index, grids, strict=True)
    return {key: joined([key[0], ", ".join(names)]) for key, names in pairs}


def kind_of_scaling(study: Study) -> str:
    """Return in words what more workers at an equal local batch mean for the runs of a study.

    Args:
        study: The study.

    Returns:
        `weak scaling` if each worker brings examples of its own, with the strategies for which it
        is strong scaling, because more workers share the examples of one replica.
    """
    strategies = dict.fromkeys(study.runs["strategy"])
    shared = [str(words("variant", name)) for name in strategies if _shares_examples(name)]
    if not shared:
        return "weak scaling"
    why = "the workers of a replica share its examples"
    if len(shared) == len(strategies):
        return f"strong scaling: {why}"
    return f"weak scaling; strong scaling with {' and '.join(shared)}: {why}"


def _shares_examples(strategy: object) -> bool:
    """Return True if the workers of a replica compute the same examples, each with its part."""
    can = capabilities_of_kind(str(strategy))
    return can.splits_layers or can.cuts_model


def _completed(study: Study) -> pd.DataFrame:
    """Return the completed runs with `cell_keys` filled in and the replicas that they say as
    `asked_replicas`; none if no completed run splits a model.
    """
    filled: pd.DataFrame = keyed(study.runs)
    missing = pd.Series(np.nan, index=filled.index)
    asked: pd.Series[Any] = pd.to_numeric(study.runs.get(REPLICAS, missing))
    completed = filled.assign(asked_replicas=asked)[filled["status"] == "completed"]
    return completed if completed["asked_replicas"].notna().any() else completed[:0]
