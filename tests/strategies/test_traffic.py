"""What exchanges cost, on a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from bsweep.compression.base import Group
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Traffic
from bsweep.strategies.base import Summing
from tests.support.running import compose


class Pair(Summing):
    """One of two workers, whose every message takes `message_seconds`; the other one's numbers are
    `other`.
    """

    def __init__(self, clock: list[float], message_seconds: float) -> None:
        config = compose("local_batch=8", "num_workers=2")
        super().__init__(config, config.strategy, World(0, 2), RunPaths(Path()))
        self._vector, self._codec = SimpleNamespace(gradients=torch.zeros(4), scale=None), None  # type: ignore[assignment]
        self.clock, self.message_seconds = clock, message_seconds
        self.other = torch.zeros(0)  # rows

    def all_reduce(self, tensor: Tensor) -> None:
        self.clock[0] += self.message_seconds

    def sum_gradients(self) -> None:
        self.all_reduce(self._vector.gradients)

    def gather(self, values: Tensor) -> Tensor:
        return torch.cat([values.unsqueeze(0), self.other])

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def prepare(self, *_: object) -> None:
        raise NotImplementedError


class TwoMessages:
    """A codec that computes for so many seconds before, between and after two messages."""

    memory = None

    def __init__(self, clock: list[float], *computing: float) -> None:
        self.clock, self.computing = clock, computing

    def exchange(self, gradients: Tensor, group: Group) -> None:
        first, second, third = self.computing
        self.clock[0] += first
        group.all_reduce(gradients)
        self.clock[0] += second
        group.all_reduce(gradients)
        self.clock[0] += third


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pair]:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def make(message_seconds: float, *computing: float) -> Pair:
        one = Pair(clock, message_seconds)
        one._codec = TwoMessages(clock, *computing) if computing else None  # type: ignore[assignment]
        return one

    return make


def cost(one: Pair, other_codec: float, *other_messages: float) -> Traffic:
    one.exchange()
    first_ranks = [0] * len(other_messages)
    one.other = torch.tensor(
        [[0, 0, 0, other_codec, *other_messages, *first_ranks]], dtype=torch.float64
    )
    return one.traffic()


def test_codec_seconds_are_neither_exchange_nor_wait_seconds(
    pair: Callable[..., Pair],
) -> None:
    """This worker's codec takes 6 s and the other's 14 s: its messages of 4 s are 1 s of travel and
    3 s of waiting.
    """
    traffic = cost(pair(4.0, 1.0, 2.0, 3.0), 14.0, 1.0, 1.0)
    assert traffic.exchange_seconds == traffic.exposed_exchange_seconds == 2
    assert traffic.worker_wait_seconds == (6, 0)
    assert traffic.codec_seconds == 10


def test_what_nobody_measured_is_null_not_zero(pair: Callable[..., Pair]) -> None:
    one = pair(4.0)
    traffic = cost(one, 0.0, 3.0)
    assert traffic.codec_seconds is None
    assert traffic.exchange_seconds == traffic.exposed_exchange_seconds == 3
    assert traffic.worker_wait_seconds == (1, 0)
    one.can = replace(one.can, exchanges_in_passes=True)
    hidden = cost(one, 0.0, 3.0)
    assert hidden.exchange_seconds is None
    assert hidden.exposed_exchange_seconds == 3


def test_each_pair_of_workers_has_an_exchange_of_its_own(pair: Callable[..., Pair]) -> None:
    one = pair(4.0)
    with one.meter.exchange(torch.zeros(4), (0, 2)):
        one.clock[0] += 4
    rows = [(9.0, 1), (1.0, 0), (2.0, 1)]  # of ranks 1, 2 and 3
    one.other = torch.tensor([[0, 0, 0, 0, *row] for row in rows], dtype=torch.float64)
    traffic = one.traffic()
    assert traffic.worker_wait_seconds == (3, 7, 0, 0)
    assert traffic.exchange_seconds == 1.5


def test_no_step_waits_for_a_gpu_to_have_exchanged(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's events, which lie at the moments of the test's clock, in milliseconds; the host's own
    clock stands.
    """
    one = pair(4.0, 1.0, 2.0, 3.0)
    may_wait: list[bool] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "of cuda:0"
            self.at = one.clock[0]

        def synchronize(self) -> None:
            assert may_wait, "a step waits"

        def elapsed_time(self, end: Event) -> float:
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of {device}")
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("by the host's clock"))
    one._vector = SimpleNamespace(
        gradients=SimpleNamespace(device=torch.device("cuda:0")), scale=None
    )  # type: ignore[assignment]
    one.exchange()
    one.exchange()
    may_wait.append(True)
    one.other = torch.tensor([[0, 0, 0, 28.0, 1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.float64)
    traffic = one.traffic()
    assert traffic.exchange_seconds == 4
    assert traffic.worker_wait_seconds == (12, 0)
    assert traffic.codec_seconds == 20
