"""Codecs, which make workers send less than their whole gradients; each codec has its own file.

A codec takes a worker's gradient as one flat vector. It replaces the gradient by the sum of what
all workers' codecs let through, and sends less than the gradient. `base` defines the interface.

A codec must not know the training loop, nor how its payload is sent: it asks a `Group` for sums and
copies. A codec's memory from step to step is its own, and is saved with the run.
"""

from __future__ import annotations

from bsweep.compression.base import Codec, Setting
from bsweep.config import user_code
from bsweep.config.card import load_object
from bsweep.config.compression import OwnCodecConfig
from bsweep.config.groups import CodecConfig

__all__ = ["Codec", "Setting", "build"]


def build(config: CodecConfig, setting: Setting) -> Codec | None:
    """Return the codec of one worker's gradients, or None if the run has one worker or no codec.

    Call it before the first step: DGC takes the momentum over from the optimizer.
    """
    if setting.num_workers == 1 or not config.builds:
        return None
    codec: Codec = load_object(config.builds)(config, setting)
    return codec


def from_target(config: OwnCodecConfig, setting: Setting) -> Codec:
    """Return the codec that the user's own function `target(config, setting, **options)` makes."""
    codec: Codec = user_code.make("compression", config, Codec, config, setting)
    return codec
