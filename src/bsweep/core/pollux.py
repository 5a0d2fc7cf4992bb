"""Pollux's two formulas (Qiao et al., OSDI 2021): seconds of a step, and how much its examples
count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = float | npt.NDArray[np.float64]


def step_seconds(
    pass_seconds: Numbers, sync_seconds: Numbers, overlap: Numbers, passes: Numbers = 1
) -> Any:
    """Of passes whose last one hides some of the exchange: (p - 1) T_grad + (T_grad^g +
    T_sync^g)^(1/g).
    """
    longer = np.maximum(pass_seconds, sync_seconds)  # no power of a ratio above 1 overflows
    last = longer * ((pass_seconds / longer) ** overlap + (sync_seconds / longer) ** overlap) ** (
        1 / overlap
    )
    return (passes - 1) * pass_seconds + last


def efficiency(noise_scale: float, global_batch: float, reference_batch: float) -> float:
    """What an example of a batch counts for, of one of the reference batch: (phi + B0) / (phi +
    B).
    """
    return (noise_scale + reference_batch) / (noise_scale + global_batch)
