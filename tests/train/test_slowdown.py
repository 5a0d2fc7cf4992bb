"""A worker that is slow on purpose, on clocks that the test moves."""

from __future__ import annotations

import time

import pytest
import torch

from bsweep.train.slowdown import Slowdown


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
