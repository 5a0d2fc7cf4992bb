"""The strategies; a strategy is the way in which all workers of a run agree on one model.

Most strategies exchange each worker's gradients or parameters as one vector. All workers have the
same model at the end of an epoch at the latest. `Traffic` reports the bytes and seconds of the
exchanges. `base` defines the interface. An ability that only some strategies have is a class that
they inherit (`Rounds`, `InBackward`, `Staged`), and the loop tests for that class.

A strategy must not know the training loop, nor other runs of its study. The launcher
starts the further processes that a strategy needs (parameter servers); their code is here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bsweep.config.card import load_object
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths

if TYPE_CHECKING:
    from bsweep.strategies.base import InBackward, Rounds, Staged, Strategy, Summing

__all__ = ["InBackward", "Rounds", "Staged", "Strategy", "Summing", "build", "serve"]


def __getattr__(name: str) -> Any:
    # Import the names on first use: a process that only shards a model's layers does not need
    # torch.
    if name in __all__:
        return getattr(importlib.import_module("bsweep.strategies.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(config: RunConfig, world: World, paths: RunPaths) -> Strategy:
    """Return the strategy object of one worker, built from the run's configuration.

    This imports the strategy's module. Horovod is imported only if the strategy exchanges over it.
    """
    strategy: Strategy = load_object(config.strategy.builds)(config, config.strategy, world, paths)
    return strategy


def serve(config: RunConfig, world: World, paths: RunPaths) -> None:
    """Run a parameter server in this process until all workers have sent their goodbye message."""
    from bsweep.strategies import parameter_server

    parameter_server.serve(config, world, paths)
