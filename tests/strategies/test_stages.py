"""Where a model is cut into stages, and what the times of a worker's passes are."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bsweep.config.split_strategies import PipelineConfig
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


SCHEDULES = {
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("workers", "number"), [(2, 4), (2, 8), (4, 8), (4, 16)])
def test_the_micro_batches_in_flight_are_those_of_torchs_schedules(
    schedule: Any, workers: int, number: int
) -> None:
    from torch.distributed.pipelining import schedules

    if not hasattr(schedules, "ScheduleDualPipeV"):
        pytest.skip("this torch writes the order of actions in another form")
    card = PipelineConfig(
        name="pipeline", replicas=1, reduce="fp32", schedule=schedule, microbatches=number,
        cuts=None,
    )  # fmt: skip
    rounds = max(1, number // workers)
    stub = SimpleNamespace(
        n_local_stages=2, _n_microbatches=number, pp_group_size=workers, num_stages=2 * workers,
        _num_stages=2 * workers, number_of_rounds=rounds, microbatches_per_round=number // rounds,
    )  # fmt: skip
    kind: Any = schedules.get_schedule_class(SCHEDULES[schedule])
    for part in range(workers):
        orders = kind._calculate_single_rank_operations(stub, part)
        assert card.in_flight(part, workers) == _most_kept(orders)


def _most_kept(orders: list[Any]) -> tuple[int, ...]:
    """Return of how many micro-batches a worker keeps activations when it keeps most, for each of
    its stages.
    """
    kept: set[tuple[int, int]] = set()
    most: set[tuple[int, int]] = set()
    for action in filter(None, orders):
        for one in action.sub_actions or (action,):
            pair, kind = (one.stage_index, one.microbatch_index), one.computation_type.name
            if kind == "FORWARD":
                kept.add(pair)
            elif kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"):
                kept.discard(pair)
            if len(kept) > len(most):
                most = set(kept)
    return tuple(number for _, number in sorted(Counter(stage for stage, _ in most).items()))
