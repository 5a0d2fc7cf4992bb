"""Where a model is cut into stages, and what the times of a worker's passes are."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from bsweep.numerics import timing
from bsweep.strategies.stages import Activations, Times, balanced


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_balanced_cuts_make_the_slowest_stage_as_fast_as_any_do(num_stages: int) -> None:
    seconds = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]

    def slowest(cuts: tuple[int, ...]) -> float:
        borders = [0, *cuts, len(seconds)]
        return max(sum(seconds[i:j]) for i, j in itertools.pairwise(borders))

    every = itertools.combinations(range(1, len(seconds)), num_stages - 1)
    assert slowest(tuple(balanced(seconds, num_stages))) == min(map(slowest, every))


def test_a_message_counts_for_the_end_of_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker computes 2 s, waits 5 s for a message that takes 1 s, computes 3 s, waits 0.5 s
    for another, computes 1 s, and ends 4 s later.
    """
    clock = iter([0.0, 0.0, 2.0, 7.0, 10.0, 10.5, 11.5, 15.5])
    monkeypatch.setattr(timing, "mark", lambda device: next(clock))
    times = Times(torch.device("cpu"))
    with times.step():
        for message_seconds in (0.0, 1.0, 1.0):
            with times.computing(message_seconds):
                pass
    assert times.read() == [6.0, 8.0, 1.5]


def test_activations_are_what_backward_passes_need() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        flat = torch.cat([p.reshape(-1) for p in model.parameters()])
        for parameter, part in zip(
            model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
        ):
            parameter.data = part.view_as(parameter)
    count = Activations(flat)
    for _ in range(2):
        with count.counted():
            first, second = (model(torch.randn(3, 4)) for _ in range(2))
            (first.sum() + second.sum()).backward()
            del first, second
    assert count.peak_bytes == 2 * 3 * (4 + 8) * 4, "inputs of both layers, twice, in fp32"
