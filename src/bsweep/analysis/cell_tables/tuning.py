"""The best learning rate for each combination of the other settings, in studies that ran several
rates.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.keys import RATES, cell_keys, keyed
from bsweep.analysis.cell_tables.statistics import summarise
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study, with_runs
from bsweep.analysis.study.naming import evaluated_part
from bsweep.config.target import score_name

TUNED = "best of each cell"  # stands for the rule where each cell is taken at its best rate


def rate_settings(runs: pd.DataFrame) -> list[str]:
    """Return the names of the learning-rate settings, such as `lr`, that differ between runs, if
    some otherwise equal runs had different learning rates.

    The list is empty if no otherwise equal runs had different rates.
    """
    keys = cell_keys(runs)
    rates = [name for name in keys if name in RATES]
    others = [name for name in keys if name not in RATES]
    num_rates = keyed(runs).groupby(others)["learning_rate"].nunique()
    return rates if num_rates.max() > 1 else []


@cached
def rates(study: Study) -> pd.DataFrame:
    """Return the score (test accuracy or seconds to a target) of each learning rate that was tried,
    for each combination of the other settings.

    The table is empty if no cell was run at several rates.

    Columns:
        `learning_rate`: The rate.
        `score`: The mean over seeds of `metric`, with `score_ci95` and `score_points`.
        `metric`: `seconds_to_target` if a run reached a target that it names, and the time of all
            such runs is known, else the final `test_accuracy`.
        `n`: The number of seeds that have a score.
        `missed`: The number of seeds that diverged or did not reach the target.
        `num_rates`: The number of rates of the cell.
        `is_best`: True for the rate with the smallest share of missed seeds, then the best mean.
            False if all seeds missed.
        `at_edge`: `lowest` or `highest` where the best of several rates is the lowest or highest
            one tried, else empty.
    """
    runs = _scored(study)
    settings = rate_settings(runs) if len(runs) else []
    if not settings:
        return pd.DataFrame()
    keys, metric = cell_keys(study.runs), _metric(runs)
    score = runs[metric].astype(float)
    if metric == "test_accuracy":
        score = score.mask(runs["status"] == "diverged")
    scored = keyed(study.runs).loc[runs.index].assign(score=score, is_missed=score.isna())
    is_missed = scored.groupby([*keys, "seed"])["is_missed"].any()
    table = scored.groupby(keys)[["learning_rate"]].first()
    table["missed"] = is_missed.groupby(level=keys).sum()
    table = table.join(summarise(scored[~scored["is_missed"]], keys, ["score"]))
    table["n"] = table["n"].fillna(0).astype(int)
    table = _with_best(table.assign(metric=metric))
    # Runs that did not complete may tell apart cells that have one rate each.
    return table if table["num_rates"].max() > 1 else pd.DataFrame()


def best_by(study: Study) -> str:
    """Return in words the score by which `rates` finds the best learning rate of a cell."""
    if _metric(_scored(study)) == "seconds_to_target":
        return "the time to the target"
    score = score_name("test_accuracy", evaluated_part(study.runs))
    return f"the {score} in the last evaluation"


def _scored(study: Study) -> pd.DataFrame:
    """Return the runs whose scores are compared, which ended by themselves."""
    return study.runs[study.runs["status"].isin(["completed", "diverged"])]


def _metric(runs: pd.DataFrame) -> str:
    """Return the column by which learning rates are compared."""
    if "seconds_to_target" not in runs:
        return "test_accuracy"
    # Runs that reached the target beside other runs have no time: they did not miss it.
    times = runs.loc[runs["reached"].eq(True), "seconds_to_target"]
    return "seconds_to_target" if len(times) and times.notna().all() else "test_accuracy"


def _with_best(table: pd.DataFrame) -> pd.DataFrame:
    others = [name for name in table.index.names if name not in RATES]
    sign = 1 if table["metric"].iloc[0] == "seconds_to_target" else -1
    missed = table["missed"] / (table["missed"] + table["n"])
    best = best_rates(table.assign(missed=missed, cost=sign * table["score"]), others)
    tried = table.groupby(level=others)["learning_rate"]
    is_best = table.index.isin(best) & (table["n"] > 0)
    num_rates = tried.transform("nunique")
    is_end = [
        is_best & (num_rates > 1) & np.isclose(table["learning_rate"], tried.transform(end))
        for end in ("max", "min")
    ]
    at_edge = np.select(is_end, ["highest", "lowest"], "")
    return table.assign(num_rates=num_rates, is_best=is_best, at_edge=at_edge)


def best_rates(table: pd.DataFrame, cells: Sequence[Hashable]) -> pd.Index:
    """Return the row of the best learning rate of each cell: the rate that the smallest share of
    runs missed the target with (`missed`), and among equals the one of the least `cost`.

    Args:
        table: One row for each cell and learning rate.
        cells: The index levels that tell the cells apart.
    """
    order = table.sort_values(["missed", "cost"], kind="stable")
    return order.groupby(level=list(cells)).head(1).index


def tuned(study: Study) -> Study:
    """Return the study with only the runs at the best learning rate for each combination of the
    other settings. Their learning-rate rule becomes `TUNED`, the same for all.

    The study is unchanged if no cell was run at several rates. Cells of which no run completed or
    diverged are left out. A cell that missed at all of its rates keeps all its runs, because each
    says that the target takes more than it trained. Runs that ran out of memory stay too, because
    they say that at no rate does a batch of this size fit.
    """
    table = rates(study)
    if table.empty:
        return study
    cells = table.groupby(level=[name for name in table.index.names if name not in RATES])
    kept = table.index[table["is_best"] | ~cells["is_best"].transform("any")]
    settings = pd.MultiIndex.from_frame(keyed(study.runs)[[*table.index.names]])
    is_too_large = study.runs["status"] == "out_of_memory"
    best = with_runs(study, is_too_large | settings.isin(kept))
    same: dict[str, Any] = {"lr_rule": TUNED, "optimizer.reference_batch": np.nan}
    shared = {name: value for name, value in same.items() if name in best.runs}
    return replace(best, runs=best.runs.assign(**shared))
