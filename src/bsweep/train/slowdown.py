"""An artificial slowdown of a worker, as of an older machine among newer ones."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
