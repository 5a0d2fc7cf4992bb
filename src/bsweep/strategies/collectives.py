"""Algorithms that sum a vector over workers (all-reduce): ring, tree, and the native one of Gloo or
NCCL.

Their costs for p workers, n bytes, latency a and b seconds a byte (Thakur et al., doi
10.1177/1094342005051521): ring 2 (p-1) a + 2 (p-1)/p n b; tree, for p a power of two, 2 log2(p)
(a + n b). After a ring or a tree, all workers hold the same sum, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from bsweep.config.allreduce import Algorithm


class Wire:
    """A worker's connection to the other workers, with counts of its exchange steps and bytes."""

    def __init__(self, group: dist.ProcessGroup, rank: int, num_workers: int) -> None:
        self.group, self.rank, self.num_workers = group, rank, num_workers
        self._inbox = torch.empty(0)
        self.reset()

    def reset(self) -> None:
        self.sent_bytes = self.received_bytes = self.exchange_steps = 0

    def count(self, num_bytes: int, exchange_steps: int) -> None:
        self.sent_bytes += num_bytes
        self.received_bytes += num_bytes
        self.exchange_steps += exchange_steps

    def exchange(self, send: Tensor, to: int, receive: Tensor, source: int) -> None:
        """Send the tensor `send` to worker `to` and receive `receive` from worker `source` at the
        same time. An empty tensor is not sent.
        """
        # Post the receive first. On a slow link, a peer hears that it may send only after
        # everything that was sent before.
        operations = [
            dist.P2POp(dist.irecv, receive, group=self.group, group_peer=source),
            dist.P2POp(dist.isend, send, group=self.group, group_peer=to),
        ]
        # A small vector may have empty parts.
        operations = [o for o in operations if o.tensor.numel()]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        self.sent_bytes += send.numel() * send.element_size()
        self.received_bytes += receive.numel() * receive.element_size()
        self.exchange_steps += 1

    def send(self, tensor: Tensor, to: int) -> None:
        self.exchange(tensor, to, tensor[:0], to)

    def receive(self, tensor: Tensor, source: int) -> None:
        self.exchange(tensor[:0], source, tensor, source)

    def inbox(self, like: Tensor) -> Tensor:
        """Return a buffer in which a tensor of the size and type of `like` can be received.

        A call uses the memory of an earlier call again if this is large enough.
        """
        if (
            self._inbox.dtype != like.dtype
            or self._inbox.device != like.device
            or len(self._inbox) < len(like)
        ):
            self._inbox = torch.empty_like(like)
        return self._inbox[: len(like)]


def native(vector: Tensor, wire: Wire) -> None:
    """Sum `vector` over workers with the all-reduce of Gloo or NCCL.

    Its bytes are counted as those of a ring, the algorithm that Gloo uses and NCCL often uses.
    """
    dist.all_reduce(vector, group=wire.group)
    exchange_steps = 2 * (wire.num_workers - 1)
    wire.count(
        exchange_steps * vector.numel() * vector.element_size() // wire.num_workers, exchange_steps
    )


def ring(vector: Tensor, wire: Wire) -> None:
    """Sum `vector` over workers in a ring (Patarasuk and Yuan, 2009).

    Every part travels round once to be summed, and once more to hand the sum to all workers.
    """
    p, rank = wire.num_workers, wire.rank
    parts, right, left = vector.tensor_split(p), (rank + 1) % p, (rank - 1) % p
    for step in range(p - 1):
        mine, theirs = parts[(rank - step) % p], parts[(rank - step - 1) % p]
        received = wire.inbox(theirs)
        wire.exchange(mine, right, received, left)
        theirs.add_(received)
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
            received = wire.inbox(vector)
            wire.receive(received, rank + distance)
            vector.add_(received)
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
