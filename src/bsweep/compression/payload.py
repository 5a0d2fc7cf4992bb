"""Tools of codecs: conversion of numbers into the bytes that a worker sends, and back, and random
rounding. They do not wait for results of a GPU.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F


def join(numbers: Tensor, rest: Tensor) -> Tensor:
    """Return the bytes of two tensors as one uint8 tensor.

    The bytes of `numbers` come first, so that wide types are aligned.
    """
    return torch.cat([numbers.reshape(-1).view(torch.uint8), rest.view(torch.uint8)])


def split(payload: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split the bytes that `join` made into two parts: `count` numbers, and the other bytes."""
    border = count * dtype.itemsize
    payload = payload.clone()  # a row of a gathered matrix may not be aligned for its numbers
    return payload[:border].view(dtype), payload[border:]


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
