"""Tensors of one number that each step needs anew, and that are made only once."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache  # not for the latest numbers only: a CUDA graph may read any of them
def constant(number: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor () of one number, the same tensor at each call; nobody may write to it.

    To fill a new one at each step would take a GPU a kernel.
    """
    with torch.inference_mode(False):  # An evaluation may be the first to ask for it.
        return torch.full((), number, dtype=dtype, device=device)
