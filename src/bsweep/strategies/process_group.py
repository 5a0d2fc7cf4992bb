"""Workers joined by torch.distributed: what its strategies share."""

from __future__ import annotations

import functools
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from bsweep.config import Algorithm, ProcessesConfig, RunConfig, StrategyConfig
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat
from bsweep.runlog import RunPaths
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.base import Strategy
from bsweep.strategies.collectives import ALGORITHMS, Wire


class TorchStrategy(Strategy):
    """Joins the workers' process group; the sums and copies in it are those that codecs may ask
    for.
    """

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.workers = join(config, place)
        self._wire = Wire(self.workers, self.rank, self.num_workers)
        self.choose("native")

    def choose(self, algorithm: Algorithm) -> None:
        """How to sum from now on."""
        self._all_reduce = ALGORITHMS[algorithm]

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        self._vector, self._optimizer = vector, optimizer
        with worker_lost():
            dist.broadcast(vector.parameters, src=0, group=self.workers)

    def gather(self, values: Tensor) -> Tensor:
        every = [torch.empty_like(values) for _ in range(self.num_workers)]
        with worker_lost():
            dist.all_gather(every, values, group=self.workers)
        return torch.stack(every)

    def all_reduce(self, tensor: Tensor) -> None:
        with worker_lost():
            self._all_reduce(tensor, self._wire)
        self._count()

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        every = [torch.empty_like(payload) for _ in range(self.num_workers)]
        with worker_lost():
            dist.all_gather(every, payload, group=self.workers)
        self._wire.count(
            (self.num_workers - 1) * payload.numel() * payload.element_size(), self.num_workers - 1
        )
        self._count()
        return every

    def _count(self) -> None:
        self.meter.sent_bytes += self._wire.sent_bytes
        self.meter.received_bytes += self._wire.received_bytes
        self.meter.exchange_steps += self._wire.exchange_steps
        self._wire.reset()

    def close(self) -> None:
        dist.destroy_process_group()


# The launcher ends a run that shows no sign of life; a worker out of step may be waited for as long
# as it lives.
_TIMEOUT = timedelta(days=1000)


@functools.lru_cache(maxsize=2)
def _meeting_point(address: str, port: str) -> tuple[Store, int, int]:
    """The store in which processes meet, for all runs of this process that meet there; its rank;
    how many there are.

    torchrun keeps the store, or else the first process does, which must not close it while others
    still look at it.
    """
    store, rank, num_processes = next(rendezvous("env://", timeout=_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    return store, rank, num_processes


def join(config: RunConfig, place: Place) -> dist.ProcessGroup:
    """The group of the workers, in which they have their ranks; parameter servers join the world
    around it only.
    """
    assert isinstance(config.launch, ProcessesConfig), config.launch
    if config.strategy.can.outlives_workers:
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = (
            "1"  # else its watchdog ends those who wait for a lost worker
        )
    backend = (
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    )
    store, rank, num_processes = _meeting_point(
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    )
    # The store outlives a run: the next one of the same processes must not find what this one left
    # there. Where the run lies is told as it was given: the home of ~ may be another on each host.
    store = dist.distributed_c10d.PrefixStore(
        f"{config.results_dir}/{config.study}/{config.run_id}", store
    )
    dist.init_process_group(
        backend, timeout=_TIMEOUT, store=store, rank=rank, world_size=num_processes
    )
    world: dist.ProcessGroup | None = dist.group.WORLD
    if config.num_server_processes:
        world = dist.new_group(list(range(place.num_workers)), timeout=_TIMEOUT)
    assert world is not None
    return world
