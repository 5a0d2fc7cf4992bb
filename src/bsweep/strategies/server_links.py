"""Messages between a worker and a parameter server: over Gloo, or by copying if both are in one
process.

A worker asks, and the server answers every request except a goodbye. A worker has at most one open
request to a server. The messages are point-to-point: collective operations would hide how congested
servers are, which bsweep measures.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from bsweep.runlog import waits
from bsweep.runlog.errors import worker_lost

_REQUEST_HEADER, _REQUEST, _ANSWER_HEADER, _ANSWER = range(1, 5)  # Gloo's tags
_FOREVER = timedelta(days=1000)  # a worker may evaluate for as long as it likes
_GOODBYE_TIMEOUT = timedelta(seconds=10)


class Kind(IntEnum):
    LAYOUT = 1  # send the layout of the shard, as JSON
    LOAD = 2  # send the parameters that the server begins with
    PUSH = 3  # send the gradient; the answer is the parameters, when the consistency allows
    PULL = 4  # ask for the parameters
    STATS = 5  # ask for the server's counts since the last STATS
    BYE = 6
    SAVE = 7  # save the server's state in the checkpoint of this name
    RESTORE = 8  # restore the state from there; as for SAVE, an answer below 0 seconds is a failure


@dataclass(frozen=True)
class Request:
    """The header of a request that a worker sends to a parameter server."""

    kind: Kind
    clock: int = 0  # pushes that the worker has made, this one included
    learning_rate: float = 0.0
    num_bytes: int = 0  # of a LAYOUT, or of a name

    def encoded(self) -> Tensor:
        return torch.tensor(
            [self.kind, self.clock, self.learning_rate, self.num_bytes], dtype=torch.float64
        )

    @classmethod
    def decoded(cls, header: Tensor) -> Request:
        kind, clock, learning_rate, num_bytes = header.tolist()
        return cls(Kind(int(kind)), int(clock), learning_rate, int(num_bytes))


@dataclass
class Arrival:
    """A worker's request that has arrived at a server, with the times of its arrival and its
    handling.

    Times are on the server's clock (`time.perf_counter`).
    """

    worker: int
    request: Request
    arrived_at: float
    attended_at: float = 0.0

    @property
    def queue_seconds(self) -> float:
        return self.attended_at - self.arrived_at


Inbox = queue.SimpleQueue[Arrival | BaseException]


class ToServer(ABC):
    """The worker's end of the connection between a worker and a parameter server."""

    travels: bool

    @abstractmethod
    def ask(
        self, request: Request, payload: Tensor | None = None, into: Tensor | None = None
    ) -> None:
        """Start to send a request and, if given, the tensor `payload` to the server, and start to
        receive the answer.

        The answer's tensor, if there is one, goes into `into`, which may be the memory of
        `payload`.
        """

    @abstractmethod
    def wait(self) -> float:
        """Wait for the server's answer, and return the seconds for which the server delayed the
        answer to wait for other workers; a number below 0 if it could not save or restore.
        """

    @abstractmethod
    def say_goodbye(self) -> None:
        """Tell the server that this worker sends no more requests.

        Raises:
            WorkerLost: If the server is gone, which the caller may ignore.
        """


class ToWorker(ABC):
    """The server's end of the connection between a parameter server and a worker."""

    travels: bool

    @abstractmethod
    def start_receiving(self, into: Tensor) -> None:
        """Start to receive the tensor that follows the worker's request, such as a gradient, into
        `into`.
        """

    @abstractmethod
    def received(self) -> Tensor:
        """Wait until the tensor that follows the worker's request has arrived, and return this
        tensor.

        It is the `into` of `start_receiving`, or the worker's own tensor if nothing is sent.
        """

    @abstractmethod
    def answer(self, held_seconds: float = 0.0, payload: Tensor | None = None) -> None:
        """Start to send an answer to the worker. It consists of the number `held_seconds` and, if
        given, the tensor `payload`.

        `payload` must not change until `sent` returns.
        """

    @abstractmethod
    def sent(self) -> None:
        """Wait until the last answer to the worker has been sent."""

    @abstractmethod
    def close(self) -> None:
        """Release this connection's thread and tensors after the worker's goodbye message has
        arrived.
        """


class ToRemoteServer(ToServer):
    travels = True

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._works: list[dist.Work] = []
        self._held = torch.zeros(1, dtype=torch.float64)

    def ask(
        self, request: Request, payload: Tensor | None = None, into: Tensor | None = None
    ) -> None:
        with worker_lost():
            self._works = [_receive(self._held, self._rank, _ANSWER_HEADER)]
            if into is not None:
                self._works.append(_receive(into, self._rank, _ANSWER))
            self._works.append(_send(request.encoded(), self._rank, _REQUEST_HEADER))
            if payload is not None:
                self._works.append(_send(payload, self._rank, _REQUEST))

    def wait(self) -> float:
        with worker_lost():
            for work in self._works:
                work.wait(_FOREVER)
        self._works = []
        return self._held.item()

    def say_goodbye(self) -> None:
        with worker_lost():
            _send(Request(Kind.BYE).encoded(), self._rank, _REQUEST_HEADER).wait(_GOODBYE_TIMEOUT)


class ToRemoteWorker(ToWorker):
    travels = True

    def __init__(self, worker: int, inbox: Inbox) -> None:
        self._worker, self._inbox = worker, inbox
        self._receiving: tuple[Tensor, dist.Work] | None = None
        self._sending: list[dist.Work] = []
        self._thread = threading.Thread(
            target=self._listen, name=f"listen to worker {worker}", daemon=True
        )
        self._thread.start()
        atexit.register(self._end_process)

    def start_receiving(self, into: Tensor) -> None:
        with worker_lost():
            self._receiving = into, _receive(into, self._worker, _REQUEST)

    def received(self) -> Tensor:
        assert self._receiving is not None
        into, work = self._receiving
        with worker_lost():
            work.wait()
        return into

    def answer(self, held_seconds: float = 0.0, payload: Tensor | None = None) -> None:
        self.sent()
        with worker_lost():
            held = torch.tensor([held_seconds], dtype=torch.float64)
            self._sending = [_send(held, self._worker, _ANSWER_HEADER)]
            if payload is not None:
                self._sending.append(_send(payload, self._worker, _ANSWER))

    def sent(self) -> None:
        with worker_lost():
            for work in self._sending:
                work.wait()
        self._sending = []

    def close(self) -> None:
        self._thread.join()
        # The registration would keep this object, and the tensors that it sent, for ever.
        atexit.unregister(self._end_process)
        self._receiving = None

    def _end_process(self) -> None:
        """End the server's process at once if the thread of this connection still waits for
        requests.

        Python calls it at its end. A thread that returns from torch while Python ends would abort
        the process.
        """
        if self._thread.is_alive():
            sys.stdout.flush()
            # Exit with 1 after an error, which Python has printed by now.
            os._exit(1 if hasattr(sys, "last_type") else 0)

    def _listen(self) -> None:
        """Receive the worker's requests and put each into the server's inbox, until the worker's
        goodbye message.

        It runs in a thread of its own, so that it notes the time of arrival while the server works.
        """
        header = Request(Kind.BYE).encoded()
        try:
            while True:
                with worker_lost():
                    _receive(header, self._worker, _REQUEST_HEADER).wait(_FOREVER)
                request = Request.decoded(header)
                self._inbox.put(Arrival(self._worker, request, time.perf_counter()))
                if request.kind == Kind.BYE:
                    return
        except BaseException as error:
            self._inbox.put(error)


class LocalLink(ToServer, ToWorker):
    """Both ends of the connection between a worker and a server that runs in the worker's process.

    Nothing is sent: the server and the worker use each other's tensors.
    """

    travels = False

    def __init__(self, worker: int, inbox: Inbox) -> None:
        self._worker, self._inbox = worker, inbox
        self._payload: Tensor | None = None
        self._into: Tensor | None = None
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()

    def ask(
        self, request: Request, payload: Tensor | None = None, into: Tensor | None = None
    ) -> None:
        self._payload, self._into = payload, into
        self._inbox.put(Arrival(self._worker, request, time.perf_counter()))

    def wait(self) -> float:
        with waits.for_others():  # the server in this process may wait for other workers
            return self._answers.get()

    def say_goodbye(self) -> None:
        self.ask(Request(Kind.BYE))

    def start_receiving(self, into: Tensor) -> None:
        pass

    def received(self) -> Tensor:
        assert self._payload is not None
        return self._payload

    def answer(self, held_seconds: float = 0.0, payload: Tensor | None = None) -> None:
        if self._into is not None and payload is not None:
            self._into.copy_(payload)
        self._answers.put(held_seconds)

    def sent(self) -> None:
        pass

    def close(self) -> None:
        pass


def _send(tensor: Tensor, rank: int, tag: int) -> dist.Work:
    work = dist.isend(tensor, rank, tag=tag)
    assert work is not None
    return work


def _receive(tensor: Tensor, rank: int, tag: int) -> dist.Work:
    work = dist.irecv(tensor, rank, tag=tag)
    assert work is not None
    return work
