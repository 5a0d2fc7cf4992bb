"""Messages between a worker and a parameter server: over Gloo, or by copying if both are in one
process.

A worker asks over its link to a server, and the server answers every request except a goodbye. A
worker has at most one open request to a server. The messages are point-to-point: collective
operations would hide how congested servers are, which bsweep measures.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bsweep.runlog import waits
from bsweep.runlog.errors import worker_lost

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

    def receive(self, into: Tensor) -> tuple[Tensor, list[dist.Work]]:
        """Start to receive the tensor that follows the request, such as a gradient, into `into`.

        Returns:
            The tensor, which is `into`, or the worker's own if nothing is sent; the transfers to
            `finish` before it is complete.
        """
        return into, _start(dist.irecv, self.worker, _REQUEST, None, into)

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
    into: Tensor | None = None
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    travels = False

    def receive(self, into: Tensor) -> tuple[Tensor, list[dist.Work]]:
        assert self.payload is not None
        return self.payload, []

    def answer(self, held_seconds: float, parameters: Tensor) -> list[dist.Work]:
        assert self.into is not None
        self.into.copy_(parameters)
        self.answers.put(held_seconds)
        return []

    def give(self, result: object) -> None:
        self.answers.put(result)

    def wait(self) -> Any:
        """Wait in the worker's thread for the server's answer, and return it."""
        with waits.for_others():  # the server in this process may wait for other workers
            return self.answers.get()


Inbox = queue.SimpleQueue[Request | BaseException]


class RemoteServer:
    """The link of a worker to a parameter server in another process."""

    travels = True

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def ask(
        self, kind: Kind, into: Tensor, payload: Tensor | None = None, learning_rate: float = 0.0
    ) -> Callable[[], float]:
        """Start to send a request and, if given, the tensor `payload` to the server, and start to
        receive its parameters into `into`, which may be the memory of `payload`.

        Returns:
            A function that waits for the answer, and returns the seconds for which the server
            delayed the answer to wait for other workers.
        """
        held_seconds = torch.zeros(1, dtype=torch.float64)
        works = _start(dist.irecv, self._rank, _ANSWER, held_seconds, into)
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
        self, kind: Kind, into: Tensor, payload: Tensor | None = None, learning_rate: float = 0.0
    ) -> Callable[[], float]:
        request = LocalRequest(self._worker, kind, learning_rate, payload=payload, into=into)
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
