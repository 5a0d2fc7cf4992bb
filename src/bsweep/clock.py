"""Clocks of training steps: one that times them, one that makes a worker slow on purpose."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StepClock:
    """Times steps: on a GPU by events, so that reading it never makes the host wait in the loop.

    Goes on from the `seconds` of earlier steps, a list that it extends.
    """

    def __init__(self, device: torch.device, seconds: list[float]) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = seconds
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._rate_from = len(seconds)

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


class Slowdown:
    """Stretches a worker's forward and backward passes by a factor. Asleep, it leaves its core to the others.

    They last the factor times the median of what such steps computed: a busy machine's noise is not multiplied too.
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
        time.sleep(max(0.0, self.factor * statistics.median(recent) - (time.perf_counter() - started)))

    def _busy_seconds(self) -> float:
        """A clock of this thread's computing: on a CPU it stands while other processes have the core."""
        if not self._on_gpu:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()
