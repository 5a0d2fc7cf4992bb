"""What payloads are made of: numbers, bits, and a scale for each layer. Nothing here waits for a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.numerics.vector import Flat


def join(numbers: Tensor, rest: Tensor) -> Tensor:
    """Two tensors as one of uint8; the numbers come first, where wide types are aligned."""
    return torch.cat([numbers.reshape(-1).view(torch.uint8), rest.view(torch.uint8)])


def split(payload: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The `count` numbers and the rest (uint8) of what `join` made."""
    border = count * dtype.itemsize
    payload = payload.clone()  # a row of a gathered matrix need not be aligned to its numbers
    return payload[:border].view(dtype), payload[border:]


def pack(codes: Tensor, bits: int) -> Tensor:
    """`codes` (n,) uint8 below 2**bits, with `bits` of 1, 2, 4 or 8, as uint8 (ceil(n * bits /
    8),).

    A byte takes its codes from far apart, so that each operation runs over contiguous memory.
    """
    lanes = F.pad(codes, (0, -len(codes) % (8 // bits))).view(8 // bits, -1)
    packed = lanes[0].clone()
    for position, lane in enumerate(lanes[1:], start=1):
        packed |= lane << (position * bits)
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes that `pack` was given."""
    return torch.cat([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)])[:count]


def round_randomly(values: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """Whole numbers from -limit to limit whose expectation is `values` clipped to that range, as
    uint8 from 0 up.
    """
    dice = torch.rand(values.shape, generator=generator, dtype=values.dtype, device=values.device)
    return dice.add_(values).floor_().clamp_(-limit, limit).add_(limit).to(torch.uint8)


class Layers:
    """Turns elements into one number a layer, and back."""

    def __init__(self, vector: Flat) -> None:
        self._sizes = [part.stop - part.start for part in vector.slices]
        self._repeats = torch.tensor(self._sizes, device=vector.gradients.device)

    def __len__(self) -> int:
        return len(self._sizes)

    def each(self, statistic: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """`statistic` of every layer's part of `values` (n,), as (layers,)."""
        return torch.stack([statistic(part) for part in values.split(self._sizes)])

    def spread(self, numbers: Tensor) -> Tensor:
        """Each layer's number (layers,) at all its elements (n,)."""
        return numbers.repeat_interleave(self._repeats, output_size=sum(self._sizes))
