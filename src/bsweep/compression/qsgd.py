"""QSGD (Alistarh et al., arXiv 1610.02132): each gradient element is rounded at random to one of a
few levels, which are fractions of its bucket's norm.

There are s = 2**(bits - 1) - 1 levels on each side of 0: Q(v_i) = |v| sign(v_i) xi_i / s. Here xi_i
is one of the two whole numbers around s |v_i| / |v|, chosen so that E[Q(v)] = v. An element costs
`bits` bits, and each bucket costs its norm in addition. There is no entropy code, because its
length would depend on the values.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.compression.base import GatherCodec, Setting, join, split
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


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack whole numbers (codes) of 2, 4 or 8 bits into bytes.

    Codes that are far apart share a byte, so that each operation runs over contiguous memory.

    Args:
        codes: Numbers below 2**bits, uint8 (n,).
        bits: The bits of a code: 2, 4 or 8.

    Returns:
        The packed codes, uint8 (ceil(n * bits / 8),).
    """
    lanes = F.pad(codes, (0, -len(codes) % (8 // bits))).view(8 // bits, -1)
    return (lanes << _shifts(bits, codes.device)).sum(dim=0, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the `count` codes that `pack` has packed into the bytes `packed`."""
    lanes = (packed >> _shifts(bits, packed.device)).bitwise_and_(2**bits - 1)
    return lanes.view(-1)[:count]


@functools.cache
def _shifts(bits: int, device: torch.device) -> Tensor:
    """Return the positions of the codes in a byte, uint8 (8 / bits, 1)."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device).view(-1, 1)


def round_randomly(values: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """Round each value up or down at random, so that the expected result is the value clipped to
    +-limit.

    The numbers lie from -limit to limit, and are returned as uint8 after adding `limit`.
    """
    dice = torch.rand(values.shape, generator=generator, dtype=values.dtype, device=values.device)
    return dice.add_(values).floor_().clamp_(-limit, limit).add_(limit).to(torch.uint8)
