"""The clock of steps, on clocks that the test moves."""

from __future__ import annotations

import time

import pytest
import torch

from bsweep.numerics import timing
from bsweep.numerics.timing import StepClock


def test_steps_are_timed_end_to_end_but_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    steps, logging, evaluating = StepClock(torch.device("cpu"), [7.0]), 2.0, 100.0
    for number in range(4):
        with steps.step():
            now[0] += 1
        now[0] += logging
        if number == 1:
            with steps.pause():
                now[0] += evaluating
    assert steps.seconds() == [7.0, 1.0, 3.0, 3.0, 3.0]


def test_a_long_epochs_events_are_read_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that has ended each step; each span lasts as many ms as its number."""
    made: list[Event] = []
    unread: set[int] = set()

    class Event:
        def __init__(self, **_: object) -> None:
            self.number = len(made)
            made.append(self)
            unread.add(self.number)

        def record(self, stream: object) -> None: ...

        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> float:
            assert end.number == self.number + 1
            unread.discard(self.number)
            return float(end.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(timing, "_MOST_MARKS", 4)
    steps = StepClock(torch.device("cuda"), [])
    for number in range(1, 10):
        with steps.step():
            pass
        assert len(unread) < 4
        assert len(steps) == number
    # The one between two steps counts for the later one.
    assert steps.seconds() == pytest.approx([(4 * number - 3) / 1000 for number in range(1, 10)])
