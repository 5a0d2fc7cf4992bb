"""Parameter servers (Li et al., OSDI 2014): workers push gradients to the servers that hold the
parameters, and pull updated parameters back.

The bytes reported are those of gradients and parameters that cross between processes. The headers
of requests and answers, together 40 bytes a push, are not counted.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat, Slice, ranges
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import WorkerLost, errors_reported
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Traffic
from bsweep.strategies import sharding
from bsweep.strategies.base import ExchangeLog, Rounds
from bsweep.strategies.groups import TorchStrategy, join
from bsweep.strategies.server import Server, decode_load, encode_layout, report_size
from bsweep.strategies.server_links import (
    Inbox,
    Kind,
    LocalLink,
    Request,
    ToRemoteServer,
    ToRemoteWorker,
    ToServer,
)

_GOODBYE_SECONDS = 5


def serve(config: RunConfig, place: Place, paths: RunPaths) -> None:
    """Run a parameter server in this process until all workers have sent their goodbye message."""
    torch.set_num_threads(1)
    join(config, place)
    inbox: Inbox = queue.SimpleQueue()
    links = [ToRemoteWorker(worker, inbox) for worker in range(config.num_workers)]
    Server(config, links, inbox, paths, place.rank - config.num_workers).run()
    dist.destroy_process_group()


class ParameterServer(TorchStrategy, Rounds):
    def __init__(
        self, config: RunConfig, strategy: ParameterServerConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self._config, self._strategy = config, strategy
        self.lockstep = self._strategy.consistency == "synchronous"
        # Each push is an optimizer step of its own, with a worker's whole mean gradient. Its
        # learning rate is divided by the number of workers.
        if not self.lockstep:
            self.gradient_weight = float(self.num_workers)
        lives_here = self._strategy.colocated and self.rank < config.num_shards
        self._colocated = _ColocatedServer(config, place, paths) if lives_here else None
        self._parts: list[_Part] = []
        self._clock = 0
        self._wait_seconds = 0.0

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        shards = sharding.shards(vector.slices, self._config.num_shards, self._strategy)
        self._parts = [
            _Part(vector, shard, self._link(server)) for server, shard in enumerate(shards)
        ]
        if self.rank == 0:
            for part in self._parts:
                part.describe()
                part.load_parameters()
        # From here on all servers and workers have worker 0's parameters.
        super().prepare(vector, optimizer)

    def step(self) -> None:
        self._clock += 1
        with self.meter.exchange(self._vector.gradients):
            self._exchange(
                Request(
                    Kind.PUSH,
                    self._clock,
                    self._optimizer.param_groups[0]["lr"] / self.gradient_weight,
                )
            )

    def rehearse(self) -> None:
        parameters = self._vector.parameters.clone()
        self.step()
        self._meet()  # all pushes are answered
        self._vector.parameters.copy_(parameters)
        if self.rank == 0:
            for part in self._parts:
                part.load_parameters()
        self._meet()  # nobody pushes before the parameters are loaded
        self._clock, self._wait_seconds, self.meter = 0, 0.0, ExchangeLog()

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        if ends_epoch and not self.lockstep:
            self._agree()

    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "clock": self._clock, "wait_seconds": self._wait_seconds}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._clock, self._wait_seconds = state["clock"], state["wait_seconds"]

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        self._meet()  # all pushes are answered
        if self.rank > 0:
            return {}
        found = [part.remember(Kind.SAVE, checkpoint) for part in self._parts]
        if None in found:
            raise OSError(
                "a parameter server could not write its file of the checkpoint; the standard error "
                "of the server's process says why"
            )
        return {checkpoint.server(n).name: sha256 for n, sha256 in enumerate(found) if sha256}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        if self.rank > 0:
            return True
        return None not in [part.remember(Kind.RESTORE, checkpoint) for part in self._parts]

    def _agree(self) -> None:
        """Fetch the parameters from all servers once the servers have applied the gradients of all
        workers. All workers call it together.
        """
        with self.meter.exchange(self._vector.parameters):
            start = time.perf_counter()
            self._meet()  # all pushes are answered
            self._wait_seconds += time.perf_counter() - start
            self._exchange(Request(Kind.PULL))
            self._meet()  # nobody pushes before all have pulled

    def traffic(self) -> Traffic:
        """Return the bytes and the seconds of the exchanges since this method was last called, and
        the load of each server. All workers call it together.

        A worker waits while a server holds its answer back, and for the other workers at the end of
        an epoch. The rest of the time between its request and the last answer counts as the
        exchange.
        """
        meter, self.meter = self.meter, ExchangeLog()
        meter.read_clocks()
        own = [meter.sent_bytes, meter.received_bytes, sum(meter.seconds), self._wait_seconds]
        self._wait_seconds = 0.0
        every = self.gather(
            torch.cat([torch.tensor(own, dtype=torch.float64), self._server_reports()])
        )
        sent, received, seconds, wait = every[:, : len(own)].T
        reports = every[0, len(own) :].view(len(self._parts), -1)
        exchange = float((seconds - wait).mean())
        return Traffic(
            sent_bytes=int(sent.mean()),
            received_bytes=int(received.mean()),
            exchange_steps=None,
            exchange_seconds=exchange,
            exposed_exchange_seconds=exchange,
            worker_wait_seconds=tuple(wait.tolist()),
            servers=tuple(
                decode_load(part.share, report)
                for part, report in zip(self._parts, reports, strict=True)
            ),
        )

    def close(self) -> None:
        if self._colocated:
            self._colocated.is_closing.set()
        for part in self._parts:
            with suppress(WorkerLost):
                part.link.say_goodbye()
        if self._colocated:
            # Do not wait for ever: if this worker failed, the others may be waiting for its end
            # instead of saying goodbye.
            self._colocated.thread.join(_GOODBYE_SECONDS)
        super().close()

    def _link(self, server: int) -> ToServer:
        if not self._strategy.colocated:
            return ToRemoteServer(self.num_workers + server)
        if self._colocated and server == self.rank:
            return self._colocated.link
        return ToRemoteServer(server)

    def _exchange(self, request: Request) -> None:
        """Send a request to every server, wait for the answers, and copy the parameters in the
        answers to this worker's vector.

        Worker k begins with server k, modulo the number of servers.
        """
        first = self.rank % len(self._parts)
        for part in self._parts[first:] + self._parts[:first]:
            part.ask(request)
        self._wait_seconds += max([part.link.wait() for part in self._parts])
        for part in self._parts:
            part.unpack()
            if part.link.travels:
                self.meter.sent_bytes += part.num_bytes * (request.kind == Kind.PUSH)
                self.meter.received_bytes += part.num_bytes

    def _server_reports(self) -> Tensor:
        """Return the load that each server counted since this method was last called, on worker 0;
        return zeros on other workers.

        Only worker 0 asks the servers. `decode_load` names the numbers.
        """
        reports = torch.zeros(len(self._parts), report_size(self.num_workers), dtype=torch.float64)
        if self.rank == 0:
            for part, report in zip(self._parts, reports, strict=True):
                part.link.ask(Request(Kind.STATS), into=report)
                part.link.wait()
        return reports.flatten()

    def _meet(self) -> None:
        self.gather(torch.zeros(1, dtype=torch.float64))


class _Part:
    """A worker's connection to one server, for the parameters that this server holds."""

    def __init__(self, vector: Flat, shard: Sequence[Slice], link: ToServer) -> None:
        self.link = link
        self._vector, self._shard = vector, shard
        self._ranges = ranges(shard)
        count = sum(stop - start for start, stop in self._ranges)
        self.share = count / vector.parameters.numel()
        self.num_bytes = count * vector.parameters.element_size()
        self._packed: Tensor | None = None
        # Without the packed copy, data are sent from and received into the vector itself.
        if len(self._ranges) > 1 or vector.parameters.is_cuda:
            pinned = vector.parameters.is_cuda
            self._packed = torch.empty(count, dtype=vector.parameters.dtype, pin_memory=pinned)

    def describe(self) -> None:
        """Send the server the layout of its shard: which slices it holds, and their type."""
        layout = encode_layout(self._shard, self._vector.parameters.dtype)
        self.link.ask(Request(Kind.LAYOUT, num_bytes=len(layout)), layout)
        self.link.wait()

    def load_parameters(self) -> None:
        """Send a server the initial values of the parameters that it holds, and wait until the
        server has received them.
        """
        self.link.ask(Request(Kind.LOAD), self._pack(self._vector.parameters))
        self.link.wait()

    def remember(self, kind: Kind, checkpoint: Checkpoint) -> str | None:
        """Make the server save its state to a file of a checkpoint, or restore it from that file.

        Returns:
            The SHA-256 of the file that it wrote, in hexadecimal digits, and zeros for a file that
            it read; None if it could not.
        """
        name = torch.frombuffer(bytearray(checkpoint.folder.name.encode()), dtype=torch.uint8)
        sha256 = torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8)
        self.link.ask(Request(kind, num_bytes=len(name)), name, sha256)
        return bytes(sha256.tolist()).hex() if self.link.wait() >= 0 else None

    def ask(self, request: Request) -> None:
        """Ask the server for the parameters of its shard.

        If the request is a push, also send the shard's part of this worker's gradient.
        """
        payload = self._pack(self._vector.gradients) if request.kind == Kind.PUSH else None
        (start, stop), *_ = self._ranges
        # The packed parameters overwrite the packed gradient. They cannot arrive before the
        # gradient has left.
        into = self._vector.parameters[start:stop] if self._packed is None else self._packed
        self.link.ask(request, payload, into)

    def unpack(self) -> None:
        """Copy the parameters that the server sent to their places in this worker's parameter
        vector.
        """
        if self._packed is not None:
            for (start, stop), piece in self._pieces(self._packed):
                self._vector.parameters[start:stop].copy_(piece, non_blocking=True)

    def _pack(self, flat: Tensor) -> Tensor:
        if self._packed is None:
            (start, stop), *_ = self._ranges
            return flat[start:stop]
        for (start, stop), piece in self._pieces(self._packed):
            piece.copy_(flat[start:stop], non_blocking=True)
        if flat.is_cuda:
            torch.cuda.synchronize()
        return self._packed

    def _pieces(self, packed: Tensor) -> list[tuple[tuple[int, int], Tensor]]:
        pieces = packed.split([stop - start for start, stop in self._ranges])
        return list(zip(self._ranges, pieces, strict=True))


class _ColocatedServer:
    """A parameter server that runs in a thread of this worker's process.

    Data between the server and this worker are copied, not sent.
    """

    def __init__(self, config: RunConfig, place: Place, paths: RunPaths) -> None:
        self._place, self._paths = place, paths
        inbox: Inbox = queue.SimpleQueue()
        self.link = LocalLink(place.rank, inbox)
        links = [
            self.link if worker == place.rank else ToRemoteWorker(worker, inbox)
            for worker in range(config.num_workers)
        ]
        self._server = Server(config, links, inbox, paths, place.rank)
        self.is_closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"server {place.rank}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with errors_reported(self._paths, self._place):
                self._server.run()
        except BaseException:
            # This worker is ending anyway, perhaps with an error of its own.
            if self.is_closing.is_set():
                return
            # The worker may be waiting for others that wait for this server: nothing else would end
            # it.
            traceback.print_exc()
            os._exit(1)
