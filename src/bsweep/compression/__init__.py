"""Codecs by name: one file and one line here for each."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from bsweep.compression.base import Codec
from bsweep.compression.dgc import DGC
from bsweep.compression.fp16 import FP16
from bsweep.compression.powersgd import PowerSGD
from bsweep.compression.qsgd import QSGD
from bsweep.compression.signsgd import SignSGD
from bsweep.compression.terngrad import TernGrad
from bsweep.compression.topk import TopK
from bsweep.config import (
    AnyCompression,
    DGCConfig,
    FP16Config,
    NoCompressionConfig,
    PowerSGDConfig,
    QSGDConfig,
    SignSGDConfig,
    TernGradConfig,
    TopKConfig,
)
from bsweep.randomness import seed_of
from bsweep.vector import Flat


def build(
    config: AnyCompression, vector: Flat, optimizer: Optimizer, *, seed: int, rank: int, num_workers: int
) -> Codec | None:
    """The codec of one worker's gradients; None where they travel as they are, or not at all.

    Call it before the first step: DGC takes the momentum over from the optimizer.
    """
    if num_workers == 1:
        return None
    match config:
        case NoCompressionConfig():
            return None
        case FP16Config():
            return FP16()
        case TopKConfig():
            return TopK(config, vector.gradients)
        case DGCConfig():
            return DGC(config, vector.gradients, optimizer, num_workers)
        case QSGDConfig():
            return QSGD(config, _generator(vector, seed, rank, "qsgd"))
        case TernGradConfig():
            return TernGrad(config, vector, _generator(vector, seed, rank, "terngrad"))
        case SignSGDConfig():
            return SignSGD(vector)
        case PowerSGDConfig():
            return PowerSGD(config, vector, _generator(vector, seed, "powersgd"))


def _generator(vector: Flat, *key: int | str) -> torch.Generator:
    """Its own random numbers, so that a run repeats whatever else draws some."""
    return torch.Generator(vector.gradients.device).manual_seed(seed_of(*key))
