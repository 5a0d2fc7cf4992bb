"""The comparison of predictions for several networks: the time and the cost to the target on each
number of workers, the knee from which on more workers bring little, and the critical batch size.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from bsweep.analysis.prediction.objectives import without_unreached
from bsweep.analysis.simulation.rows import knee, lasting

OWN_LINKS = "the study's own links"
_CELL = [
    "num_workers", "global_batch", "local_batch", "passes", "way", "seconds", "seconds_low",
    "seconds_high", "is_simulated", "is_extrapolated",
]  # fmt: skip


def wall(workers: pd.Series[int], is_above: pd.Series[bool]) -> int | None:
    """Return the number of workers from which on the best batch is larger than the critical batch
    size with all of them; None if it is not with the last.

    Args:
        workers: The numbers of workers, ascending.
        is_above: True where the best batch is larger.
    """
    stays_above = lasting(is_above)
    return int(workers[stays_above].iloc[0]) if stays_above.any() else None


def curves_of(cells: Mapping[str, pd.DataFrame], critical_batch: float) -> pd.DataFrame:
    """Return the time and the cost to the target on each number of workers, each at the batch size
    with the least median time, for several networks.

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
        `critical_batch`: That of the arguments.
        `is_above_critical`: True if the global batch is larger.
        `is_wall`: True at the first simulated number of workers from which on it is larger.

    Args:
        cells: The predicted cells by network, all of the same study and target.
        critical_batch: The median of the critical batch size, in examples.
    """
    curves = []
    for place, (network, predicted) in enumerate(cells.items()):
        best = _best(predicted)
        is_simulated, is_alone = best["is_simulated"], best["num_workers"] == 1
        if not place and (~is_simulated & ~is_alone).any():
            curves.append(_curve(best[~is_simulated], OWN_LINKS, critical_batch))
        if (is_simulated | is_alone).any():
            curves.append(_curve(best[is_simulated | is_alone], network, critical_batch))
    return pd.concat(curves, ignore_index=True)


def _best(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cell with the least time of each number of workers, whatever the limits of the
    objective are.
    """
    cells = cells[without_unreached(cells["problem"] == "", cells)]
    return cells.loc[cells.groupby("num_workers")["seconds"].idxmin()]


def _curve(cells: pd.DataFrame, network: str, critical_batch: float) -> pd.DataFrame:
    table = cells[_CELL].assign(network=network)
    price = (cells["money"] / cells["worker_seconds"] * 3600).iloc[0]
    for end in ("", "_low", "_high"):
        table[f"worker_hours{end}"] = table[f"seconds{end}"] * table["num_workers"] / 3600
        table[f"money{end}"] = table[f"worker_hours{end}"] * price
    workers, is_above = table["num_workers"], table["global_batch"] > critical_batch
    is_simulated = table["is_simulated"]
    at_knee = knee(workers, 1 / table["seconds"]) if network != OWN_LINKS else None
    at_wall = wall(workers[is_simulated], is_above[is_simulated])
    return table.assign(
        is_knee=workers == at_knee,
        critical_batch=critical_batch,
        is_above_critical=is_above,
        is_wall=workers == at_wall,
    )
