"""The strategy `allreduce`: workers sum their gradients over torch.distributed by the configured
algorithm, such as a ring.

A codec may reduce what is sent.
"""

from __future__ import annotations

from torch.optim import Optimizer

from bsweep.config.allreduce import AllReduceConfig
from bsweep.numerics.vector import Flat
from bsweep.strategies.base import Summing
from bsweep.strategies.groups import TorchStrategy


class AllReduce(TorchStrategy, Summing):
    card: AllReduceConfig

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.algorithm = self.card.algorithm
        self.build_codec()
