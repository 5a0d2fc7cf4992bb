"""The parts of payloads: numbers, bits, and a scale for each layer. Nothing here waits for a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.numerics.vector import Flat


def join(numbers: Tensor, rest: Tensor) -> Tensor:
    """Return two tensors as one of uint8; the numbers come first, so that wide types are
    aligned.
    """
    return torch.cat([numbers.reshape(-1).view(torch.uint8), rest.view(torch.uint8)])


def split(payload: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the `count` numbers and the rest (uint8) of a payload that `join` made."""
    border = count * dtype.itemsize
    payload = payload.clone()  # a row of a gathered matrix may not be aligned for its numbers
    return payload[:border].view(dtype), payload[border:]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of a few bits into bytes.

    Codes that are far apart share a byte, so that each operation runs over contiguous memory.

    Args:
        codes: Numbers below 2**bits, uint8 (n,).
        bits: The bits of a code: 1, 2, 4 or 8.

    Returns:
        The packed codes, uint8 (ceil(n * bits / 8),).
    """
    lanes = F.pad(codes, (0, -len(codes) % (8 // bits))).view(8 // bits, -1)
    packed = lanes[0].clone()
    for position, lane in enumerate(lanes[1:], start=1):
        packed |= lane << (position * bits)
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the `count` codes that were given to `pack`."""
    return torch.cat([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)])[:count]


def round_randomly(values: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """Round `values` randomly to whole numbers, whose expectation is `values` clipped to +-limit.

    The numbers lie from -limit to limit, and are returned as uint8 after adding `limit`.
    """
    dice = torch.rand(values.shape, generator=generator, dtype=values.dtype, device=values.device)
    return dice.add_(values).floor_().clamp_(-limit, limit).add_(limit).to(torch.uint8)


class Layers:
    """A conversion between the elements of a vector and one number for each layer."""

    def __init__(self, vector: Flat) -> None:
        self._sizes = [part.stop - part.start for part in vector.slices]
        self._repeats = torch.tensor(self._sizes, device=vector.gradients.device)

    def __len__(self) -> int:
        return len(self._sizes)

    def each(self, statistic: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Return a tensor (layers,): the `statistic` of each layer's part of `values` (n,)."""
        return torch.stack([statistic(part) for part in values.split(self._sizes)])

    def spread(self, numbers: Tensor) -> Tensor:
        """Return each layer's number (layers,) repeated for all its elements (n,)."""
        return numbers.repeat_interleave(self._repeats, output_size=sum(self._sizes))
