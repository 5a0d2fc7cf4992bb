"""The numbers of a published study (DiLoCo on four nodes with uneven GPUs, its tables 1 to 3), and
a model of the nodes' idle times.

In the model, node i computes for h_i t_i(b_i) seconds, where h_i is its number of local steps and
t_i(b) its seconds for a step at batch b. It is then idle until the last node arrives. The
baseline's row gives every t_i(4) up to one constant: the seconds T that its slowest node, node 2,
computes. T is fitted to method C, which changes steps only. A step's time is assumed to have a
fixed part f and a part in proportion to the batch, t_i(b) = t_i(4) (f + (1 - f) b / 4). The same f
holds for all nodes and is fitted to method B.

Two of the published rows contradict the paper's own settings, whatever the constants;
`CONTRADICTIONS` says how. The paper does not say whether its idle times are of one round or of all
ten; the model holds for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from bsweep.analysis.published import published_csv

CONTRADICTIONS = (
    "A leaves nodes 1 and 2 with the baseline's batch and steps, so that their idle times must "
    "differ by 1.1 s, as in the baseline: 11.9 and 0.0 s are published. B gives both batch 8, so "
    "that node 2, the slower in the baseline, should idle at least 1.1 s less than node 1: 0.4 s "
    "more is published."
)


@dataclass(frozen=True)
class IdleModel:
    """A model of the four nodes of a published study: the seconds that each computes and idles in a
    round, given its batch and its local steps.

    If the published times are of all ten rounds, so are the seconds of the model.
    """

    slowest_seconds: float  # T: what node 2 computes in the baseline
    fixed_share: float  # f: the part of a step at batch 4 that no batch size changes
    baseline: pd.DataFrame  # the published row, by node

    def compute_seconds(
        self, local_batches: ArrayLike, local_steps: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the seconds that, by the model, each node of the published study computes in a
        round, shape (nodes,).

        Args:
            local_batches: The examples of each node's step, shape (nodes,).
            local_steps: The steps of each node in a round, shape (nodes,).

        Returns:
            Seconds in a round, shape (nodes,).
        """
        at_baseline = self.slowest_seconds - self.baseline["idle_seconds"].to_numpy(float)
        batches = np.asarray(local_batches) / self.baseline["local_batch"].to_numpy(float)
        steps = np.asarray(local_steps) / self.baseline["local_steps"].to_numpy(float)
        return np.asarray(
            at_baseline * steps * (self.fixed_share + (1 - self.fixed_share) * batches)
        )

    def idle_seconds(self, local_batches: ArrayLike, local_steps: ArrayLike) -> NDArray[np.float64]:
        """Return the seconds that, by the model, each node of the published study waits for the
        slowest node in a round, shape (nodes,).

        Args:
            local_batches: The examples of each node's step, shape (nodes,).
            local_steps: The steps of each node in a round, shape (nodes,).

        Returns:
            Seconds in a round, shape (nodes,); 0 for the slowest node.
        """
        seconds = self.compute_seconds(local_batches, local_steps)
        return np.asarray(seconds.max() - seconds)

    def steps_by_speed(self) -> list[int]:
        """Return each node's number of local steps with which all nodes would end a round at about
        the same time, according to the paper's timing model.

        They are the baseline's steps times each node's speed relative to the slowest node.

        Returns:
            The steps of each node in a round, in the order of the nodes.
        """
        baseline = self.baseline
        speeds = self.slowest_seconds / self.compute_seconds(
            baseline["local_batch"], baseline["local_steps"]
        )
        return [round(steps) for steps in baseline["local_steps"] * speeds]


def published_idle() -> pd.DataFrame:
    """Return the idle seconds, batch sizes and local steps that a paper on uneven GPUs published,
    by `method` (baseline, A, B, C) and `node`.

    `results/published/README.md` names their source.

    Returns:
        The table, which also has columns on the hardware of each node.
    """
    return pd.read_csv(published_csv("geo_distributed"), index_col=["method", "node"])


def idle_model() -> IdleModel:
    """Fit the model of idle seconds to the published study of uneven GPUs by least squares, and
    return the fitted model.

    `slowest_seconds` is fitted to method C, then `fixed_share` to method B.

    Returns:
        The fitted model.
    """
    rows = _rows(published_idle())
    baseline = rows["baseline"]

    def error(row: pd.DataFrame, slowest_seconds: float, fixed_share: float) -> float:
        model = IdleModel(slowest_seconds, fixed_share, baseline)
        modelled = model.idle_seconds(row["local_batch"], row["local_steps"])
        return float(np.sum((modelled - row["idle_seconds"].to_numpy()) ** 2))

    longest_idle = float(baseline["idle_seconds"].max())
    seconds = minimize_scalar(
        lambda t: error(rows["C"], t, 0), bounds=(longest_idle, 10 * longest_idle)
    ).x
    share = minimize_scalar(lambda f: error(rows["B"], seconds, f), bounds=(0, 1)).x
    return IdleModel(float(seconds), float(share), baseline)


def modelled_idle() -> pd.DataFrame:
    """Return the published idle seconds of each method and node beside the idle seconds that the
    fitted model gives.

    The table is indexed like `published_idle`.

    Columns: `published_seconds`, `modelled_seconds`.

    Returns:
        One row for each method and node, in seconds.
    """
    published, model = published_idle(), idle_model()
    modelled = [
        model.idle_seconds(row["local_batch"], row["local_steps"])
        for row in _rows(published).values()
    ]
    return pd.DataFrame(
        {
            "published_seconds": published["idle_seconds"],
            "modelled_seconds": np.concatenate(modelled),
        },
        index=published.index,
    )


def _rows(published: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    """Group the published idle times by method (baseline, A, B, C), and return the rows of each
    method, one for each node.
    """
    return dict(list(published.groupby(level="method", sort=False)))
