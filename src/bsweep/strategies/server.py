"""A parameter server, which holds one shard of the parameters, updates it with the gradients that
workers push, and answers with parameters.

Its memory holds the shard's parameters, gradients and optimizer state, and at most two buffers for
gradients that it receives.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.core import tensor_files
from bsweep.numerics import optim
from bsweep.numerics.vector import Shard, Slice
from bsweep.runlog import waits
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import WorkerLost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import ServerLoad
from bsweep.strategies.server_links import Arrival, Inbox, Kind, ToWorker

_MAX_BUFFERS = 2
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass
class _Held:
    """A gradient push of a worker that the server has applied, but has not answered yet."""

    push: Arrival
    waited_seconds: float  # for slower workers' pushes of the same step
    applied_at: float


class Server:
    """A parameter server, which answers workers until all of them have sent their goodbye message.

    Args:
        config: The run's configuration.
        links: The connections to the workers, by rank.
        inbox: The queue in which the workers' requests are announced.
        paths: The paths of the run's folder.
        number: This server's number. Every answered push is recorded in the CSV file of that
            number. A resumed run appends to the file.

    In synchronous training, each server takes the gradients of a step in an order of its own: the
    order of the ranks, from another rank on. If all servers received from the same workers first,
    the links of these workers would hold up all servers.
    """

    def __init__(
        self,
        config: RunConfig,
        links: Sequence[ToWorker],
        inbox: Inbox,
        paths: RunPaths,
        number: int,
    ) -> None:
        assert isinstance(config.strategy, ParameterServerConfig), config.strategy
        self._optimizer_config = config.optimizer
        self._is_synchronous = config.strategy.consistency == "synchronous"
        self._bound = (
            float("inf") if config.strategy.staleness is None else config.strategy.staleness
        )
        self._links, self._inbox = links, inbox
        begin, ranks = number * len(links) // config.num_shards, range(len(links))
        self._order = (*ranks[begin:], *ranks[:begin])
        self._present = set(range(len(links)))
        self._clocks = [0] * len(links)
        self._held: list[_Held] = []
        self._buffers: list[Tensor] = []
        self._tally = _Tally(len(links))
        self._busy_since = time.perf_counter()
        self._paths, self._number = paths, number
        clocks = paths.server_clocks(number)
        clocks.parent.mkdir(parents=True, exist_ok=True)
        self._file = clocks.open("a", newline="", encoding="utf-8")
        self._record = csv.writer(self._file)
        self._recorded_before = self._file.tell()

    def run(self) -> None:
        """Answer the workers' requests until all workers have sent their goodbye message.

        Only a push may have to wait, for pushes of other workers.

        Raises:
            WorkerLost: If a worker's connection broke, or it left before the others were done.
        """
        with self._file:
            while self._present:
                self._handle(self._next())
        for link in self._links:
            link.close()

    def _handle(self, arrival: Arrival) -> None:
        kind, link = arrival.request.kind, self._links[arrival.worker]
        if kind == Kind.BYE:
            self._present.remove(arrival.worker)
        if len(self._present) < len(self._links) and (
            kind == Kind.PUSH or self._held or len(set(self._clocks)) > 1
        ):
            raise WorkerLost("a worker ended before the other workers were done")
        match kind:
            case Kind.LAYOUT:
                layout = torch.empty(arrival.request.num_bytes, dtype=torch.uint8)
                self._receive(link, layout)
                self._shard = decode_layout(layout)
                link.answer()
            case Kind.LOAD:
                self._receive(link, self._shard.parameters)
                self._begin()
                link.answer()
            case Kind.PUSH:
                self._step(arrival)
            case Kind.PULL:
                self._answer(link, 0.0)
            case Kind.SAVE | Kind.RESTORE:
                remembers = self._save if kind == Kind.SAVE else self._restore
                sha256 = remembers(self._named(arrival))
                answer = torch.tensor([*(sha256 or _NO_DIGEST)], dtype=torch.uint8)
                link.answer(-1.0 if sha256 is None else 0.0, answer)
            case Kind.STATS:
                self._file.flush()
                link.answer(0.0, self._tally.report())
                self._tally = _Tally(len(self._links))

    def _begin(self) -> None:
        """Reset the server's optimizer and counters after a worker has sent initial parameters, and
        remove the rows of this process from the CSV file.

        So the setup before training does not count as an exchange, and earlier pushes do not count.
        """
        self._optimizer = optim.build(self._optimizer_config, self._shard)
        self._clocks = [0] * len(self._links)
        self._tally = _Tally(len(self._links))
        self._file.truncate(self._recorded_before)
        if not self._recorded_before:
            self._record.writerow(["time", "worker", "clock", "slowest_clock", "queue_seconds"])

    def _named(self, arrival: Arrival) -> Path:
        """Receive a checkpoint's name from a worker, and return the path of this server's file in
        that checkpoint.
        """
        name = torch.empty(arrival.request.num_bytes, dtype=torch.uint8)
        self._receive(self._links[arrival.worker], name)
        return Checkpoint(self._paths.checkpoints / name.numpy().tobytes().decode()).server(
            self._number
        )

    def _save(self, path: Path) -> bytes | None:
        """Write this server's file of a checkpoint; return its SHA-256, or None if that failed."""
        self._file.flush()
        state = {
            "parameters": self._shard.parameters,
            "optimizer": self._optimizer.state_dict(),
            "clocks": self._clocks,
            "tally": vars(self._tally),
            "recorded_bytes": self._file.tell(),
        }
        try:
            return bytes.fromhex(tensor_files.write_tensors(state, path))
        except (OSError, RuntimeError):
            traceback.print_exc()
            return None

    def _restore(self, path: Path) -> bytes | None:
        """Restore this server's state from its file of a checkpoint. Return a digest of zeros, or
        None if the file cannot be read.
        """
        state = tensor_files.read_tensors(path)
        if state is None:
            return None
        self._shard.parameters.copy_(state["parameters"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._clocks = state["clocks"]
        vars(self._tally).update(state["tally"])
        self._file.flush()
        self._file.truncate(min(state["recorded_bytes"], self._file.tell()))  # if it was deleted
        return _NO_DIGEST

    def _step(self, first: Arrival) -> None:
        """Make one optimizer step on this server's shard, and answer the gradient pushes that need
        not wait.

        The step uses the sum of all workers' gradients if training is synchronous, and otherwise
        the gradient of one push.
        """
        pushes = self._sum(first)
        self._finish_answers()  # the answers read the parameters
        optim.set_learning_rate(self._optimizer, first.request.learning_rate)
        self._optimizer.step()
        applied_at = time.perf_counter()
        last_at = max(push.arrived_at for push in pushes)
        for push in pushes:
            self._clocks[push.worker] = push.request.clock
            self._held.append(_Held(push, last_at - push.arrived_at, applied_at))
        self._release(applied_at)

    def _sum(self, first: Arrival) -> list[Arrival]:
        """Receive the gradients of one optimizer step, and sum them in this server's order of the
        workers.

        Return the requests that pushed the gradients.

        The order makes the sum independent of which worker was faster. The first gradient is
        received into the shard's gradients, the others into buffers. While the gradient in one
        buffer is added, the next may arrive in the other.
        """
        workers: Sequence[int] = self._order if self._is_synchronous else (first.worker,)
        pushes, started = {first.worker: first}, set[int]()
        for turn, worker in enumerate(workers):
            window = workers[turn : max(turn + 2, _MAX_BUFFERS + 1)]
            while not started.issuperset(window):
                for ready in (pushes.keys() & set(window)) - started:
                    pushes[ready].attended_at = time.perf_counter()
                    self._links[ready].start_receiving(self._place(workers.index(ready)))
                    started.add(ready)
                if not started.issuperset(window):
                    push = self._next_push()
                    pushes[push.worker] = push
            payload = self._links[worker].received()
            if turn:
                self._shard.gradients.add_(payload)
            elif payload is not self._shard.gradients:
                self._shard.gradients.copy_(payload)
            self._tally.pushed(pushes[worker], self._links[worker].travels * self._shard.num_bytes)
        return list(pushes.values())

    def _place(self, turn: int) -> Tensor:
        if not turn:
            return self._shard.gradients
        if not self._buffers:
            count = min(_MAX_BUFFERS, len(self._links) - 1)
            self._buffers = [torch.empty_like(self._shard.gradients) for _ in range(count)]
        return self._buffers[turn % len(self._buffers)]

    def _release(self, now: float) -> None:
        """Answer the gradient pushes of workers that are ahead of the slowest worker by no more
        steps than the staleness bound.
        """
        slowest = min(self._clocks)
        ready = [held for held in self._held if held.push.request.clock - slowest <= self._bound]
        self._held = [
            held for held in self._held if held.push.request.clock - slowest > self._bound
        ]
        # Answers over the network take longest, so they begin first.
        ready.sort(key=lambda held: not self._links[held.push.worker].travels)
        for held in ready:
            push = held.push
            self._tally.max_lead = max(self._tally.max_lead, push.request.clock - slowest)
            self._record.writerow(
                [time.time(), push.worker, push.request.clock, slowest, push.queue_seconds]
            )
            self._answer(self._links[push.worker], held.waited_seconds + now - held.applied_at)

    def _answer(self, link: ToWorker, held_seconds: float) -> None:
        link.answer(held_seconds, self._shard.parameters)
        self._tally.sent_bytes += link.travels * self._shard.num_bytes

    def _receive(self, link: ToWorker, into: Tensor) -> None:
        link.start_receiving(into)
        payload = link.received()
        if payload is not into:
            into.copy_(payload)

    def _next_push(self) -> Arrival:
        arrival = self._next()
        if arrival.request.kind == Kind.BYE:
            raise WorkerLost("a worker ended before the other workers were done")
        assert arrival.request.kind == Kind.PUSH, arrival
        return arrival

    def _next(self) -> Arrival:
        if self._inbox.empty():  # otherwise the next push may arrive while answers leave
            self._finish_answers()
        self._tally.busy_seconds += time.perf_counter() - self._busy_since
        with waits.for_others():
            arrival = self._inbox.get()
        self._busy_since = time.perf_counter()
        if isinstance(arrival, BaseException):
            raise arrival
        arrival.attended_at = self._busy_since
        return arrival

    def _finish_answers(self) -> None:
        for link in self._links:
            link.sent()


class _Tally:
    """The load that a parameter server has counted since worker 0 last asked for it. It consists of
    bytes, seconds, gradient pushes, and the largest lead of a worker over the slowest one, in
    steps.
    """

    def __init__(self, num_workers: int) -> None:
        self.received_bytes = self.sent_bytes = self.max_lead = 0
        self.busy_seconds = self.queue_seconds = 0.0
        self.pushes = [0] * num_workers

    def pushed(self, push: Arrival, received_bytes: int) -> None:
        self.pushes[push.worker] += 1
        self.queue_seconds += push.queue_seconds
        self.received_bytes += received_bytes

    def report(self) -> Tensor:
        """Return all counts of this server as one float64 tensor, which `decode_load` reads."""
        numbers = [
            self.received_bytes,
            self.sent_bytes,
            self.max_lead,
            self.busy_seconds,
            self.queue_seconds,
        ]
        return torch.tensor([*numbers, *self.pushes], dtype=torch.float64)


def report_size(num_workers: int) -> int:
    return len(_Tally(num_workers).report())


def decode_load(share: float, report: Tensor) -> ServerLoad:
    received, sent, max_lead, busy_seconds, queue_seconds, *pushes = report.tolist()
    return ServerLoad(
        share=share,
        received_bytes=int(received),
        sent_bytes=int(sent),
        pushes=tuple(int(number) for number in pushes),
        max_lead=int(max_lead),
        busy_seconds=busy_seconds,
        queue_seconds=queue_seconds,
    )


def encode_layout(slices: Sequence[Slice], dtype: torch.dtype) -> Tensor:
    """Return the layout of a server's shard, its slices and their type, as bytes: uint8 (bytes,).

    Worker 0 sends it to the server. A server loads no data and builds no model, so it needs to be
    told the layout.
    """
    text = json.dumps(
        {"dtype": str(dtype).removeprefix("torch."), "slices": [asdict(part) for part in slices]}
    )
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def decode_layout(layout: Tensor) -> Shard:
    fields = json.loads(layout.numpy().tobytes())
    slices = [Slice(**{**part, "shape": tuple(part["shape"])}) for part in fields["slices"]]
    return Shard(slices, getattr(torch, fields["dtype"]))
