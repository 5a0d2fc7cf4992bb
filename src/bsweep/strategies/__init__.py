"""How workers agree on one model: one file and one line here for each strategy."""

from __future__ import annotations

from bsweep.config import AnyStrategy, HorovodConfig, SingleConfig
from bsweep.strategies.base import Strategy, Traffic, WorkerLost
from bsweep.strategies.single import Single

__all__ = ["Strategy", "Traffic", "WorkerLost", "build"]


def build(config: AnyStrategy) -> Strategy:
    match config:
        case SingleConfig():
            return Single()
        case HorovodConfig():
            from bsweep.strategies.horovod import Horovod  # Horovod need not be installed for the others

            return Horovod(config)
