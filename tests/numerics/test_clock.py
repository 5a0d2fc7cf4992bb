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


def test_steps_are_timed_end_to_end_but_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    steps, logging, evaluating = StepClock(torch.device("cpu"), [7.0], 1), 2.0, 100.0
    for number in range(4):
        with steps.step():
            now[0] += 1
        now[0] += logging
        if number == 1:
            now[0] += evaluating
            steps.pause()
    assert steps.seconds() == [7.0, 1.0, 3.0, 1.0, 3.0]
    assert steps.rate(30) == 2.0


def test_a_long_epochs_events_are_read_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that has ended each step; each lasts as many ms as its number."""
    made: list[Event] = []

    class Event:
        def __init__(self, **_: object) -> None:
            self.number = len(made)
            made.append(self)

        def record(self, stream: object) -> None: ...

        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> float:
            assert end.number == self.number + 1
            return float(end.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(clock, "_MOST_STEPS", 4)
    steps = StepClock(torch.device("cuda"), [])
    for number in range(1, 10):
        with steps.step():
            pass
        assert len(steps._steps) < 4
        assert len(steps) == number
    assert steps.seconds() == [step / 1000 for step in range(1, 10)]
