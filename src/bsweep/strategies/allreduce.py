"""The strategy `allreduce`: workers sum their gradients over torch.distributed by the configured
algorithm, such as a ring.

A codec may reduce what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.optim import Optimizer

from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.core.torch_private import private
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.strategies.collectives import Wire
from bsweep.strategies.process_group import TorchStrategy
from bsweep.strategies.summing import Summing


class AllReduce(TorchStrategy, Summing):
    def __init__(
        self, config: RunConfig, strategy: AllReduceConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self._place = place
        self.choose(strategy.algorithm)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.build_codec()

    def sum_gradients(self) -> None:
        self.all_reduce(self._vector.gradients)

    def regroup(self, members: Sequence[int], timeout: timedelta) -> None:
        """Make a new process group of the workers in `members`, over which gradients are summed
        from now on.

        A codec is built anew, so the gradients that it has kept back are dropped. All of `members`
        call this method together.

        Raises:
            WorkerLost: If the group cannot be made, probably because one of them has ended.
        """
        with worker_lost():
            counted = private("num_groups")()
            try:
                self.workers = dist.new_group(
                    list(members), timeout=timeout, use_local_synchronization=True
                )
            except RuntimeError:
                # torch names a group by the number of groups that this process has made. Workers on
                # which the new group succeeded have counted it, and torch 2.15 counts a failed one,
                # too. With torch 2.6 and 2.13, this worker makes a group of its own to count the
                # failed one: the next group's name must be new, and the same on all workers.
                if private("num_groups")() == counted:
                    dist.new_group(
                        [self._place.rank], use_local_synchronization=True, backend="gloo"
                    )
                raise
        self.num_workers = len(members)
        self._wire = Wire(self.workers, members.index(self._place.rank), self.num_workers)
        self.rank = self._wire.rank
        self.build_codec()
