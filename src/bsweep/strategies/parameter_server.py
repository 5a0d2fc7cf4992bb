"""Parameter servers (Li et al., OSDI 2014): workers push gradients to the servers that hold the
parameters, and pull updated parameters back.

The bytes reported are those of gradients and parameters that cross between processes. The headers
of requests and answers, together 24 bytes a push, are not counted.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.ranks import World
from bsweep.numerics import optim
from bsweep.numerics.timing import seconds_of
from bsweep.numerics.vector import Flat, Slice, ranges
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import WorkerLost, errors_reported, worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Traffic
from bsweep.strategies import sharding
from bsweep.strategies.base import ExchangeLog, Rounds
from bsweep.strategies.groups import TorchStrategy, join
from bsweep.strategies.server import Kind, LocalServer, RemoteServer, Server

_GOODBYE_SECONDS = 5


def serve(config: RunConfig, world: World, paths: RunPaths) -> None:
    """Run a parameter server in this process until all workers have sent their goodbye message."""
    torch.set_num_threads(1)
    join(config, world)
    number, workers = world.rank - config.num_workers, range(config.num_workers)
    Server(config, paths, number, remote=workers).run()
    dist.destroy_process_group()


class ParameterServer(TorchStrategy, Rounds):
    card: ParameterServerConfig
    _server: Server | None = None
    """The server that runs in a thread of this worker's process, if there is one. Data between it
    and this worker are copied, not sent.
    """
    _is_closing = False
    _connections: Sequence[_Connection] = ()
    _wait_seconds = 0.0

    def connect(self) -> None:
        super().connect()
        self.lockstep = self.can.lockstep
        # Each push is an optimizer step of its own, with a worker's whole mean gradient. Its
        # learning rate is divided by the number of workers.
        self.averages = not self.lockstep
        if self.card.colocated and self.rank < self.config.num_shards:
            others = [worker for worker in range(self.num_workers) if worker != self.rank]
            self._server = Server(self.config, self.paths, self.rank, remote=others)
            name = f"server {self.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        if self.config.num_shards > 1 and optim.most_norm(optimizer) is not None:
            raise ConfigError(
                f"optimizer={self.config.optimizer.name} with strategy.num_servers="
                f"{self.config.num_shards}: max_grad_norm limits the norm of the whole model's "
                "gradient, which no server knows. Give the optimizer no max_grad_norm, or use "
                "strategy.num_servers=1."
            )
        shards = sharding.shards(vector.slices, self.config.num_shards, self.card)
        self._connections = [
            _Connection(vector, shard, self._link(server)) for server, shard in enumerate(shards)
        ]
        if self.rank == 0:
            for shard, connection in zip(shards, self._connections, strict=True):
                connection.link.call(
                    Server.hold, shard, vector.parameters.dtype, vector.num_parameters
                )
                connection.ask(Kind.LOAD)()
        # From here on all servers and workers have worker 0's parameters.
        super().prepare(vector, optimizer)

    def step(self) -> None:
        with self.meter.exchange(self._vector.gradients):
            self._exchange(Kind.PUSH)

    def rehearse(self) -> None:
        parameters = self._vector.parameters.clone()
        self.step()
        self._meet()  # all pushes are answered
        self._vector.parameters.copy_(parameters)
        if self.rank == 0:
            for connection in self._connections:
                connection.ask(Kind.LOAD)()
        self._meet()  # nobody pushes before the parameters are loaded

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        """At the end of an epoch, fetch the parameters with the gradients of all workers."""
        if self.lockstep or not ends_epoch:
            return
        with self.meter.exchange(self._vector.parameters):
            # until all pushes are answered
            self._wait_seconds += seconds_of(self._meet, torch.device("cpu"))
            self._exchange(Kind.PULL)
            self._meet()  # nobody pushes before all have pulled

    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "wait_seconds": self._wait_seconds}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._wait_seconds = state["wait_seconds"]

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        self._meet()  # all pushes are answered
        sha256 = self._call(Server.save, checkpoint.folder.name)
        if None in sha256:
            raise OSError(
                "a parameter server could not write its file of the checkpoint; the standard error "
                "of the server's process says why"
            )
        return {checkpoint.server(n).name: digest for n, digest in enumerate(sha256) if digest}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        return all(self._call(Server.restore, checkpoint.folder.name))

    def traffic(self) -> Traffic:
        """Return the bytes and the seconds of the exchanges since this method was last called, and
        the load of each server. All workers call it together.

        A worker waits while a server holds its answer back, and for the other workers at the end of
        an epoch. The rest of the time between its request and the last answer counts as the
        exchange.
        """
        meter, self.meter = self.meter, ExchangeLog()
        wait, self._wait_seconds = self._wait_seconds, 0.0
        meter.read_clocks()
        exchange = sum(meter.seconds) - wait
        counts = meter.sent_bytes, meter.received_bytes, exchange, wait, self._call(Server.report)
        rows: list[Any] = [None] * self.num_workers
        with worker_lost():
            dist.all_gather_object(rows, counts, group=self.workers)
        sent, received, exchanges, waits, loads = zip(*rows, strict=True)
        return Traffic(
            sent_bytes=int(fmean(sent)),
            received_bytes=int(fmean(received)),
            exchange_steps=None,
            exchange_seconds=fmean(exchanges),
            exposed_exchange_seconds=fmean(exchanges),
            worker_wait_seconds=waits,
            servers=tuple(loads[0]),
        )

    def close(self) -> None:
        self._is_closing = True
        for connection in self._connections:
            with suppress(WorkerLost):
                connection.link.say_goodbye()
        if self._server:
            # Do not wait for ever: if this worker failed, the others may be waiting for its end
            # instead of saying goodbye.
            self._thread.join(_GOODBYE_SECONDS)
        super().close()

    def _link(self, server: int) -> RemoteServer | LocalServer:
        if self._server and server == self.rank:
            return LocalServer(self.rank, self._server.inbox)
        return RemoteServer(server if self.card.colocated else self.num_workers + server)

    def _exchange(self, kind: Kind) -> None:
        """Send a request to every server, wait for the answers, and copy the parameters in the
        answers to this worker's vector.

        Worker k begins with server k, modulo the number of servers.
        """
        first = self.rank % len(self._connections)
        in_turn = (*self._connections[first:], *self._connections[:first])
        learning_rate = self._optimizer.param_groups[0]["lr"] / self.gradient_weight
        waits = [connection.ask(kind, learning_rate) for connection in in_turn]
        self._wait_seconds += max([wait() for wait in waits])
        for connection in self._connections:
            connection.unpack()
            if connection.link.travels:
                self.meter.sent_bytes += connection.num_bytes * (kind == Kind.PUSH)
                self.meter.received_bytes += connection.num_bytes

    def _call(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        """Call a function of each server on worker 0, and return the results; on other workers,
        return an empty list.
        """
        connections = self._connections if self.rank == 0 else []
        return [connection.link.call(function, *arguments) for connection in connections]

    def _meet(self) -> None:
        self.gather(torch.zeros(1, dtype=torch.float64))

    def _serve(self) -> None:
        """Run the server of this worker's process, in its thread."""
        assert self._server
        try:
            with errors_reported(self.paths, self.world):
                self._server.run()
        except BaseException:
            # This worker is ending anyway, perhaps with an error of its own.
            if self._is_closing:
                return
            # The worker may be waiting for others that wait for this server: nothing else would end
            # it.
            traceback.print_exc()
            os._exit(1)


class _Connection:
    """A worker's connection to one server, for the parameters that this server holds.

    If these are one range of the vector, in the host's memory, data are sent from and received into
    the vector itself; otherwise a packed copy.
    """

    def __init__(
        self, vector: Flat, shard: Sequence[Slice], link: RemoteServer | LocalServer
    ) -> None:
        self.link, self._vector, self._ranges = link, vector, ranges(shard)
        sizes = [stop - start for start, stop in self._ranges]
        dtype, on_gpu = vector.parameters.dtype, vector.parameters.is_cuda
        self.num_bytes = sum(sizes) * dtype.itemsize
        self._packed: Tensor | None = None
        if len(sizes) > 1 or on_gpu:
            self._packed = torch.empty(sum(sizes), dtype=dtype, pin_memory=on_gpu)
            self._pieces = self._packed.split(sizes)
        self._copied = torch.cuda.Event() if on_gpu else None  # the last copies have ended

    def ask(self, kind: Kind, learning_rate: float = 0.0) -> Callable[[], float]:
        """Send a request with the gradient if it is a push, or with the parameters if the server
        loads them, and start to receive the server's parameters, which `unpack` then copies.

        Return a function that waits for the answer, and returns the seconds for which the server
        held it back.
        """
        vector = self._vector
        flat = {Kind.LOAD: vector.parameters, Kind.PUSH: vector.gradients}.get(kind)
        payload = None if flat is None else self._pack(flat)
        buffer = self._views(vector.parameters)[0] if self._packed is None else self._packed
        # What arrives overwrites `_packed`. So the copies from there to the vector must have ended.
        # The gradient has left before the parameters can arrive.
        if self._copied:
            self._copied.synchronize()
        return self.link.ask(kind, buffer, payload, learning_rate)

    def unpack(self) -> None:
        """Start to copy the parameters that the server sent to this worker's vector."""
        if self._packed is not None:
            self._copy(self._pieces, self._views(self._vector.parameters))

    def _pack(self, flat: Tensor) -> Tensor:
        if self._packed is None:
            return self._views(flat)[0]
        self._copy(self._views(flat), self._pieces)
        return self._packed

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat[start:stop] for start, stop in self._ranges]

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
        if self._copied:
            self._copied.record(torch.cuda.current_stream(self._vector.parameters.device))
