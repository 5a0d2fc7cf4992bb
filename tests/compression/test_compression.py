"""Codecs against the formulas of their papers, on one to four workers simulated by threads.

What holds for every codec is tested on every member of `AnyCompression`, so a new one is tested by
being there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.optim import SGD

from bsweep import compression
from bsweep.compression import powersgd
from bsweep.compression.base import Codec, Setting
from bsweep.compression.dgc import DGC
from bsweep.compression.qsgd import QSGD
from bsweep.compression.topk import largest
from bsweep.config.compression import AnyCompression, QSGDConfig
from bsweep.config.rules import warnings_of
from bsweep.numerics.vector import Vector
from tests.support.gpus import on_gpus
from tests.support.running import compose, options

T = TypeVar("T")
CODECS = [name for name in options("compression") if name not in ("none", "own")]
DEVICES = ["cpu", on_gpus("cuda")]


def configure(name: str, **changes: object) -> AnyCompression:
    values = {"name": name, **changes}
    config: AnyCompression = TypeAdapter(AnyCompression).validate_python(values)
    return config


def make_vector(device: str = "cpu", dtype: torch.dtype = torch.float64) -> Vector:
    """Convolutions in channels_last, vectors, and sizes that neither 8 nor a bucket divides: 8
    layers, 555 elements.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 1, 1), nn.Linear(20, 19)
    )
    return Vector(model.to(device, dtype, memory_format=torch.channels_last))  # type: ignore[call-overload]


def random_gradients(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(len(like), generator=generator, dtype=torch.float64)
    return (numbers * torch.linspace(0.01, 1, len(like), dtype=torch.float64)).to(like)


def build(
    name: str, vector: Vector, rank: int = 0, *, optimizer: SGD | None = None, **changes: Any
) -> Codec:
    optimizer = optimizer or SGD([vector.parameters], lr=1)
    config = configure(name, **changes)
    setting = Setting(vector=vector, optimizer=optimizer, seed=3, rank=rank, num_workers=4)
    codec = compression.build(config, setting)
    assert codec is not None
    return codec


WITH_MEMORY = [name for name in CODECS if build(name, make_vector()).memory is not None]


class Board:
    """Where simulated workers show each other their tensors."""

    def __init__(self, num_workers: int) -> None:
        self.shown = [torch.empty(0)] * num_workers
        self.barrier = threading.Barrier(num_workers, timeout=300)


class SimulatedGroup:
    def __init__(self, board: Board, rank: int = 0) -> None:
        self.board, self.rank, self.num_workers = board, rank, len(board.shown)
        self.sent_bytes = 0  # of payloads, however they would travel

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        self.sent_bytes += payload.numel() * payload.element_size()
        self.board.shown[self.rank] = payload.clone()
        self.board.barrier.wait()
        every = list(torch.stack(self.board.shown))  # rows of a matrix, as Horovod's: not aligned
        self.board.barrier.wait()
        return every

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.all_gather(tensor)).sum(dim=0))


def on_workers(num_workers: int, work: Callable[[SimulatedGroup], T]) -> list[T]:
    """What each of the workers returns, by rank."""
    board = Board(num_workers)

    def run(rank: int) -> T:
        try:
            return work(SimulatedGroup(board, rank))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(num_workers) as pool:
        return list(pool.map(run, range(num_workers)))


@dataclass(frozen=True)
class Outcome:
    """Of some steps on one worker."""

    gradients: Tensor  # summed over steps
    received: Tensor  # summed over steps
    codec: Codec


def exchange_steps(
    num_workers: int, name: str, *, device: str = "cpu", steps: int = 3, **changes: Any
) -> list[Outcome]:
    def work(group: SimulatedGroup) -> Outcome:
        vector = make_vector(device)
        codec = build(name, vector, group.rank, **changes)
        total, received = torch.zeros_like(vector.gradients), torch.zeros_like(vector.gradients)
        for step in range(steps):
            gradients = random_gradients(vector.gradients, seed=10 * step + group.rank)
            total += gradients
            codec.exchange(gradients, group)
            received += gradients
        return Outcome(total, received, codec)

    return on_workers(num_workers, work)


def exchange_alone(codec: Codec, gradients: Tensor) -> Tensor:
    result = gradients.clone()
    codec.exchange(result, SimulatedGroup(Board(1)))
    return result


# What holds for every codec


@pytest.mark.parametrize("name", ["none", *CODECS])
def test_nothing_is_built_for_one_worker_and_for_none(name: str) -> None:
    vector = make_vector()
    optimizer = SGD([vector.parameters], lr=1, momentum=0.9)
    num_workers = 1 if name != "none" else 2
    setting = Setting(vector=vector, optimizer=optimizer, seed=0, rank=0, num_workers=num_workers)
    assert compression.build(configure(name), setting) is None
    assert optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.full(but=22)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("name", CODECS)
def test_all_workers_get_the_same_bits_and_a_run_repeats(
    name: str, num_workers: int, device: str
) -> None:
    first, second = (exchange_steps(num_workers, name, device=device) for _ in range(2))
    assert float(first[0].received.abs().max()) > 0.1
    for outcome in (*first, *second):
        assert torch.equal(outcome.received, first[0].received)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("name", WITH_MEMORY)
def test_nothing_is_lost_that_a_memory_keeps(name: str, num_workers: int, device: str) -> None:
    outcomes = exchange_steps(num_workers, name, device=device)
    memories = [outcome.codec.memory for outcome in outcomes]
    waiting = torch.stack([memory for memory in memories if memory is not None])
    assert float(waiting.abs().max()) > 0.1, "something must have been left out"
    expected = torch.stack([outcome.gradients for outcome in outcomes]).sum(dim=0)
    reached = outcomes[0].received + waiting.sum(dim=0)
    torch.testing.assert_close(reached, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted({*CODECS} - {*WITH_MEMORY}))
def test_without_a_memory_the_mean_is_right(name: str) -> None:
    vector = make_vector()
    codec = build(name, vector)
    gradients = random_gradients(vector.gradients, seed=1)
    errors = torch.stack([exchange_alone(codec, gradients) for _ in range(400)]) - gradients
    # Along random directions and the gradient's own: there a few hundred draws are Gaussian, at
    # single elements not.
    directions = torch.stack(
        [random_gradients(gradients, seed).sign() for seed in range(20)] + [gradients]
    ).T
    along = errors @ directions
    standard_errors = along.std(dim=0) / math.sqrt(len(along))
    rounding = (2.0**-11 * gradients.abs()) @ directions.abs()  # fp16's
    assert float((along.mean(dim=0).abs() - 5 * standard_errors - rounding).max()) < 0


EXPECTED_BYTES: dict[str, tuple[dict[str, Any], int]] = {
    "fp16": ({}, 555 * 2),
    "topk": ({"density": 0.1}, 56 * (8 + 4)),
    "dgc": ({"density": 0.1, "warmup_densities": []}, 56 * (8 + 4)),
    "qsgd": ({"bits": 4, "bucket_elements": 100}, 6 * 8 + 278),
    # 5 x 27 and 19 x 20 become thin; 1 x 5 and the vectors (5 + 5 + 5 + 1 + 19) travel whole; left
    # factors, twice
    "powersgd": ({}, (2 * (5 + 27) + 2 * (19 + 20) + 5 + 35 + 2 * (5 + 19)) * 8),
}


@pytest.mark.parametrize("name", CODECS)
def test_payloads_have_the_size_that_theory_says_whatever_the_values(name: str) -> None:
    changes, expected = EXPECTED_BYTES[name]
    vector = make_vector()
    codec = build(name, vector, **changes)
    for factor in (0, 1):
        group, gradients = SimulatedGroup(Board(1)), random_gradients(vector.gradients, seed=0)
        codec.exchange(gradients.mul_(factor), group)
        assert group.sent_bytes == expected
        assert bool(gradients.any()) == bool(factor), "no gradient stays no gradient"


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_diverged_does_not_pass_for_a_sound_one(name: str, value: float) -> None:
    vector = make_vector()
    gradients = random_gradients(vector.gradients, seed=0)
    gradients[100] = value
    assert not exchange_alone(build(name, vector), gradients).isfinite().all()


# Top-k and DGC


@pytest.mark.parametrize("count", [1, 50, 20_000, 50_000])
@pytest.mark.parametrize("kind", ["random", "misleading", "ties"])
def test_the_largest_are_found_whatever_the_sample_says(kind: str, count: int) -> None:
    values = torch.randn(50_000)
    if kind == "misleading":
        values[::97] = 100.0  # what the sample sees
    if kind == "ties":
        values = values.round()
    indices = largest(values, count)
    assert len(indices.unique()) == count
    torch.testing.assert_close(
        values[indices].abs().sort(descending=True)[0], values.abs().topk(count).values
    )


def test_a_warm_up_that_is_all_of_a_run_may_save_no_traffic_either() -> None:
    point = ("strategy=allreduce", "local_batch=8", "compression=dgc", "epochs=1")
    never, nothing = warnings_of(compose(*point, "num_workers=8"))
    assert "density=0.001 is never reached" in never
    assert "saves no traffic with 8 workers" in nothing
    assert len(warnings_of(compose(*point, "num_workers=2"))) == 1


@pytest.mark.parametrize("name", ["topk", "dgc"])
def test_density_warms_up(name: str) -> None:
    vector = make_vector()
    codec = build(name, vector, density=0.01, warmup_densities=[0.5, 0.1])
    counts = []
    for epoch in (1, 2, 3, 4):
        codec.begin_epoch(epoch)
        received = exchange_alone(codec, random_gradients(vector.gradients, epoch))
        counts.append(int(received.count_nonzero()))
    assert counts == [278, 56, 6, 6]


@pytest.mark.parametrize("nesterov", [False, True])
def test_dgc_sends_what_momentum_sgd_would_have_moved(nesterov: bool) -> None:
    """An element that waited arrives as all that SGD with momentum did to it; then its momentum
    starts again.
    """
    vector = make_vector()
    size, first, second = len(vector.gradients), 0, 1
    optimizer = SGD([vector.parameters], lr=1, momentum=0.9, nesterov=nesterov)
    codec = build("dgc", vector, optimizer=optimizer, density=1 / size, warmup_densities=[])
    assert isinstance(codec, DGC)
    reference = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    plain = SGD([reference], lr=1, momentum=0.9, nesterov=nesterov)
    for step in range(6):
        gradients = torch.zeros_like(vector.gradients)
        gradients[first] = 0 if step == 5 else 1000.0
        gradients[second] = gradient = 1.0 + 0.3 * step
        reference.grad = torch.tensor([gradient], dtype=torch.float64)
        plain.step()
        received = exchange_alone(codec, gradients)
        assert received.nonzero().tolist() == [[second if step == 5 else first]]
    torch.testing.assert_close(float(received[second]), -reference.item(), rtol=1e-12, atol=0)
    assert codec.velocity[second] == 0
    assert codec.memory is not None
    assert codec.memory[second] == 0


def test_dgc_leaves_the_optimizer_without_momentum() -> None:
    vector = make_vector()
    halves = [nn.Parameter(vector.parameters[:300]), nn.Parameter(vector.parameters[300:])]
    optimizer = SGD(
        [{"params": [half]} for half in halves], lr=0.5, momentum=0.9, nesterov=True, fused=True
    )
    build("dgc", vector, optimizer=optimizer)
    expected = vector.parameters - 0.5 * (1 + 2 + 3)
    for gradient in (1.0, 2.0, 3.0):
        for half in halves:
            half.grad = torch.full_like(half, gradient)
        optimizer.step()
    torch.testing.assert_close(vector.parameters, expected)


def test_dgc_at_density_1_is_sgd_without_momentum_whose_workers_clip_to_their_part() -> None:
    """Independent gradients of four workers sum to the norm."""
    vector = make_vector()
    optimizer = SGD([vector.parameters], lr=1, momentum=0.9)
    how: dict[str, Any] = {"density": 1, "warmup_densities": [], "clip_norm": 1.0}
    codec = build("dgc", vector, optimizer=optimizer, **how)
    large = random_gradients(vector.gradients, 0)
    small = 1e-3 * large
    torch.testing.assert_close(exchange_alone(codec, large), large / large.norm() / 2)
    for _ in range(3):
        assert torch.equal(exchange_alone(codec, small), small)


# QSGD


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_sends_neighbouring_levels_of_each_buckets_norm(bits: int) -> None:
    vector = make_vector()
    gradients = random_gradients(vector.gradients, 0)
    received, other = (
        exchange_alone(build("qsgd", vector, rank, bits=bits, bucket_elements=100), gradients)
        for rank in (0, 1)
    )
    assert not torch.equal(received, other), "workers round independently"
    for bucket, values in zip(received.split(100), gradients.split(100), strict=True):
        unit = values.norm() / (2 ** (bits - 1) - 1)
        torch.testing.assert_close(bucket / unit, (bucket / unit).round(), rtol=0, atol=1e-9)
        assert float(((bucket - values) / unit).abs().max()) < 1


@pytest.mark.parametrize(("bits", "bucket_elements"), [(8, 512), (4, 64), (2, 1)])
def test_the_share_that_qsgd_sends_counts_the_norms(bits: Any, bucket_elements: int) -> None:
    card = QSGDConfig(name="qsgd", bits=bits, bucket_elements=bucket_elements)
    codec = build("qsgd", make_vector(), bits=bits, bucket_elements=bucket_elements)
    assert isinstance(codec, QSGD)
    values = torch.randn(4096)
    assert len(codec.encode(values)) / values.nbytes == card.payload_share(epochs=1)


# PowerSGD


def low_rank_gradients(vector: Vector, matrix_rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gradients = random_gradients(vector.gradients, seed)
    for part in vector.slices:
        rows, columns = part.shape[0], part.num_elements // part.shape[0]
        left = torch.randn(rows, matrix_rank, generator=generator, dtype=torch.float64)
        right = torch.randn(matrix_rank, columns, generator=generator, dtype=torch.float64)
        if part.is_matrix:
            gradients[part.start : part.stop] = (left @ right).reshape(-1)
    return gradients


def test_powersgd_is_exact_where_the_sum_has_a_low_rank() -> None:
    def work(group: SimulatedGroup) -> tuple[Tensor, Tensor]:
        vector = make_vector()
        codec = build("powersgd", vector, group.rank)
        gradients = low_rank_gradients(vector, matrix_rank=1, seed=group.rank)
        received = gradients.clone()
        codec.exchange(received, group)
        return gradients, received

    results = on_workers(2, work)
    torch.testing.assert_close(results[0][1], results[0][0] + results[1][0], rtol=0, atol=1e-12)
    vector = make_vector()
    too_much = low_rank_gradients(vector, matrix_rank=4, seed=0)
    assert float((exchange_alone(build("powersgd", vector), too_much) - too_much).abs().max()) > 0.1


def test_powersgd_keeps_workers_equal_despite_different_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_thread, exact = threading.local(), powersgd.orthonormal
    monkeypatch.setattr(
        powersgd, "orthonormal", lambda products: exact(products) * on_thread.factor
    )

    def work(group: SimulatedGroup) -> list[Tensor]:
        on_thread.factor = -1 + 1e-9 * group.rank
        vector = make_vector()
        codec = build("powersgd", vector, group.rank)
        received = [random_gradients(vector.gradients, 10 * step + group.rank) for step in range(3)]
        for gradients in received:
            codec.exchange(gradients, group)
        return received

    one, other = on_workers(2, work)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_powersgd_starts_warm_and_so_nears_the_best_approximation() -> None:
    vector = make_vector()
    codec = build("powersgd", vector)
    linear = next(part for part in vector.slices if part.shape == (19, 20))
    gradients = random_gradients(vector.gradients, 0)
    matrix = gradients[linear.start : linear.stop].view(19, 20)
    best = float(torch.linalg.svdvals(matrix)[2:].norm())
    errors = []
    for _ in range(300):
        received = exchange_alone(codec, gradients)
        errors.append(float((received - gradients)[linear.start : linear.stop].norm()))
        assert codec.memory is not None
        codec.memory.zero_()
    assert errors[0] > 1.05 * best
    assert errors[-1] < 1.001 * best
