"""The predicted time to a target over batch sizes and workers, and what follows: cost, bottlenecks,
one more worker.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from bsweep.analysis.answering import answers
from bsweep.analysis.loaded import Study
from bsweep.analysis.once import once
from bsweep.analysis.prediction import Prediction
from bsweep.analysis.prediction.critical_batch import INTERVAL
from bsweep.analysis.prediction.forecast import PARTS

NO_DIFFERENCE = "no difference"
NOT_REACHED = "not reached"


@once
def surface(study: Study) -> pd.DataFrame:
    """Every cell of the grid of each prediction, a row each, with the columns of
    `Prediction.cells`; empty without one.

    Columns more: `where`, the part of the study in words (empty where there is one), and `target`;
    `is_recommended`; `is_alternative`, not told from the recommended cell by its interval;
    `is_on_front`, if no cell that can be trained takes less time for as few worker-seconds, by
    medians, and `probability_on_front` by draws; `bottleneck`, which of `PARTS` takes most of the
    time, and `bottleneck_share`. `problem` is also `NOT_REACHED`, where runs of the batch size
    trained to their end and none reached the target.
    """
    parts = [
        _cells(answer.where, answer.prediction)
        for answer in answers(study)
        if answer.prediction is not None
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _cells(where: str, prediction: Prediction) -> pd.DataFrame:
    cells, places = prediction.cells, np.arange(len(prediction.cells))
    on_front = _on_front(prediction)
    shares = (
        cells[[f"{name}_seconds" for name in PARTS]]
        .div(cells["seconds"], axis="index")
        .set_axis(PARTS, axis=1)
    )
    return cells.assign(
        where=where,
        target=str(prediction.target),
        is_recommended=places == prediction.choice.place,
        is_alternative=np.isin(places, prediction.choice.alternatives),
        is_on_front=on_front[0],
        probability_on_front=on_front[1],
        problem=cells["problem"].mask(
            (cells["problem"] == "") & cells["is_unreached"], NOT_REACHED
        ),
        bottleneck=shares.fillna(0).idxmax(axis="columns"),
        bottleneck_share=shares.max(axis="columns"),
    )


def _on_front(prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Whether no other cell takes less time for as few worker-seconds: by medians, and how probably
    by draws.
    """
    logs, workers = prediction.forecast.log_seconds, prediction.cells["num_workers"].to_numpy(float)
    allowed = prediction.cells["is_allowed"].to_numpy(bool)
    by_draw = _undominated(np.where(allowed, logs, np.inf), workers).mean(axis=0)
    medians = np.where(allowed, np.log(prediction.cells["seconds"].to_numpy(float)), np.inf)
    return _undominated(medians[None], workers)[0] & allowed, np.where(allowed, by_draw, 0.0)


def _undominated(log_seconds: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Of times by draw and cell, those of which no other is less for as many worker-seconds or
    fewer.
    """
    costs = log_seconds + np.log(workers)
    found = np.ones(log_seconds.shape, bool)
    for place in range(log_seconds.shape[1]):
        is_sooner = log_seconds < log_seconds[:, [place]]
        is_cheaper = costs <= costs[:, [place]]
        found[:, place] = ~(is_sooner & is_cheaper).any(axis=1)
    return found


@once
def more_workers(study: Study) -> pd.DataFrame:
    """What each further worker count buys, a row each step from one to the next; empty where there
    is one count.

    At either count the batch size is the one of the least median time. Columns: `where`; `target`;
    `num_workers` and `more_workers`, from and to; `global_batch` and `more_global_batch`;
    `saved_seconds` and `added_worker_seconds`, medians, with the ends `_low` and `_high` of 90 %
    intervals of the typical run; `verdict` on the time: `sooner`, `later` or `NO_DIFFERENCE`, where
    the interval contains zero; `is_extrapolated` if either cell is.
    """
    rows = [
        {"where": answer.where, "target": str(answer.prediction.target), **row}
        for answer in answers(study)
        if answer.prediction is not None
        for row in _steps(answer.prediction)
    ]
    return pd.DataFrame(rows)


def _steps(prediction: Prediction) -> Iterator[dict[str, object]]:
    cells = prediction.cells[prediction.cells["is_allowed"]]
    best = cells.loc[cells.groupby("num_workers")["seconds"].idxmin()]
    seconds = np.exp(prediction.forecast.log_seconds)
    for (one, before), (more, after) in zip(
        best.iloc[:-1].iterrows(), best.iloc[1:].iterrows(), strict=True
    ):
        saved = seconds[:, int(str(one))] - seconds[:, int(str(more))]
        added = (
            seconds[:, int(str(more))] * after["num_workers"]
            - seconds[:, int(str(one))] * before["num_workers"]
        )
        low, high = np.quantile(saved, INTERVAL)
        yield {
            "num_workers": before["num_workers"], "more_workers": after["num_workers"],
            "global_batch": before["global_batch"], "more_global_batch": after["global_batch"],
            **_quantiles("saved_seconds", saved), **_quantiles("added_worker_seconds", added),
            "verdict": "sooner" if low > 0 else "later" if high < 0 else NO_DIFFERENCE,
            "is_extrapolated": bool(before["is_extrapolated"] or after["is_extrapolated"]),
        }  # fmt: skip


def _quantiles(name: str, values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values, INTERVAL)
    return {name: float(np.median(values)), f"{name}_low": float(low), f"{name}_high": float(high)}
