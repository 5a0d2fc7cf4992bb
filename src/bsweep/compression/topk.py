"""The codec top-k with error feedback (Stich et al., arXiv 1809.07599): workers send only the
elements of their gradient and memory that are largest in size.

With memory m_t and gradient g_t of a worker: v = m_t + g_t; send the ceil(density * n) elements of
v that are largest in size; m_(t+1) = v where it was not sent, 0 where it was. An element costs its
value and a 4-byte index.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bsweep.compression.base import GatherCodec, Setting, join, split
from bsweep.config.compression import SparseConfig

_INDEX = torch.int32
# One of so many elements is in the sample. The number is prime, so that the sample does not always
# fall on the same position within a layer's dimension.
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
        """Return the indices of the elements to send, those with the largest absolute values."""
        return largest(values, math.ceil(self.density * len(values)))

    def encode(self, values: Tensor) -> Tensor:
        indices = self.choose(values)
        return join(values[indices], indices.to(_INDEX))

    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        count = len(payload) // (into.element_size() + _INDEX.itemsize)
        values, indices = split(payload, count, into.dtype)
        into.index_add_(0, indices.view(_INDEX), values, alpha=scale)


def largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` elements with the largest absolute values, in any order.

    NaN counts as largest.

    On a CPU a sample first shows about how large these elements are, and only elements of that size
    or above are compared. This is DGC's trick, but exact: if they are too few, all are compared.
    For 1 % of 11 million elements it takes 0.03 s, and topk alone takes 0.26 s.
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
