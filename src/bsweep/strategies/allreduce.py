"""The strategy `allreduce`: workers sum their gradients over torch.distributed by the configured
algorithm, such as a ring.

A codec may reduce what is sent. Workers on one host may sum in shared memory instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.allreduce import AllReduceConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.core.torch_private import private
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Event
from bsweep.strategies import shared_memory
from bsweep.strategies.collectives import Wire
from bsweep.strategies.process_group import TorchStrategy
from bsweep.strategies.summing import Summing


class AllReduce(TorchStrategy, Summing):
    def __init__(
        self, config: RunConfig, strategy: AllReduceConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self._place = place
        self._strategy = strategy
        self._sum_in_memory: Callable[[], None] | None = None
        self.choose(strategy.algorithm)

    def new_gradients(self, parameters: Tensor) -> Tensor:
        """Return a tensor of zeros for this worker's gradients.

        All workers map its memory, if `strategy.transport` allows that and they can share memory.

        Raises:
            ValueError: If `strategy.transport=shared_memory` and several workers cannot share
                memory.
        """
        wanted = self._strategy.transport
        reason = "" if wanted == "network" else self._why_not_shared(parameters)
        if not reason and wanted != "network":
            vectors, reason = shared_memory.share(parameters, self.gather_json)
            if vectors:
                self.transport = "shared_memory"
                self._sum_in_memory = shared_memory.Sum(vectors, self.workers, self.rank)
                return vectors[self.rank]
            message = (
                f"gradients travel by the network, because workers cannot share memory ({reason})"
            )
            self.warnings = (Event(event="warning", message=message),)
        if wanted == "shared_memory" and self.num_workers > 1:
            raise ValueError(
                f"strategy.transport=shared_memory, but {reason}: use strategy.transport=auto."
            )
        self.transport = "network" if self.num_workers > 1 and not parameters.is_cuda else None
        return super().new_gradients(parameters)

    def _why_not_shared(self, parameters: Tensor) -> str:
        if parameters.is_cuda:
            return "gradients are on GPUs"
        if self._place.local_workers < self.num_workers:
            return "workers are on several hosts"
        if self.num_workers == 1:
            return "there is one worker"
        return self._strategy.why_not_shared(self._config)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.build_codec()

    def sum_gradients(self) -> None:
        if not self._sum_in_memory:
            self.all_reduce(self._vector.gradients)
            return
        with worker_lost():
            self._sum_in_memory()
        self.meter.exchange_steps += shared_memory.NUM_MEETINGS

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
