"""QSGD (Alistarh et al., arXiv 1610.02132): each gradient element is rounded at random to one of a
few levels, which are fractions of its bucket's norm.

There are s = 2**(bits - 1) - 1 levels on each side of 0: Q(v_i) = |v| sign(v_i) xi_i / s. Here xi_i
is one of the two whole numbers around s |v_i| / |v|, chosen so that E[Q(v)] = v. An element costs
`bits` bits, and each bucket costs its norm in addition. There is no entropy code, because its
length would depend on the values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.compression.base import GatherCodec, Setting
from bsweep.compression.payload import join, pack, round_randomly, split, unpack
from bsweep.config.compression import QSGDConfig


class QSGD(GatherCodec):
    def __init__(self, config: QSGDConfig, setting: Setting) -> None:
        self._bits, self._bucket_elements = config.bits, config.bucket_elements
        self._levels = 2 ** (config.bits - 1) - 1
        self.generator: torch.Generator = setting.generator(setting.rank, "qsgd")

    def encode(self, values: Tensor) -> Tensor:
        buckets = F.pad(values, (0, -len(values) % self._bucket_elements)).view(
            -1, self._bucket_elements
        )
        norms = torch.linalg.vector_norm(buckets, dim=1, keepdim=True)
        # An empty bucket has norm 0.
        shares = buckets / norms.clamp(min=torch.finfo(values.dtype).tiny)
        codes = round_randomly(shares * self._levels, self._levels, self.generator)
        return join(norms, pack(codes.view(-1)[: len(values)], self._bits))

    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        num_buckets = -(-len(into) // self._bucket_elements)
        norms, packed = split(payload, num_buckets, into.dtype)
        levels = unpack(packed, self._bits, len(into)).to(into.dtype).sub_(self._levels)
        units = norms.div_(self._levels).repeat_interleave(self._bucket_elements)[: len(into)]
        into.add_(levels.mul_(units), alpha=scale)
