"""Clocks of training steps: one that times them, one that divides them, one that makes a worker
slow on purpose.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import torch


class StepClock:
    """Times steps: on a GPU by events, so that reading it never makes the host wait in the loop.

    Goes on from the `seconds` of earlier steps, a list that it extends; the last `unrated` count
    for the coming rate.
    """

    def __init__(self, device: torch.device, seconds: list[float], unrated: int = 0) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = seconds
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._rate_from = len(seconds) - unrated

    def __len__(self) -> int:
        return len(self._seconds) + len(self._events)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one training step."""
        if self._on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds.append(time.perf_counter() - start)

    def seconds(self) -> list[float]:
        """Seconds of every step so far; waits for the GPU to finish them."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds += [begin.elapsed_time(end) / 1000 for begin, end in self._events]
            self._events = []
        return self._seconds

    def rate(self, examples: float) -> float:
        """Examples per second, when `examples` were trained since the last call."""
        recent = self.seconds()[self._rate_from :]
        self._rate_from += len(recent)
        return examples / sum(recent)


Mark = float | torch.cuda.Event
"""A moment: on the host's clock, or in a GPU's stream, when what came before is done."""


def mark(device: torch.device) -> Mark:
    """Now; the host does not wait for a GPU to get there."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Mark, end: Mark) -> float:
    """Of two marks on one device; waits for a GPU to have come so far."""
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


Phase = Callable[[str], AbstractContextManager[object]]
"""What a step does under that name, until the context is left."""


def untimed(_: str) -> AbstractContextManager[None]:
    """A phase that nobody times."""
    return nullcontext()


class PhaseClock:
    """Divides time among phases: one within another counts for itself alone. Time that is in none
    is not counted.

    On a GPU by events in its stream, so that the host waits for none: a phase lasts until the next
    one's work begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[str | None] = [None]
        self._turns: list[tuple[str | None, Mark]] = []  # what begins there, and when

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._open.append(name)
        self._turn()
        yield
        self._open.pop()
        self._turn()

    def _turn(self) -> None:
        self._turns.append((self._open[-1], mark(self._device)))

    def seconds(self) -> dict[str, float]:
        """Of each phase so far, in the order in which they came first; waits for the GPU to finish
        them.
        """
        found: dict[str, float] = {}
        for (name, begin), (_, end) in pairwise(self._turns):
            if name is not None:
                found[name] = found.get(name, 0.0) + seconds_between(begin, end)
        return found


class Slowdown:
    """Stretches a worker's forward and backward passes by a factor. Asleep, it leaves its core to
    the others.

    They last the factor times the median of what such steps computed: a busy machine's noise is not
    multiplied too.
    """

    _MAX_STEPS = 1000

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self._on_gpu = device.type == "cuda"
        self._recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=self._MAX_STEPS))

    @contextmanager
    def step(self, num_examples: int) -> Iterator[None]:
        """Stretch what is computed on so many examples."""
        if self.factor == 1:
            yield
            return
        started, busy_before = time.perf_counter(), self._busy_seconds()
        yield
        recent = self._recent[num_examples]
        recent.append(self._busy_seconds() - busy_before)
        time.sleep(
            max(0.0, self.factor * statistics.median(recent) - (time.perf_counter() - started))
        )

    def _busy_seconds(self) -> float:
        """A clock of this thread's computing: on a CPU it stands while other processes have the
        core.
        """
        if not self._on_gpu:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()
