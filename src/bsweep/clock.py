"""The clock of training steps: on a GPU by events, so that reading it never makes the host wait in the loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StepClock:
    """Goes on from the `seconds` of earlier steps, a list that it extends."""

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
