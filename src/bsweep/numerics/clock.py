"""Clocks that time training steps and parts of steps, and code that slows a worker down."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import torch

_MOST_EVENTS = 2000  # pairs that a clock holds before it reads the older half of them


class StepClock:
    """A clock that times training steps.

    On a GPU it uses events, so that timing a step does not make the host wait.
    """

    def __init__(self, device: torch.device, seconds: list[float], unrated: int = 0) -> None:
        """Create a clock that appends the seconds of each step to the list `seconds`.

        Args:
            device: The device that computes the steps.
            seconds: The seconds of earlier steps; the clock appends to this list.
            unrated: How many of the last earlier steps the next call of `rate` includes.
        """
        self._on_gpu = device.type == "cuda"
        self._seconds = seconds
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._rate_from = len(seconds) - unrated

    def __len__(self) -> int:
        return len(self._seconds) + len(self._events)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the `with` block, which makes one training step."""
        if self._on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
            if len(self._events) >= _MOST_EVENTS and self._events[_MOST_EVENTS // 2][1].query():
                self._read(_MOST_EVENTS // 2)  # these steps have ended, so the host does not wait
        else:
            start = time.perf_counter()
            yield
            self._seconds.append(time.perf_counter() - start)

    def seconds(self) -> list[float]:
        """Return the seconds of every step so far, after a GPU has finished these steps."""
        if self._events:
            self._events[-1][1].synchronize()
            self._read(len(self._events))
        return self._seconds

    def _read(self, count: int) -> None:
        """Read the events of the first `count` steps, which have ended, and free the events."""
        read, self._events = self._events[:count], self._events[count:]
        self._seconds += [begin.elapsed_time(end) / 1000 for begin, end in read]

    def rate(self, examples: float) -> float:
        """Return the examples per second in the steps since this method was last called, on which
        `examples` examples were trained.

        The first call also counts the last `unrated` of the earlier steps.
        """
        recent = self.seconds()[self._rate_from :]
        self._rate_from += len(recent)
        return examples / sum(recent)


Mark = float | torch.cuda.Event
"""A moment in time: a reading of the host's clock, or a CUDA event in a GPU's stream.

The event's moment is when the stream has finished its earlier work.
"""


def mark(device: torch.device) -> Mark:
    """Return a time mark for this moment or, on a GPU, for the moment when the work submitted so
    far ends; the host does not wait for that moment.

    `seconds_between` computes the seconds between two such marks.
    """
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Mark, end: Mark) -> float:
    """Return the seconds between two time marks of one device; on a GPU, first wait until the GPU
    has reached `end`.
    """
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float)
        assert isinstance(end, float)
        return end - begin
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


Phase = Callable[[str], AbstractContextManager[object]]
"""A function that takes the name of a part of a step, and returns a context manager that times it.
"""


def untimed(_: str) -> AbstractContextManager[None]:
    """Return a context manager that does nothing, for training steps whose parts are not timed."""
    return nullcontext()


class PhaseClock:
    """A clock that adds up the seconds of each named phase, such as the phases of a training step.

    The time of an inner phase counts for the inner phase alone. Time outside all phases is not
    counted. On a GPU the clock uses events in its stream, so that the host does not wait. There, a
    phase lasts until the work of the next phase begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[str | None] = [None]
        self._turns: list[tuple[str | None, Mark]] = []  # the phase that begins, and its start

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the `with` block, and add its seconds to those of the step's phase `name`."""
        self._open.append(name)
        self._turn()
        yield
        self._open.pop()
        self._turn()

    def _turn(self) -> None:
        self._turns.append((self._open[-1], mark(self._device)))

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each named phase so far, after a GPU has finished its work.

        The phases are in the order of first use.
        """
        found: dict[str, float] = {}
        for (name, begin), (_, end) in pairwise(self._turns):
            if name is not None:
                found[name] = found.get(name, 0.0) + seconds_between(begin, end)
        return found


class Slowdown:
    """An artificial slowdown of a worker's forward and backward passes by a factor.

    The worker sleeps, which leaves its core to other processes. A step's passes last at least the
    factor times the median computing time of recent steps of that size, so that the noise of a busy
    machine is not multiplied as well.
    """

    _MAX_STEPS = 1000

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self._on_gpu = device.type == "cuda"
        self._recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=self._MAX_STEPS))

    @contextmanager
    def step(self, num_examples: int) -> Iterator[None]:
        """Slow the `with` block down by `factor`; the block computes passes on `num_examples`
        examples.
        """
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
        """Return the reading, in seconds, of the clock that times this worker's passes.

        On a CPU the clock stands still while other processes use the core. On a GPU it is a wall
        clock, read after the GPU has finished its work.
        """
        if not self._on_gpu:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()
