"""Random numbers that are a function of what they are for, and so the same whatever was drawn
before or elsewhere.
"""

from __future__ import annotations

import hashlib

from torch import Tensor


def random_bits(counters: Tensor, stream: int | Tensor) -> Tensor:
    """64 random bits for each counter, int64 of the same shape and on the same device; distinct
    counters differ.

    The outputs of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) at the positions `counters` of a
    stream, see `stream_of`, which may be an int64 tensor () of that device: a CUDA graph reads it
    anew at each replay. Needs no state, no generator and no copy to the host; int64 arithmetic
    wraps as the original's uint64 does.
    """
    x = counters * _signed(0x9E3779B97F4A7C15) + stream
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def stream_of(*key: int | str) -> int:
    """Where a key's own stream of random bits starts: an int64."""
    return int.from_bytes(_digest(key), "little", signed=True)


def seed_of(*key: int | str) -> int:
    """A seed for a generator that is one key's alone, such as (seed, rank, purpose): their sum
    would be many keys'.
    """
    return int.from_bytes(_digest(key), "little") >> 1


def _digest(key: tuple[int | str, ...]) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=8).digest()


def _shift_right(x: Tensor, places: int) -> Tensor:
    """`x >> places` that fills with zeros, where torch copies the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64)
