"""Top-k with error feedback (Stich et al., arXiv 1809.07599).

With memory m_t and gradient g_t of a worker: v = m_t + g_t; send the ceil(density * n) elements of
v that are largest in size; m_(t+1) = v where it was not sent, 0 where it was. An element costs its
value and a 4-byte index.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bsweep.compression.base import GatherCodec, Setting
from bsweep.compression.payload import join, split
from bsweep.config import SparseConfig

_INDEX = torch.int32
# elements for each one in the sample; prime, so that no dimension of a layer keeps step with it
_STRIDE = 97


class TopK(GatherCodec):
    def __init__(self, config: SparseConfig, setting: Setting) -> None:
        self.memory: Tensor = torch.zeros_like(setting.vector.gradients)
        self._config = config
        self.begin_epoch(1)

    def begin_epoch(self, epoch: int) -> None:
        warmup = self._config.warmup_densities
        self.density = warmup[epoch - 1] if epoch <= len(warmup) else self._config.density

    def choose(self, values: Tensor) -> Tensor:
        """Indices of the elements that travel."""
        return largest(values, math.ceil(self.density * len(values)))

    def encode(self, values: Tensor) -> Tensor:
        indices = self.choose(values)
        return join(values[indices], indices.to(_INDEX))

    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        count = len(payload) // (into.element_size() + _INDEX.itemsize)
        values, indices = split(payload, count, into.dtype)
        into.index_add_(0, indices.view(_INDEX), values, alpha=scale)


def largest(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` elements largest in size, in any order; NaN counts as largest.

    On a CPU a sample first tells about how large these are, and only elements above that are
    compared (DGC's trick, but exact: if too few are above, all are compared). Of 11 million, 1 %
    take 0.03 s so, 0.26 s with topk alone.
    """
    sizes = values.abs()
    if sizes.device.type == "cpu":
        sample = sizes[::_STRIDE]
        generous = min(len(sample), int(1.2 * count / _STRIDE) + 100)
        border = torch.topk(sample, generous).values[-1]
        above = torch.nonzero(~(sizes < border)).squeeze(1)
        if len(above) >= count:
            return above[torch.topk(sizes[above], count, sorted=False).indices]
    return torch.topk(sizes, count, sorted=False).indices
