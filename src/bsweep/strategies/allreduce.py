"""All-reduce of the gradient vector over torch.distributed, by an algorithm of choice, with or without a codec."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.optim import Optimizer

from bsweep.config import AllReduceConfig, RunConfig
from bsweep.errors import worker_lost
from bsweep.place import Place
from bsweep.runlog import RunPaths
from bsweep.strategies.collectives import Wire
from bsweep.strategies.process_group import TorchStrategy
from bsweep.strategies.summing import Summing
from bsweep.vector import Flat


class AllReduce(TorchStrategy, Summing):
    def __init__(self, config: RunConfig, strategy: AllReduceConfig, place: Place, paths: RunPaths) -> None:
        super().__init__(config, strategy, place, paths)
        self._place = place
        self.choose(strategy.algorithm)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.build_codec()

    def sum_gradients(self) -> None:
        self.all_reduce(self._vector.gradients)

    def regroup(self, members: Sequence[int], timeout: timedelta) -> None:
        """Go on among `members` alone, which all call this together; what a codec's memory holds is lost.

        Raises:
            WorkerLost: one of them has ended meanwhile.
        """
        with worker_lost():
            try:
                self.workers = dist.new_group(list(members), timeout=timeout, use_local_synchronization=True)
            except RuntimeError:
                # torch names a group by how many there are in this process. Count the one that failed too, as workers
                # do on which it did not fail: the next one's name must be new, and the same on all.
                dist.new_group([self._place.rank], use_local_synchronization=True, backend="gloo")
                raise
        self.num_workers = len(members)
        self._wire = Wire(self.workers, members.index(self._place.rank), self.num_workers)
        self.rank = self._wire.rank
        self.build_codec()
