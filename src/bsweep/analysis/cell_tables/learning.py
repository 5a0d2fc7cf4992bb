"""Tables of the fastest cells among the most accurate, of accuracy by training time, and of the
seconds to a target.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bsweep.analysis.cell_tables.common_target import common_target
from bsweep.analysis.cell_tables.keys import cell_keys, keyed, levels
from bsweep.analysis.cell_tables.means import cell_means
from bsweep.analysis.cell_tables.statistics import summarise
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import Target

ACCURACY_MARGIN = 0.01  # absolute; within it of the best accuracy, the faster cell wins


def fastest_accurate(cells: pd.DataFrame, margin: float = ACCURACY_MARGIN) -> pd.DataFrame:
    """Return the timed cells, not at chance, whose mean accuracy is within `margin` of the best
    cell's, the fastest first.

    The accuracy is test accuracy, or training accuracy if no cell has a test accuracy. If no
    accuracy was recorded, every measured cell counts. A cell is at chance if its `has_learned` is
    False; see `cells`.

    Args:
        cells: A table of `cells`.
        margin: The accuracy that a cell may lack, as a fraction: 0.01 is one percentage point.

    Returns:
        The rows of `cells` that qualify, sorted by `train_seconds`.
    """
    learned = cells[(cells["n"] > 0) & cells["has_learned"].fillna(True)]
    for name in ("test_accuracy", "train_accuracy"):
        if learned[name].notna().any():
            learned = learned[learned[name] >= learned[name].max() - margin]
            break
    return learned.dropna(subset="train_seconds").sort_values("train_seconds", kind="stable")


@cached
def accuracy_by_time(study: Study) -> pd.DataFrame:
    """Return the test accuracy of cells in the last evaluation of each epoch, with the seconds
    trained until then.

    The table is indexed by `cell_keys` and `epoch` and covers completed runs only. Columns: `n`
    seeds; `elapsed_seconds`, without evaluations, and `test_accuracy`, both as means over seeds
    with intervals like those of `cells`.

    Args:
        study: The study.

    Returns:
        The table. Times are in seconds, accuracies are fractions.
    """
    ends = study.evaluations.drop_duplicates(["run_id", "epoch"], keep="last")
    ends = ends.rename(columns={"train_seconds": "elapsed_seconds"}).set_index(["run_id", "epoch"])
    return cell_means(study, ends[["elapsed_seconds", "test_accuracy"]].dropna())


@cached
def time_to_target(study: Study, target: float | None = None) -> pd.DataFrame:
    """Return the training seconds in which each cell and seed reaches a target.

    The table is indexed by `cell_keys` and `seed`. Columns: `target`; `reached`; `seconds`, by the
    rule of `targets`, NaN where the target is not reached. For a seed that was run
    again, `seconds` is the mean, if all its runs reach the target. A run that diverged counts as
    not reaching the target unless it reached it before. Other runs that did not complete are left
    out, and so are completed runs without an evaluation.

    Args:
        study: The study.
        target: A test accuracy as a fraction; None: the target of `common_target`. The table is
            empty if there is none.

    Returns:
        The table, one row for each cell and seed. Times are in seconds.
    """
    keys, runs = cell_keys(study.runs), keyed(study.runs)
    common = common_target(study) if target is None else (Target("test_accuracy", target), "")
    wanted = common[0] if common else Target("test_accuracy", np.nan)
    reached = to_target(study, wanted).dropna(subset="trained_seconds")
    is_evaluated = (runs["status"] == "completed") & runs["run_id"].isin(reached.index)
    runs = runs[(is_evaluated | (runs["status"] == "diverged")) & np.isfinite(wanted.value)]
    seconds = runs["run_id"].map(reached["seconds_to_target"])
    grouped = runs.assign(target=wanted.value, seconds=seconds).groupby([*keys, "seed"])
    reached = grouped["seconds"].count() == grouped.size()
    seconds = grouped["seconds"].mean().where(reached)
    table: pd.DataFrame = grouped[["target"]].first()
    return table.assign(reached=reached, seconds=seconds)


def times_to_target(study: Study) -> pd.DataFrame:
    """Return for each cell the mean seconds to the target of `common_target`, and how many seeds
    reached and missed it.

    Columns: `seconds`, as in `summarise` over the `n` seeds that reach the target; `missed`, the
    number of the other seeds. The table has no rows if no run reaches the target.

    Args:
        study: The study.
    """
    table = time_to_target(study)
    if not table["reached"].any():
        return table[:0]
    keys = [name for name in levels(table) if name != "seed"]
    reached = table["reached"].groupby(level=keys)
    counts = {"n": reached.sum(), "missed": reached.size() - reached.sum()}
    return summarise(table.reset_index(), keys, ["seconds"]).assign(**counts)
