"""Groups of workers that torch.distributed connects, and the algorithms by which they sum a vector
(all-reduce): ring, tree, and the native one of Gloo or NCCL.

Their costs for p workers, n bytes, latency a and b seconds a byte (Thakur et al., doi
10.1177/1094342005051521): ring 2 (p-1) a + 2 (p-1)/p n b; tree, for p a power of two, 2 log2(p)
(a + n b). After a ring or a tree, all workers hold the same sum, bit for bit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from bsweep.config.allreduce import Algorithm
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.core import network, torch_private
from bsweep.core.ranks import World
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.base import Strategy, ring_counts

Count = Callable[[int, int, int], None]


class Wire:
    """A worker's connection to the workers of a group."""

    def __init__(self, group: dist.ProcessGroup, count: Count) -> None:
        """Connect this worker.

        Args:
            group: The process group of the workers.
            count: Called with the bytes that this worker sends and receives, and the number of
                exchange steps.
        """
        self.group, self.count = group, count
        self.rank, self.num_workers = group.rank(), group.size()

    def exchange(self, send: Tensor, target: int, receive: Tensor, source: int) -> None:
        """Send the tensor `send` to worker `target` and receive `receive` from worker `source` at
        the same time. An empty tensor is not sent.
        """
        # Post the receive first. On a slow link, a peer hears that it may send only after
        # everything that was sent before.
        operations = [
            dist.P2POp(dist.irecv, receive, group=self.group, group_peer=source),
            dist.P2POp(dist.isend, send, group=self.group, group_peer=target),
        ]
        # A small vector may have empty parts.
        operations = [o for o in operations if o.tensor.numel()]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        self.count(send.nbytes, receive.nbytes, 1)

    def send(self, tensor: Tensor, target: int) -> None:
        self.exchange(tensor, target, tensor[:0], target)

    def receive(self, tensor: Tensor, source: int) -> None:
        self.exchange(tensor[:0], source, tensor, source)


def native(vector: Tensor, wire: Wire) -> None:
    """Sum `vector` over workers with the all-reduce of Gloo or NCCL.

    Its bytes are counted as those of a ring, the algorithm that Gloo uses and NCCL often uses.
    """
    dist.all_reduce(vector, group=wire.group)
    wire.count(*ring_counts(vector.nbytes, wire.num_workers))


def ring(vector: Tensor, wire: Wire) -> None:
    """Sum `vector` over workers in a ring (Patarasuk and Yuan, 2009).

    Every part travels round once to be summed, and once more to hand the sum to all workers.
    """
    p, rank = wire.num_workers, wire.rank
    parts, right, left = vector.tensor_split(p), (rank + 1) % p, (rank - 1) % p
    inbox = torch.empty_like(parts[0])  # the largest part
    for step in range(p - 1):
        sent_part, sum_part = parts[(rank - step) % p], parts[(rank - step - 1) % p]
        received = inbox[: len(sum_part)]
        wire.exchange(sent_part, right, received, left)
        sum_part.add_(received)
    for step in range(p - 1):
        wire.exchange(parts[(rank + 1 - step) % p], right, parts[(rank - step) % p], left)


def tree(vector: Tensor, wire: Wire) -> None:
    """Sum `vector` over workers along a binomial tree with worker 0 at its root; send the sum back
    down.
    """
    p, rank = wire.num_workers, wire.rank
    distances = [2**level for level in range((p - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            wire.send(vector, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < p:
            received = torch.empty_like(vector)
            wire.receive(received, rank + distance)
            vector.add_(received)
            del received  # before the next one takes as much memory
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            wire.receive(vector, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < p:
            wire.send(vector, rank + distance)


ALGORITHMS: dict[Algorithm, Callable[[Tensor, Wire], None]] = {
    "ring": ring,
    "tree": tree,
    "native": native,
}


class TorchStrategy(Strategy):
    """A strategy whose workers form a process group of torch.distributed.

    Its `all_reduce` and `all_gather` are those that codecs may ask for.
    """

    algorithm: Algorithm = "native"
    """The algorithm by which `all_reduce` sums."""

    def connect(self) -> None:
        self.workers = join(self.config, self.world)
        self._wire = Wire(self.workers, self.count)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        self._vector, self._optimizer = vector, optimizer
        with worker_lost():
            dist.broadcast(vector.parameters, src=0, group=self.workers)

    def gather(self, values: Tensor) -> Tensor:
        return torch.stack(self._gathered(values))

    def all_reduce(self, tensor: Tensor) -> None:
        with worker_lost():
            ALGORITHMS[self.algorithm](tensor, self._wire)

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        others = self.num_workers - 1
        self.count(others * payload.nbytes, others * payload.nbytes, others)
        return self._gathered(payload)

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        every = [torch.empty_like(tensor) for _ in range(self.num_workers)]
        with worker_lost():
            dist.all_gather(every, tensor, group=self.workers)
        return every

    def divided(self, ranks: Tensor) -> dist.ProcessGroup:
        """Divide the workers into groups, and return that of this worker.

        All workers call it together.

        Args:
            ranks: The ranks of the workers, whose rows are the groups.

        Returns:
            The process group, in which ranks follow the order of its row.
        """
        with worker_lost():
            group, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        _KEPT.append(group)
        return group

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
        if store := network.store_at(address, int(port), interface, num_processes, _TIMEOUT):
            return store, 0, num_processes
    store, rank, num_processes = next(rendezvous("env://", timeout=_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    return store, rank, num_processes


# What drops the last reference to a group joins Gloo's threads while it holds Python's lock, and
# one of these threads may wait for that lock: Python in torch 2.6, DDP's reducer in torch 2.13.
# So the groups of the last run live until the next run's are there, or the process ends. With
# torch 2.6 they live until the process ends: a loop that makes a group of one process, sums with a
# callback and drops the group of the pass before hung within 50 passes, in two of two tries.
_KEPT: list[dist.ProcessGroup] = []


def join(config: RunConfig, world: World) -> dist.ProcessGroup:
    """Connect this process to the other processes of the run, and return the workers' process
    group.

    Workers have their ranks in this group. Parameter servers join only the group around it.
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
    processes = workers = dist.group.WORLD
    if config.num_server_processes:
        workers = dist.new_group(list(range(world.num_workers)), timeout=_TIMEOUT)
    assert processes is not None
    assert workers is not None
    if torch_private.joins_gloo_safely():
        _KEPT.clear()
    _KEPT.extend([processes, workers])
    return workers
