"""All-reduce of the gradient vector over torch.distributed, by an algorithm of choice, with or without a codec."""

from __future__ import annotations

from torch.optim import Optimizer

from bsweep import compression
from bsweep.config import AllReduceConfig, RunConfig
from bsweep.place import Place
from bsweep.strategies.process_group import TorchStrategy
from bsweep.vector import Vector


class AllReduce(TorchStrategy):
    def __init__(self, config: RunConfig, strategy: AllReduceConfig, place: Place) -> None:
        super().__init__(config, place, strategy.algorithm)
        self._config = config

    def prepare(self, vector: Vector, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self._codec = compression.build(
            self._config.compression,
            vector,
            optimizer,
            seed=self._config.seed,
            rank=self.rank,
            num_workers=self.num_workers,
        )

    def begin_epoch(self, epoch: int) -> None:
        if self._codec:
            self._codec.begin_epoch(epoch)

    def step(self) -> None:
        gradients = self._vector.gradients
        if self.num_workers > 1:
            with self.meter.exchange(gradients):
                if self._codec:
                    self._codec.exchange(gradients, self)
                else:
                    self.all_reduce(gradients)
        self._optimizer.step()
