"""Two formulas of Pollux (Qiao et al., OSDI 2021): the seconds of a training step, and the training
progress per example at a batch size, relative to that at another.

Where measurements do not determine a parameter of the first formula, a `Prior` applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

SPREAD = 0.05
"""The median of the relative deviation of a timed step from the formula."""

FACTOR = 10.0
"""The factor from the median of a prior to one standard deviation above it."""

Numbers = float | npt.NDArray[np.float64]
Passes = Sequence[float] | npt.NDArray[np.float64]


def step_seconds(
    pass_seconds: Numbers, sync_seconds: Numbers, overlap: Numbers, passes: Numbers = 1
) -> Any:
    """Return the seconds of a training step in which the gradient exchange overlaps with the last
    pass. The formula is (p - 1) T_grad + (T_grad^g + T_sync^g)^(1/g).

    Args:
        pass_seconds: T_grad, the seconds of one pass.
        sync_seconds: T_sync, the seconds of the exchange.
        overlap: g, the degree of overlap; a larger value hides more of the exchange.
        passes: p, the passes of a step.
    """
    longer = np.maximum(pass_seconds, sync_seconds)  # no power of a ratio above 1 overflows
    ratio = np.minimum(pass_seconds, sync_seconds) / longer
    last = longer * (1 + ratio**overlap) ** (1 / overlap)
    return (passes - 1) * pass_seconds + last


@dataclass(frozen=True)
class Prior:
    """The priors of the formula's parameters, as functions of standard normal numbers.

    Their units are the median seconds of the timed passes, `typical`, and the geometric mean of the
    local batches, `middle`.
    """

    typical: float
    middle: float

    @staticmethod
    def from_passes(seconds: Passes, local_batches: Passes) -> Prior:
        """Return the priors in the units of timed passes, given their seconds and batches."""
        middle = float(np.exp(np.mean(np.log(local_batches))))
        return Prior(float(np.median(seconds)), middle)

    def fixed_seconds(self, normal: Numbers) -> Any:
        """Return the seconds of a pass that do not depend on its examples."""
        return self.typical / 2 * FACTOR**normal

    def example_seconds(self, normal: Numbers) -> Any:
        """Return the seconds that each example adds to a pass."""
        return self.typical / 2 / self.middle * FACTOR**normal

    def sync_seconds(self, normal: Numbers) -> Any:
        """Return the seconds of an exchange."""
        return self.typical / 10 * FACTOR**normal

    @staticmethod
    def overlap(normal: Numbers) -> Any:
        """Return the degree of overlap, from 1 to 10."""
        return 10 ** ndtr(normal)


def efficiency(noise_scale: float, global_batch: float, reference_batch: float) -> float:
    """Return the training progress per example at `global_batch` divided by that at
    `reference_batch`. The formula is (phi + B0) / (phi + B), where phi is `noise_scale`, B0 is
    `reference_batch` and B is `global_batch`.
    """
    return (noise_scale + reference_batch) / (noise_scale + global_batch)
