"""Two formulas of Pollux (Qiao et al., OSDI 2021): the seconds of a training step, and the training
progress per example at a batch size, relative to that at another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = float | npt.NDArray[np.float64]


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


def efficiency(noise_scale: float, global_batch: float, reference_batch: float) -> float:
    """Return the training progress per example at `global_batch` divided by that at
    `reference_batch`. The formula is (phi + B0) / (phi + B), where phi is `noise_scale`, B0 is
    `reference_batch` and B is `global_batch`.
    """
    return (noise_scale + reference_batch) / (noise_scale + global_batch)
