"""How workers agree on one model."""

from __future__ import annotations

from bsweep.config import RunConfig, resolve
from bsweep.core.ranks import Place
from bsweep.runlog import RunPaths
from bsweep.strategies.base import InBackward, Rounds, Strategy

__all__ = ["InBackward", "Rounds", "Strategy", "build", "serve"]


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
