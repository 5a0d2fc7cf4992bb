"""The base class of the strategies whose workers are connected by torch.distributed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from bsweep.config.allreduce import Algorithm
from bsweep.config.groups import StrategyConfig
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.core import network, torch_private
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.strategies.base import Strategy
from bsweep.strategies.collectives import ALGORITHMS, Wire


class TorchStrategy(Strategy):
    """A strategy whose workers form a process group of torch.distributed.

    Its `all_reduce` and `all_gather` are those that codecs may ask for.
    """

    def __init__(
        self, config: RunConfig, strategy: StrategyConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.workers = join(config, place)
        self._wire = Wire(self.workers, self.rank, self.num_workers)
        self.choose("native")

    def choose(self, algorithm: Algorithm) -> None:
        """Set the algorithm, such as `ring`, by which the method `all_reduce` sums from now on."""
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
        self._count(self._wire)

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        every = [torch.empty_like(payload) for _ in range(self.num_workers)]
        with worker_lost():
            dist.all_gather(every, payload, group=self.workers)
        self._wire.count(
            (self.num_workers - 1) * payload.numel() * payload.element_size(), self.num_workers - 1
        )
        self._count(self._wire)
        return every

    def divided(self, rows: Iterable[Iterable[int]]) -> dist.ProcessGroup:
        """Divide the workers into groups, and return that of this worker.

        All workers call it together.

        Args:
            rows: The ranks of each group.

        Returns:
            The process group, in which ranks follow the order of its row.
        """
        with worker_lost():
            group, _ = dist.new_subgroups_by_enumeration(
                [list(row) for row in rows], timeout=_TIMEOUT
            )
        assert isinstance(group, dist.ProcessGroup)
        _KEPT.append(group)
        return group

    def _count(self, wire: Wire) -> None:
        self.meter.sent_bytes += wire.sent_bytes
        self.meter.received_bytes += wire.received_bytes
        self.meter.exchange_steps += wire.exchange_steps
        wire.reset()

    def close(self) -> None:
        dist.destroy_process_group()


# The launcher ends a run that shows no sign of life. Until then a worker may have to wait for
# another for as long as that one lives.
_TIMEOUT = timedelta(days=1000)


@functools.lru_cache(maxsize=2)
def _meeting_point(address: str, port: str) -> tuple[Store, int, int]:
    """Return torch's rendezvous store, the rank of this process in it, and the number of processes.

    All runs of this process that meet at this address share the store. torchrun keeps the store.
    Without torchrun the first process keeps it, and must not close it while others still read it.
    """
    env = os.environ
    if env["RANK"] == "0" and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        interface, num_processes = env.get("GLOO_SOCKET_IFNAME"), int(env["WORLD_SIZE"])
        if own := network.store_at(address, int(port), interface, num_processes, _TIMEOUT):
            return own, 0, num_processes
    store, rank, num_processes = next(rendezvous("env://", timeout=_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    return store, rank, num_processes


# What drops the last reference to a group joins Gloo's threads while it holds Python's lock, and
# one of these threads may wait for that lock: Python in torch 2.6, DDP's reducer in torch 2.13.
# So the groups of the last run live until the next run's are there, or the process ends. With
# torch 2.6 they live until the process ends: a loop that makes a group of one process, sums with a
# callback and drops the group of the pass before hung within 50 passes, in two of two tries.
_KEPT: list[dist.ProcessGroup] = []


def join(config: RunConfig, place: Place) -> dist.ProcessGroup:
    """Connect this process to the other processes of the run, and return the workers' process
    group.

    Workers have their ranks in this group. Parameter servers join only the world around it.
    """
    assert isinstance(config.launch, ProcessesConfig), config.launch
    backend = (
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    )
    store, rank, num_processes = _meeting_point(
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    )
    # The store outlives a run: the next run of the same processes must not find this run's keys
    # there. The prefix is the run's folder as it was configured, because ~ may be another folder on
    # each host.
    store = PrefixStore(f"{config.results_dir}/{config.study}/{config.run_id}", store)
    dist.init_process_group(
        backend, timeout=_TIMEOUT, store=store, rank=rank, world_size=num_processes
    )
    world: dist.ProcessGroup | None = dist.group.WORLD
    if config.num_server_processes:
        world = dist.new_group(list(range(place.num_workers)), timeout=_TIMEOUT)
    assert world is not None
    assert dist.group.WORLD is not None
    if torch_private.joins_gloo_safely():
        _KEPT.clear()
    _KEPT.extend([dist.group.WORLD, world])
    return world
