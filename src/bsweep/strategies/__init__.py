"""How workers agree on one model: one file and one line here for each strategy."""

from __future__ import annotations

from bsweep.config import (
    AllReduceConfig,
    DDPConfig,
    DiLoCoConfig,
    HorovodConfig,
    LocalSGDConfig,
    ParameterServerConfig,
    RunConfig,
    SingleConfig,
)
from bsweep.place import Place
from bsweep.runlog import RunPaths
from bsweep.strategies.base import InBackward, Resumable, Rounds, Strategy
from bsweep.strategies.single import Single

__all__ = ["InBackward", "Resumable", "Rounds", "Strategy", "build", "serve"]


def build(config: RunConfig, place: Place, paths: RunPaths) -> Strategy:
    """The strategy of a run, for one worker; each imports what it needs, for Horovod may not be installed."""
    match config.strategy:
        case SingleConfig():
            return Single(config, place)
        case HorovodConfig() as strategy:
            from bsweep.strategies.horovod import Horovod

            return Horovod(config, strategy, place)
        case DDPConfig() as strategy:
            from bsweep.strategies.ddp import DDP

            return DDP(config, strategy, place)
        case AllReduceConfig() as strategy:
            from bsweep.strategies.allreduce import AllReduce

            return AllReduce(config, strategy.algorithm, place)
        case ParameterServerConfig():
            from bsweep.strategies.parameter_server import ParameterServer

            return ParameterServer(config, place, paths)
        case LocalSGDConfig() as strategy:
            from bsweep.strategies.local_sgd import LocalSGD

            return LocalSGD(config, strategy, place)
        case DiLoCoConfig() as strategy:
            from bsweep.strategies import eager

            return eager.build(config, strategy, place, paths)


def serve(config: RunConfig, place: Place, paths: RunPaths) -> None:
    """Be a parameter server, until all workers have said goodbye."""
    from bsweep.strategies import parameter_server

    parameter_server.serve(config, place, paths)
