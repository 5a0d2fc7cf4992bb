"""Functions for random numbers that are computed from a key, such as (seed, epoch), without the
state of a generator.
"""

from __future__ import annotations

import hashlib

from torch import Tensor


def random_bits(counters: Tensor, stream: int) -> Tensor:
    """Return 64 random bits for each integer in `counters`; different integers give different bits.

    The bits are the outputs of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) at the positions
    `counters` of a stream. The function needs no state, no generator and no copy to the host. Its
    int64 arithmetic wraps as the original's uint64 arithmetic does.

    Args:
        counters: An int64 tensor of any shape.
        stream: The start of the stream, see `stream_of`.

    Returns:
        An int64 tensor of the shape and on the device of `counters`.
    """
    x = counters * _signed(0x9E3779B97F4A7C15) + stream
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def stream_of(*key: int | str) -> int:
    """Return the seed (an int64) of a stream of random bits, computed from words and numbers such
    as (purpose, seed, epoch).
    """
    return int.from_bytes(_digest(key), "little", signed=True)


def seed_of(*key: int | str) -> int:
    """Return a seed for a random generator, computed from a key such as (seed, rank, purpose)
    alone. A sum of the key's parts would be the same for many keys.
    """
    return int.from_bytes(_digest(key), "little") >> 1


def _digest(key: tuple[int | str, ...]) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=8).digest()


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Return `x >> places` filled with zeros from the left; torch's operator copies the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64)
