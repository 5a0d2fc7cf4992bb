"""How workers agree on one model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bsweep.config import RunConfig, resolve
from bsweep.core.ranks import Place
from bsweep.runlog import RunPaths

if TYPE_CHECKING:
    from bsweep.strategies.base import InBackward, Rounds, Strategy

__all__ = ["InBackward", "Rounds", "Strategy", "build", "serve"]


def __getattr__(name: str) -> Any:
    # On first use: a parent that only shards a model's layers does without torch.
    if name in __all__:
        return getattr(importlib.import_module("bsweep.strategies.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(config: RunConfig, place: Place, paths: RunPaths) -> Strategy:
    """The strategy of a run, for one worker; its module is imported only here, for Horovod may not
    be installed.
    """
    strategy: Strategy = resolve(config.strategy.builds)(config, config.strategy, place, paths)
    return strategy


def serve(config: RunConfig, place: Place, paths: RunPaths) -> None:
    """Be a parameter server, until all workers have said goodbye."""
    from bsweep.strategies import parameter_server

    parameter_server.serve(config, place, paths)
