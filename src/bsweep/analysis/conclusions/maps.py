"""Tables of the predicted time to a target for each batch size and worker count, with its cost and
its bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.conclusions.recommendations import predictions
from bsweep.analysis.prediction.forecast import PARTS
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.frames import Study

NOT_REACHED = "not reached"


@cached
def surface(study: Study) -> pd.DataFrame:
    """Return a table of the predicted time to the target and the cost of every cell in the grids of
    a study's predictions, one row for each cell.

    The table is empty if there is no prediction. The columns are those of `Prediction.cells` and
    the following.

    Columns:
        `where`: The part of the study in words; empty if it has one part.
        `target`: The target.
        `is_recommended`: True for the recommended cell.
        `is_alternative`: True for an allowed cell that is better than the recommended one with a
            probability of 0.05 or more.
        `is_on_front`: True for an allowed cell if no other allowed cell takes less time for at most
            as many worker-seconds, by medians.
        `probability_on_front`: The share of draws in which that is so.
        `bottleneck`, `bottleneck_share`: The one of `PARTS` that takes most of the time, and its
            share.
        `problem`: Also `NOT_REACHED`, where there is no other problem, and runs of the batch size
            trained to their end and none reached the target.

    Args:
        study: The study.

    Returns:
        The table with a plain index.
    """
    return _concatenated(
        surface_rows(answer.where, prediction) for answer, prediction in predictions(study)
    )


def _concatenated(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    tables = [*parts]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def surface_rows(where: str, prediction: Prediction) -> pd.DataFrame:
    """Return the rows of `surface` for one part of a study."""
    cells, places = prediction.cells, np.arange(len(prediction.cells))
    is_on_front, probability = _on_front(prediction)
    seconds = cells[[f"{name}_seconds" for name in PARTS]].set_axis(PARTS, axis=1)
    shares = seconds.div(cells["seconds"], axis="index")
    is_unreached = (cells["problem"] == "") & cells["is_unreached"]
    return cells.assign(
        where=where,
        target=str(prediction.target),
        is_recommended=places == prediction.choice.place,
        is_alternative=np.isin(places, prediction.choice.alternatives),
        is_on_front=is_on_front,
        probability_on_front=probability,
        problem=cells["problem"].mask(is_unreached, NOT_REACHED),
        bottleneck=shares.fillna(0).idxmax(axis="columns"),
        bottleneck_share=shares.max(axis="columns"),
    )


def _on_front(prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Return which cells are on the Pareto front of time and worker-seconds by their median times,
    and each cell's probability of being on the front.

    An allowed cell is on the front if no other allowed cell takes less time for at most as many
    worker-seconds.
    """
    cells, workers = prediction.cells, prediction.cells["num_workers"].to_numpy(float)
    allowed = cells["is_allowed"].to_numpy(bool)
    medians = np.log(cells["seconds"].to_numpy(float))
    by_median, *by_draw = _undominated(
        np.where(allowed, np.vstack([medians, prediction.forecast.log_seconds]), np.inf), workers
    )
    return by_median & allowed, np.where(allowed, np.mean(by_draw, axis=0), 0.0)


def _undominated(log_seconds: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Return for each posterior draw and cell True if no other cell takes less time with at most
    the same worker-seconds.

    Args:
        log_seconds: Logarithms of the times, shape (draws, cells).
        workers: The worker counts, shape (cells,).
    """
    costs = log_seconds + np.log(workers)
    is_dominated = [
        ((log_seconds < seconds[:, None]) & (costs <= cost[:, None])).any(axis=1)
        for seconds, cost in zip(log_seconds.T, costs.T, strict=True)
    ]
    return ~np.stack(is_dominated, axis=1)


@cached
def larger_clusters(study: Study) -> pd.DataFrame:
    """Return the time and the cost to the target on each number of workers at its best batch size,
    for each network that a study simulates.

    The table has the columns of `Prediction.curves` and `where`, `target`: the part of the study
    and its target. It is empty if the study has no larger clusters, see `with_networks`.

    Args:
        study: The study.

    Returns:
        The table with a plain index.
    """
    return _concatenated(
        prediction.curves.assign(where=answer.where, target=str(prediction.target))
        for answer, prediction in predictions(study)
        if prediction.network
    )
