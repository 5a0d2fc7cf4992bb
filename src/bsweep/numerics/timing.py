"""Times on one device: of its phases, of training steps, and of a lone piece of work.

On a GPU all of them are taken by events in its stream, which are read later, so that the host does
not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

Mark = float | torch.cuda.Event
"""A moment in time: a reading of the host's clock, or a CUDA event in a GPU's stream.

The event's moment is when the stream has finished its earlier work.
"""

_MOST_MARKS = 4000  # that a timeline holds before it reads the older half of them


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


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a device needs for the work of a function, for which this waits."""
    begin = mark(device)
    work()
    return seconds_between(begin, mark(device))


class Timeline:
    """The phases of a device's work, one after another.

    A phase inside another one interrupts it, so that each moment belongs to one phase. On a GPU a
    phase lasts until the work of the next one begins.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[str | None] = [None]
        self._marks: list[tuple[str | None, Mark]] = []  # the phase that begins, and its start
        self._spans: list[tuple[str | None, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Let the `with` block be in the phase `name`."""
        self._open.append(name)
        self._turn()
        try:
            yield
        finally:
            self._open.pop()
            self._turn()

    def spans(self) -> list[tuple[str | None, float]]:
        """Return the phases since this method was last called, in their order, and the seconds of
        each, after a GPU has finished their work. The time outside of all phases has the name None.
        """
        self._read(len(self._marks) - 1)
        spans, self._spans = self._spans, []
        return spans

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase since the spans were last taken, by its name."""
        seconds: dict[str, float] = {}
        for phase, lasted in self.spans():
            if phase is not None:
                seconds[phase] = seconds.get(phase, 0.0) + lasted
        return seconds

    def _turn(self) -> None:
        self._marks.append((self._open[-1], mark(self._device)))
        half = _MOST_MARKS // 2
        if len(self._marks) >= _MOST_MARKS and _has_passed(self._marks[half][1]):
            self._read(half)  # this work has ended, so the host does not wait

    def _read(self, count: int) -> None:
        """Read the first `count` spans, and forget their events."""
        ended, self._marks = self._marks[: count + 1], self._marks[max(0, count) :]
        for (phase, begin), (_, end) in pairwise(ended):
            self._spans.append((phase, seconds_between(begin, end)))


def _has_passed(moment: Mark) -> bool:
    return isinstance(moment, float) or bool(moment.query())


class StepClock:
    """A clock that times training steps end to end: a step lasts from the end of the one before to
    its own end, so that what happens between two steps counts, too.

    The first step lasts from its own beginning. Pauses are left out.
    """

    def __init__(self, device: torch.device, seconds: list[float]) -> None:
        """Create a clock that appends the seconds of each step to the list `seconds`.

        Args:
            device: The device that computes the steps.
            seconds: The seconds of earlier steps; the clock appends to this list.
        """
        self._timeline = Timeline(device)
        self._seconds = seconds
        self._num_steps = len(seconds)
        self._between_seconds = 0.0  # since the last step whose time is read

    def __len__(self) -> int:
        return self._num_steps

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time a training step, the `with` block."""
        with self._timeline.phase("step"):
            yield
        self._num_steps += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out the `with` block, such as an evaluation."""
        with self._timeline.phase("pause"):
            yield

    def seconds(self) -> list[float]:
        """Return the seconds of every step so far, after a GPU has finished these steps."""
        for phase, seconds in self._timeline.spans():
            if phase == "step":
                self._seconds.append(self._between_seconds + seconds)
                self._between_seconds = 0.0
            elif phase is None:
                self._between_seconds += seconds
        return self._seconds
