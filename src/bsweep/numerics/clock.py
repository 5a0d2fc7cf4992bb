"""Clocks that time training steps and parts of steps, and code that slows a worker down."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import torch

_MOST_STEPS = 2000  # whose events a clock holds before it reads the older half of them


class StepClock:
    """A clock that times training steps end to end: a step lasts from the end of the one before to
    its own end, so that what happens between two steps counts, too.

    The first step, and one after a pause, lasts from its own beginning. On a GPU the clock uses
    events, so that timing a step does not make the host wait.
    """

    def __init__(self, device: torch.device, seconds: list[float], unrated: int = 0) -> None:
        """Create a clock that appends the seconds of each step to the list `seconds`.

        Args:
            device: The device that computes the steps.
            seconds: The seconds of earlier steps; the clock appends to this list.
            unrated: How many of the last earlier steps the next call of `rate` includes.
        """
        self._device = device
        self._seconds = seconds
        self._last_end: Mark | None = None
        self._steps: list[tuple[Mark, Mark]] = []  # of a GPU, whose times are not read yet
        self._rate_from = len(seconds) - unrated

    def __len__(self) -> int:
        return len(self._seconds) + len(self._steps)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a training step, the `with` block."""
        begin = mark(self._device) if self._last_end is None else self._last_end
        yield
        self._last_end = end = mark(self._device)
        self._steps.append((begin, end))
        half = _MOST_STEPS // 2
        if isinstance(end, float):
            self._read(1)
        elif len(self._steps) >= _MOST_STEPS and _has_passed(self._steps[half][1]):
            self._read(half)  # these steps have ended, so the host does not wait

    def pause(self) -> None:
        """Leave out what happens until the next step, such as an evaluation."""
        self._last_end = None

    def seconds(self) -> list[float]:
        """Return the seconds of every step so far, after a GPU has finished these steps."""
        self._read(len(self._steps))
        return self._seconds

    def _read(self, count: int) -> None:
        """Read the times of the first `count` steps, and forget their events."""
        ended, self._steps = self._steps[:count], self._steps[count:]
        self._seconds += [seconds_between(begin, end) for begin, end in ended]

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


def _has_passed(moment: Mark) -> bool:
    return isinstance(moment, float) or bool(moment.query())


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
