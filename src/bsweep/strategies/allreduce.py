"""The strategy `allreduce`: workers sum their gradients over torch.distributed by the configured
algorithm, such as a ring.

A codec may reduce what is sent.
"""

from __future__ import annotations

from torch.optim import Optimizer

from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat
from bsweep.runlog.files import RunPaths
from bsweep.strategies.groups import TorchStrategy
from bsweep.strategies.summing import Summing


class AllReduce(TorchStrategy, Summing):
    def __init__(
        self, config: RunConfig, strategy: AllReduceConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.choose(strategy.algorithm)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.build_codec()

    def sum_gradients(self) -> None:
        self.all_reduce(self._vector.gradients)
