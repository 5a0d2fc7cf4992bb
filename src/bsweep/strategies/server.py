"""A parameter server, which holds one shard of the parameters, updates it with the gradients that
workers push, and answers with parameters; and the messages between it and a worker.

Its memory holds the shard's parameters, gradients and optimizer state, and two buffers for
gradients that it receives.

Messages go over Gloo, or by copying if both are in one process. A worker asks over its link to a
server, and the server answers every request except a goodbye. A worker has at most one open request
to a server. The messages are point-to-point: collective operations would hide how congested servers
are, which bsweep measures.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.core import tensor_files
from bsweep.numerics import optim
from bsweep.numerics.vector import Shard, Slice
from bsweep.runlog import heartbeat
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import WorkerLost, worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import ServerLoad

_NUM_BUFFERS = 2


class Server:
    """A parameter server, which answers workers until all of them have sent their goodbye message.

    Args:
        config: The run's configuration.
        paths: The paths of the run's folder.
        number: This server's number.
        remote: The ranks of the workers in other processes. The requests of others are put into
            `inbox`.

    In synchronous training, each server takes the gradients of a step in an order of its own: the
    order of the ranks, from another rank on. If all servers received from the same workers first,
    the links of these workers would hold up all servers.
    """

    def __init__(
        self, config: RunConfig, paths: RunPaths, number: int, remote: Iterable[int]
    ) -> None:
        assert isinstance(config.strategy, ParameterServerConfig), config.strategy
        self._config, self._paths, self._number = config, paths, number
        self._is_synchronous = config.strategy.can.lockstep
        staleness = config.strategy.staleness
        self._bound = math.inf if staleness is None else staleness
        workers = range(config.num_workers)
        start = number * len(workers) // config.num_shards
        self._order = (*workers[start:], *workers[:start])
        self._num_present = len(workers)
        self._clocks = [0] * len(workers)  # the pushes that were applied, by worker
        self._pushes: dict[int, Request] = {}  # those that wait for their answer, by worker
        self._answers: list[dist.Work] = []  # those that are being sent
        self._load = self._no_load()
        self._busy_since = time.perf_counter()
        self.inbox: Inbox = queue.SimpleQueue()
        self._listeners = [listen(worker, self.inbox) for worker in remote]

    def run(self) -> None:
        """Answer the workers' requests until all workers have sent their goodbye message.

        Only a push may have to wait, for pushes of other workers.

        Raises:
            WorkerLost: If a worker's connection broke, or it left before the others were done.
        """
        while self._num_present:
            request = self._next()
            match request.kind:
                case Kind.LOAD:
                    self._begin(request)
                case Kind.PUSH:
                    self._step(request)
                case Kind.PULL:
                    self._answer(request, 0.0)
                case Kind.CALL:
                    assert request.call is not None
                    function, arguments = request.call
                    request.give(function(self, *arguments))
        for listener in self._listeners:
            listener.join()

    def hold(self, slices: Sequence[Slice], dtype: torch.dtype, num_parameters: int) -> None:
        """Make room for this server's shard.

        A server loads no data and builds no model, so worker 0 tells it the slices of its shard,
        their type, and the number of parameters of the whole model.
        """
        self._shard = Shard(slices, dtype)
        self._share = self._shard.num_parameters / num_parameters
        self._buffers = [torch.empty_like(self._shard.gradients) for _ in range(_NUM_BUFFERS)]

    def report(self) -> ServerLoad:
        """Return the load that this server has counted since this method was last called."""
        load, self._load = self._load, self._no_load()
        return ServerLoad(**{**load, "pushes": tuple(load["pushes"])}, share=self._share)

    def save(self, name: str) -> str | None:
        """Write this server's file of the checkpoint with this name.

        Returns:
            The file's SHA-256 in hexadecimal digits; None if it could not be written.
        """
        path = Checkpoint(self._paths.checkpoints / name).server(self._number)
        state = {
            "parameters": self._shard.parameters,
            "optimizer": self._optimizer.state_dict(),
            "clocks": self._clocks,
            "tally": self._load,
        }
        try:
            return tensor_files.write_tensors(state, path)
        except (OSError, RuntimeError):
            traceback.print_exc()
            return None

    def restore(self, name: str) -> bool:
        """Restore this server's state from its file of the checkpoint with this name. Return False
        if the file cannot be read.
        """
        path = Checkpoint(self._paths.checkpoints / name).server(self._number)
        state = tensor_files.read_tensors(path)
        if state is None:
            return False
        self._shard.parameters.copy_(state["parameters"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._clocks, self._load = state["clocks"], state["tally"]
        return True

    def _no_load(self) -> dict[str, Any]:
        pushes = [0] * len(self._clocks)
        counts = dict.fromkeys(["received_bytes", "sent_bytes", "max_lead"], 0)
        return {**counts, "pushes": pushes, "busy_seconds": 0.0, "queue_seconds": 0.0}

    def _begin(self, request: Request) -> None:
        """Begin with a worker's parameters, a new optimizer and new counts.

        So the setup before training does not count as an exchange, and earlier pushes do not count.
        """
        parameters, works = request.receive(self._shard.parameters)
        finish(works)
        self._shard.parameters.copy_(parameters)  # does nothing if they arrived there
        self._optimizer = optim.build(self._config.optimizer, self._shard)
        self._answer(request, 0.0)
        self._clocks = [0] * len(self._clocks)
        self._load = self._no_load()

    def _step(self, request: Request) -> None:
        """Make one optimizer step on this server's shard, and answer the gradient pushes that need
        not wait.

        The step uses the sum of all workers' gradients if training is synchronous, and otherwise
        the gradient of one push.
        """
        workers = self._order if self._is_synchronous else (request.worker,)
        self._sum(workers)
        self._finish_answers()  # they read the parameters
        optim.set_learning_rate(self._optimizer, request.learning_rate)
        self._optimizer.step()
        applied_at = time.perf_counter()
        last_at = max(self._pushes[worker].arrived_at for worker in workers)
        for worker in workers:
            push = self._pushes[worker]
            push.held_since = applied_at - (last_at - push.arrived_at)
            self._clocks[worker] += 1
            self._load["pushes"][worker] += 1
            self._load["queue_seconds"] += push.queue_seconds
            self._load["received_bytes"] += push.travels * self._shard.num_bytes
        self._release(applied_at)

    def _sum(self, workers: Sequence[int]) -> None:
        """Receive the gradients of one optimizer step, and sum them in this order of the workers.

        The order makes the sum independent of which worker was faster. The first gradient is
        received into the shard's gradients, the others into buffers. While the gradient in one
        buffer is added, the next may arrive in the other.
        """
        total = self._shard.gradients
        places = itertools.chain([total], itertools.cycle(self._buffers))
        place = dict(zip(workers, places, strict=False))
        arriving: dict[int, tuple[Tensor, list[dist.Work]]] = {}
        for turn, worker in enumerate(workers):
            window = set(workers[turn : max(turn + 2, _NUM_BUFFERS + 1)])
            while missing := window - arriving.keys():
                senders = missing & self._pushes.keys()
                for sender in senders:
                    push = self._pushes[sender]
                    push.queue_seconds = time.perf_counter() - push.arrived_at
                    arriving[sender] = push.receive(place[sender])
                if not senders:
                    push = self._next()
                    assert push.kind == Kind.PUSH, push
            gradient, works = arriving[worker]
            finish(works)
            if turn:
                total.add_(gradient)
            else:
                total.copy_(gradient)  # does nothing if it arrived there

    def _release(self, now: float) -> None:
        """Answer the gradient pushes of workers that are ahead of the slowest worker by no more
        steps than the staleness bound.
        """
        slowest = min(self._clocks)
        # Answers over the network take longest, so they begin first.
        for push in sorted(self._pushes.values(), key=lambda push: not push.travels):
            clock = self._clocks[push.worker]
            if clock - slowest > self._bound:
                continue
            self._load["max_lead"] = max(self._load["max_lead"], clock - slowest)
            self._answer(self._pushes.pop(push.worker), now - push.held_since)

    def _answer(self, request: Request, held_seconds: float) -> None:
        self._answers += request.answer(held_seconds, self._shard.parameters)
        self._load["sent_bytes"] += request.travels * self._shard.num_bytes

    def _finish_answers(self) -> None:
        finish(self._answers)
        self._answers = []

    def _next(self) -> Request:
        """Wait for the next request.

        Raises:
            WorkerLost: If a worker's connection broke, or it left before the others were done.
        """
        if self.inbox.empty():  # otherwise the next push may arrive while answers leave
            self._finish_answers()
        self._load["busy_seconds"] += time.perf_counter() - self._busy_since
        with heartbeat.waiting_for_others():
            request = self.inbox.get()
        self._busy_since = time.perf_counter()
        if isinstance(request, BaseException):
            raise request
        if request.kind == Kind.PUSH:
            self._pushes[request.worker] = request
        elif request.kind == Kind.BYE:
            self._num_present -= 1
        if self._num_present < len(self._clocks) and (self._pushes or len(set(self._clocks)) > 1):
            raise WorkerLost("a worker ended before the other workers were done")
        return request


_REQUEST, _ANSWER = 1, 3  # Gloo's tags; the tensor that follows has the next one, and objects 0
_NO_TIMEOUT, _GOODBYE_TIMEOUT = timedelta(0), timedelta(seconds=10)


class Kind(IntEnum):
    LOAD = 1  # send the parameters that the server begins with
    PUSH = 2  # send the gradient
    PULL = 3  # send nothing; the answer is the parameters, as of LOAD and PUSH
    CALL = 4  # name a function of the server; the answer is its result
    BYE = 5  # send no more requests


@dataclass
class Request:
    """A request of a worker in another process, which has arrived at a parameter server.

    Times are on the server's clock (`time.perf_counter`).
    """

    worker: int
    kind: Kind
    learning_rate: float = 0.0
    call: tuple[Callable[..., object], tuple[object, ...]] | None = None  # function and arguments
    arrived_at: float = field(default_factory=time.perf_counter)
    queue_seconds: float = 0.0
    held_since: float = 0.0  # since then the answer waits for other workers
    travels = True

    def receive(self, buffer: Tensor) -> tuple[Tensor, list[dist.Work]]:
        """Start to receive the tensor that follows the request, such as a gradient, into `buffer`.

        Returns:
            The tensor, which is `buffer`, or the worker's own if nothing is sent; the transfers to
            `finish` before it is complete.
        """
        return buffer, _start(dist.irecv, self.worker, _REQUEST, None, buffer)

    def answer(self, held_seconds: float, parameters: Tensor) -> list[dist.Work]:
        """Start to send an answer: the parameters, which must not change until they are sent, and
        the seconds for which the answer waited for other workers.

        Returns:
            The transfers to `finish`.
        """
        header = torch.tensor([held_seconds], dtype=torch.float64)
        return _start(dist.isend, self.worker, _ANSWER, header, parameters)

    def give(self, result: object) -> None:
        """Answer a call with its result."""
        _send_object(result, self.worker)


@dataclass
class LocalRequest(Request):
    """A request of the worker in whose process the server runs.

    Nothing is sent: the server and the worker use each other's tensors.
    """

    payload: Tensor | None = None
    buffer: Tensor | None = None
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    travels = False

    def receive(self, buffer: Tensor) -> tuple[Tensor, list[dist.Work]]:
        assert self.payload is not None
        return self.payload, []

    def answer(self, held_seconds: float, parameters: Tensor) -> list[dist.Work]:
        assert self.buffer is not None
        self.buffer.copy_(parameters)
        self.answers.put(held_seconds)
        return []

    def give(self, result: object) -> None:
        self.answers.put(result)

    def wait(self) -> Any:
        """Wait in the worker's thread for the server's answer, and return it."""
        with heartbeat.waiting_for_others():  # for which the server in this process may wait
            return self.answers.get()


Inbox = queue.SimpleQueue[Request | BaseException]


class RemoteServer:
    """The link of a worker to a parameter server in another process."""

    travels = True

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def ask(
        self, kind: Kind, buffer: Tensor, payload: Tensor | None = None, learning_rate: float = 0.0
    ) -> Callable[[], float]:
        """Start to send a request and, if given, the tensor `payload` to the server, and start to
        receive its parameters into `buffer`, which may be the memory of `payload`.

        Returns:
            A function that waits for the answer, and returns the seconds for which the server
            delayed the answer to wait for other workers.
        """
        held_seconds = torch.zeros(1, dtype=torch.float64)
        works = _start(dist.irecv, self._rank, _ANSWER, held_seconds, buffer)
        works += self._send(kind, learning_rate, payload)

        def wait() -> float:
            finish(works)
            return held_seconds.item()

        return wait

    def call(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call a function, such as `Server.report`, with the server and these arguments, in the
        server's process.

        The arguments and the result, which is returned, are small and can be pickled. Only worker 0
        calls: objects have no tags, so two between the same processes could be mixed up.
        """
        finish(self._send(Kind.CALL))
        _send_object((function, arguments), self._rank)
        return _receive_object(self._rank)

    def say_goodbye(self) -> None:
        """Tell the server that this worker sends no more requests.

        Raises:
            WorkerLost: If the server is gone, which the caller may ignore.
        """
        finish(self._send(Kind.BYE), _GOODBYE_TIMEOUT)

    def _send(
        self, kind: Kind, learning_rate: float = 0.0, payload: Tensor | None = None
    ) -> list[dist.Work]:
        header = torch.tensor([kind, learning_rate], dtype=torch.float64)
        return _start(dist.isend, self._rank, _REQUEST, header, payload)


class LocalServer:
    """The link of a worker to a parameter server that runs in a thread of the worker's process.

    Its methods are those of `RemoteServer`.
    """

    travels = False

    def __init__(self, worker: int, inbox: Inbox) -> None:
        self._worker, self._inbox = worker, inbox

    def ask(
        self, kind: Kind, buffer: Tensor, payload: Tensor | None = None, learning_rate: float = 0.0
    ) -> Callable[[], float]:
        request = LocalRequest(self._worker, kind, learning_rate, payload=payload, buffer=buffer)
        self._inbox.put(request)
        return request.wait

    def call(self, function: Callable[..., object], *arguments: object) -> Any:
        request = LocalRequest(self._worker, Kind.CALL, call=(function, arguments))
        self._inbox.put(request)
        return request.wait()

    def say_goodbye(self) -> None:
        self._inbox.put(LocalRequest(self._worker, Kind.BYE))


def listen(worker: int, inbox: Inbox) -> threading.Thread:
    """Start a thread that puts the requests of a worker in another process into a server's inbox,
    until the worker's goodbye. So the time of arrival is noted while the server works.
    """
    thread = threading.Thread(
        target=_listen, args=(worker, inbox), name=f"listen to worker {worker}", daemon=True
    )
    thread.start()
    atexit.register(_end_process, thread)
    return thread


def _listen(worker: int, inbox: Inbox) -> None:
    header = torch.zeros(2, dtype=torch.float64)
    try:
        while header[0] != Kind.BYE:
            finish(_start(dist.irecv, worker, _REQUEST, header))
            request = Request(worker, Kind(int(header[0])), float(header[1]))
            if request.kind == Kind.CALL:
                request.call = _receive_object(worker)
            inbox.put(request)
    except BaseException as error:
        inbox.put(error)


def _end_process(thread: threading.Thread) -> None:
    """End this process at once if a thread still listens to a worker.

    Python calls it at its end. A thread that returns from torch while Python ends would abort the
    process.
    """
    if thread.is_alive():
        sys.stdout.flush()
        # Exit with 1 after an error, which Python has printed by now.
        os._exit(1 if hasattr(sys, "last_type") else 0)


def finish(works: list[dist.Work], timeout: timedelta = _NO_TIMEOUT) -> None:
    """Wait until tensors have been sent or received."""
    with worker_lost():
        for work in works:
            work.wait(timeout)


def _start(
    transfer: Callable[..., Any], rank: int, tag: int, *tensors: Tensor | None
) -> list[dist.Work]:
    """Start to send or to receive tensors, whose tags are the numbers from `tag` on."""
    with worker_lost():
        return [
            transfer(tensor, rank, tag=number)
            for number, tensor in enumerate(tensors, tag)
            if tensor is not None
        ]


def _send_object(value: object, rank: int) -> None:
    with worker_lost():
        dist.send_object_list([value], rank, device=torch.device("cpu"))


def _receive_object(rank: int) -> Any:
    values: list[Any] = [None]
    with worker_lost():
        dist.recv_object_list(values, rank, device=torch.device("cpu"))
    return values[0]
