"""Codecs: what of a gradient travels.

A worker's gradient comes in, as one flat vector. The sum of what all workers' codecs let through
goes out in its place, and less than the gradient has travelled. There is one file for each codec;
`base` has the seam.

A codec must not know the loop, nor what carries its payload: it asks a `Group` for sums and copies.
What it remembers from step to step is its own, and is saved with the run.
"""

from __future__ import annotations

from torch.optim import Optimizer

from bsweep.compression.base import Codec, Setting
from bsweep.config import CodecConfig, OwnCodecConfig, own, resolve
from bsweep.numerics.vector import Flat

__all__ = ["Codec", "Setting", "build"]


def build(
    config: CodecConfig,
    vector: Flat,
    optimizer: Optimizer,
    *,
    seed: int,
    rank: int,
    num_workers: int,
) -> Codec | None:
    """The codec of one worker's gradients; None where they travel as they are, or not at all.

    Call it before the first step: DGC takes the momentum over from the optimizer.
    """
    if num_workers == 1 or not config.builds:
        return None
    setting = Setting(
        vector=vector, optimizer=optimizer, seed=seed, rank=rank, num_workers=num_workers
    )
    codec: Codec = resolve(config.builds)(config, setting)
    return codec


def from_target(config: OwnCodecConfig, setting: Setting) -> Codec:
    """The user's own: `target(config, setting, **options)`."""
    codec: Codec = own.made("compression", config, Codec, config, setting)
    return codec
