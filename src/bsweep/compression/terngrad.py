"""TernGrad (Wen et al., arXiv 1705.07878): each gradient element becomes -1, 0 or 1 times its
layer's scale.

With s = max |g| of a layer's gradient after clipping at c sigma: T(g_i) = s sign(g_i) b_i with
P(b_i = 1) = |g_i| / s, so that E[T(g)] is the clipped g. sigma is the root mean square, not the
deviation from the mean. Otherwise a layer of one element, or of equal elements, would be clipped to
0. An element costs 2 bits, and a layer costs its scale. Each worker has its own scales; sharing
them, as in the paper, needs one more exchange.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bsweep.compression.base import GatherCodec, Setting
from bsweep.compression.payload import Layers, join, pack, round_randomly, split, unpack
from bsweep.config.compression import TernGradConfig


class TernGrad(GatherCodec):
    def __init__(self, config: TernGradConfig, setting: Setting) -> None:
        self._clip_sigmas = config.clip_sigmas
        self._layers = Layers(setting.vector)
        self.generator: torch.Generator = setting.generator(setting.rank, "terngrad")

    def encode(self, values: Tensor) -> Tensor:
        scales = self._scales(values)
        # A layer without gradient has scale 0.
        divisors = scales.clamp(min=torch.finfo(values.dtype).tiny)
        codes = round_randomly(values / self._layers.spread(divisors), 1, self.generator)
        return join(scales, pack(codes, 2))

    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        scales, packed = split(payload, len(self._layers), into.dtype)
        signs = unpack(packed, 2, len(into)).to(into.dtype).sub_(1)
        into.add_(signs.mul_(self._layers.spread(scales)), alpha=scale)

    def _scales(self, values: Tensor) -> Tensor:
        largest = self._layers.largest_sizes(values)
        if self._clip_sigmas is None:
            return largest
        return torch.minimum(largest, self._clip_sigmas * self._layers.root_mean_squares(values))
