"""A worker that is slow on purpose, on clocks that the test moves."""

from __future__ import annotations

import time

import pytest
import torch

from bsweep.numerics import clock
from bsweep.numerics.clock import Slowdown, StepClock


def test_a_slowed_step_lasts_the_factor_times_what_such_steps_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, busy = [0.0], [0.0]
    slept: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "thread_time", lambda: busy[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    slowdown = Slowdown(4, torch.device("cpu"))
    for num_examples, computed, waited in (
        (8, 1.0, 0.0),
        (8, 1.0, 0.5),
        (8, 3.0, 0.0),
        (2, 0.5, 0.0),
        (8, 9.0, 0.0),
    ):
        with slowdown.step(num_examples):
            busy[0] += computed
            wall[0] += computed + waited  # waited for the core, which others had
    median_of_four = 2.0
    assert slept == [3.0, 2.5, 1.0, 1.5, max(0.0, 4 * median_of_four - 9)]


def test_a_worker_that_is_not_slowed_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("asleep"))
    with Slowdown(1, torch.device("cpu")).step(8):
        pass


def test_a_long_epochs_events_are_read_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that has ended each step; each lasts as many ms as its number."""
    made: list[int] = []

    class Event:
        def __init__(self, **_: object) -> None:
            made.append(len(made) // 2)
            self.step = made[-1]

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> float:
            return float(self.step)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(clock, "_MOST_EVENTS", 4)
    steps = StepClock(torch.device("cuda"), [])
    for number in range(1, 10):
        with steps.step():
            pass
        assert len(steps._events) < 4
        assert len(steps) == number
    assert steps.seconds() == [step / 1000 for step in range(9)]
