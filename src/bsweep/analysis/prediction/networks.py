"""The comparison of predictions for several networks: the time and the cost to the target on each
number of workers, the knee from which on more workers bring little, and the critical batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from bsweep.analysis.prediction.texts import Prediction

KNEE = 0.5
"""The share of the ideal gain in speed below which more workers are not worth much."""

OWN_LINKS = "the study's own links"
_CELL = [
    "num_workers", "global_batch", "local_batch", "passes", "way", "seconds", "seconds_low",
    "seconds_high", "is_simulated", "is_extrapolated",
]  # fmt: skip


def knee(workers: pd.Series[int], speeds: pd.Series[float]) -> int | None:
    """Return the number of workers from which on each further step to more of them brings less than
    the share `KNEE` of the speed that it costs; None if the last step brings more.

    The next number of workers is at most twice as large: a larger step tells little of where more
    workers begin to bring less.

    Args:
        workers: The numbers of workers, ascending.
        speeds: The speed with each.
    """
    gains, wanted = speeds.pct_change(), KNEE * workers.pct_change()
    few = (gains < wanted).iloc[1:]
    if few.empty or not few.iloc[-1]:
        return None
    of_all = few[::-1].astype(int).cumprod()[::-1].astype(bool)
    is_near = (workers.shift(-1) <= 2 * workers).iloc[:-1]
    found = workers.iloc[:-1][of_all.to_numpy() & is_near.to_numpy()]
    return int(found.iloc[0]) if len(found) else None


def wall(workers: pd.Series[int], is_above: pd.Series[bool]) -> int | None:
    """Return the number of workers from which on the best batch is larger than the critical batch
    size with all of them; None if it is not with the last.

    Args:
        workers: The numbers of workers, ascending.
        is_above: True where the best batch is larger.
    """
    stays_above = is_above[::-1].astype(int).cumprod()[::-1].astype(bool)
    return int(workers[stays_above].iloc[0]) if stays_above.any() else None


def curves_of(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Return the time and the cost to the target on each number of workers, each at the batch size
    with the least median time, for the networks of several predictions.

    Numbers of workers up to the most that were timed are on the links of the study: they are a
    curve of their own, whose network is `OWN_LINKS`. Those between the timed ones are predicted,
    not timed. The curve of a simulated network has the simulated numbers of workers, and one
    worker, which needs no link.

    Columns:
        `network`, `num_workers`, `global_batch`, `local_batch`, `passes` and `way`.
        `seconds`, `worker_hours` and `money` (NaN without a price), each with the ends `_low` and
            `_high` of the 90 % prediction interval of one further run.
        `is_simulated`, `is_extrapolated`.
        `is_knee`: True at the `knee` of a curve.
        `is_above_critical`: True if the global batch is larger than `critical_batch`, the median of
            the critical batch size.
        `is_wall`: True at the first simulated number of workers from which on it is larger.

    Args:
        predictions: One prediction for each network, all of the same study and target.
    """
    curves = []
    for place, one in enumerate(predictions):
        best = _best(one)
        is_simulated, is_alone = best["is_simulated"], best["num_workers"] == 1
        if not place and (~is_simulated & ~is_alone).any():
            curves.append(_curve(one, best[~is_simulated], OWN_LINKS))
        if (is_simulated | is_alone).any():
            curves.append(_curve(one, best[is_simulated | is_alone], one.network))
    return pd.concat(curves, ignore_index=True)


def _best(prediction: Prediction) -> pd.DataFrame:
    """Return the cell with the least time of each number of workers, whatever the limits of the
    objective are.
    """
    cells = prediction.cells[prediction.cells["problem"] == ""]
    reached = cells[~cells["is_unreached"]]
    cells = reached if len(reached) else cells
    return cells.loc[cells.groupby("num_workers")["seconds"].idxmin()]


def _curve(prediction: Prediction, cells: pd.DataFrame, network: str) -> pd.DataFrame:
    table = cells[_CELL].assign(network=network)
    price = (cells["money"] / cells["worker_seconds"] * 3600).iloc[0]
    for end in ("", "_low", "_high"):
        table[f"worker_hours{end}"] = table[f"seconds{end}"] * table["num_workers"] / 3600
        table[f"money{end}"] = table[f"worker_hours{end}"] * price
    critical = float(np.median(prediction.fitted.steps.critical_batch))
    at = knee(table["num_workers"], 1 / table["seconds"]) if network != OWN_LINKS else None
    is_above, is_simulated = table["global_batch"] > critical, table["is_simulated"]
    at_wall = wall(table["num_workers"][is_simulated], is_above[is_simulated])
    return table.assign(
        is_knee=table["num_workers"].eq(at if at is not None else 0),
        critical_batch=critical,
        is_above_critical=is_above,
        is_wall=table["num_workers"].eq(at_wall if at_wall is not None else 0),
    )
