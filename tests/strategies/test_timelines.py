"""The passes of workers whose clocks differ are on one timeline."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from bsweep.strategies import clocks, stages, timelines
from bsweep.strategies.stages import Sampled, Times


def test_a_sample_has_the_passes_of_the_last_of_the_largest_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step has a forward pass of 2 s with a loss of 1 s behind it, and after a wait of 5 s a
    backward pass of 3 s, whose message takes 1 s.
    """
    lengths = [0.0, 0.0, 2.0, 0.0, 1.0, 5.0, 3.0, 4.0]
    clock = iter(itertools.accumulate(lengths * 3))
    monkeypatch.setattr(stages, "mark", lambda device: next(clock))
    times = Times(torch.device("cpu"))
    for num_examples in (8, 8, 4):  # the tail of the epoch
        with times.step(num_examples):
            with times.computing(of=("F", 0, 2)):
                pass
            with times.computing():
                pass
            with times.computing(1.0, ("B", 0, 2)):
                pass
    assert times.sample is not None
    assert times.sample.began == 15, "by the reading from which its passes are counted"
    assert times.sample[2:] == (15.0, [("F", 0, 2, 0.0, 3.0, 0.0), ("B", 0, 2, 8.0, 11.0, 1.0)])
    times.forget()
    assert times.sample is None


class Together:
    """Three workers as threads of this process, which gather their values."""

    def __init__(self) -> None:
        self._barrier, self._values = threading.Barrier(3), dict[int, Any]()

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        every = [self._values[one] for one in range(3)]
        self._barrier.wait()
        return every


def test_clocks_of_other_hosts_are_moved_and_the_error_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worker 2 is on another host, whose clock is 50 s ahead."""
    together, found = Together(), dict[int, Any]()
    ahead = threading.local()
    now = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: now() + getattr(ahead, "seconds", 0.0))
    zero = now()

    class Worker:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def gather(self, values: Tensor) -> Tensor:
            return torch.stack(together.gather(self.rank, values))

        def gather_json(self, value: Any) -> list[Any]:
            return together.gather(self.rank, value)

    def work(rank: int) -> None:
        ahead.seconds = 50.0 if rank == 2 else 0.0
        begin = zero + 0.25 * rank + ahead.seconds
        sample = Sampled(8, begin, 1.0, [("F", rank, 0, 0.125, 0.5, 0.0)])
        found[rank] = timelines.of_all(Worker(rank), sample, 3)  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second, third = found[0]
    assert found[1] == found[0]
    assert first.begin_seconds == (0.125,)
    assert second.begin_seconds == (0.375,)
    assert second.clock_error_seconds == 0
    assert 0 < third.clock_error_seconds < 0.5
    assert third.begin_seconds[0] == pytest.approx(0.625, abs=third.clock_error_seconds + 1e-6)
    assert third.ended_seconds - third.began_seconds == pytest.approx(1.0)


def test_bounds_hold_the_offset() -> None:
    together, found = Together(), dict[int, Tensor]()

    def work(rank: int) -> None:
        def gather(values: Tensor) -> Tensor:
            return torch.stack(together.gather(rank, values))

        found[rank] = clocks.bounds(gather, lambda: time.monotonic() + 7 * rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lowest, highest = found[0].tolist()
    for rank in range(3):
        assert lowest[rank] <= 7 * rank <= highest[rank]
