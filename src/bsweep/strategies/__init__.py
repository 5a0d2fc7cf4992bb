"""Ways in which workers agree on one model: one file for each.

A worker's gradients or parameters come in, in one vector. Every worker leaves a step, or a round,
with the same updated model; what that took in bytes and seconds goes out as `Traffic`. The seam is
in `base`: what only some strategies can do is a class that they inherit (`Rounds`, `InBackward`),
and is asked for.

A strategy must not know the loop, nor the study that its run is part of. Further processes that it
needs (parameter servers) are started by the launcher and are served here.
"""

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
