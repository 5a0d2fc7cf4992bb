"""DiLoCo on real processes against a plain simulation of it, and what it records, holds and
sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from bsweep import data, models
from bsweep.config.optimizers import SGDConfig
from bsweep.config.run import RunConfig
from bsweep.config.strategies import DiLoCoConfig
from bsweep.data.inputs import normalize
from bsweep.runlog.reading import read_records
from tests.strategies.test_equivalence import CONTRACT, NUM_TRAIN, _end_processes, trained  # noqa: F401 (the fixture ends the processes)
from tests.study.test_run import runs
from tests.support.running import TINY, compose, imported_first, ran_ok

UNEVEN = {  # an epoch is two rounds, of 38 or of 37 examples, and a tail of 15 or 17
    2: ("allocation.local_batches=[5,9]", "allocation.local_steps=[4,2]"),
    3: ("allocation.local_batches=[5,9,4]", "allocation.local_steps=[3,2,1]"),
}
STEPS = {2: [4, 2], 3: [3, 2, 1]}
CLOCKS_APART = 10_000  # seconds
GIVEN = {2: "strategy.weights=[0.3,0.7]", 3: "strategy.weights=[0.3,0.6,0.1]"}


def diloco(num_workers: int, *overrides: str) -> list[dict[str, Any]]:
    return trained(num_workers, *words(*overrides))


def words(*overrides: str) -> tuple[str, ...]:
    return ("strategy=diloco", "strategy.sync_every=3", "optimizer.lr=0.02", *overrides)


class Simulation:
    """One process that is all workers, one after another, on the examples that real ones saw."""

    def __init__(self, workers: Sequence[dict[str, Any]], overrides: Sequence[str]) -> None:
        self.config: RunConfig = compose(
            f"num_workers={len(workers)}", *CONTRACT, "local_batch=8", *overrides
        )
        self.dataset = data.load(self.config.data, torch.device("cpu"))
        torch.manual_seed(self.config.seed)
        info = data.prepare(self.config.data)
        self.model = models.build(
            self.config.model, num_classes=info.num_classes, shape=info.shape
        ).double()
        # As vectors have them.
        self.tensors = sorted(self.model.parameters(), key=lambda tensor: tensor.dim() < 2)
        self.inner = [self.optimizer() for _ in workers]
        self.steps = [list(worker["seen"]) for worker in workers]
        self.rounds = workers[0]["rounds"]

    def optimizer(self) -> Optimizer:
        o = self.config.optimizer
        assert o.lr
        how: dict[str, Any] = {"lr": o.lr, "weight_decay": o.weight_decay}
        if isinstance(o, SGDConfig):
            return SGD(self.tensors, momentum=o.momentum, nesterov=o.nesterov, **how)
        return AdamW(self.tensors, betas=(0.9, 0.95), eps=1e-8, **how)

    def parameters(self) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors])

    def moved(self, rank: int, start: Tensor, num_steps: int) -> tuple[Tensor, int]:
        """How far a worker's next steps lead from `start`, negated, and on how many examples."""
        with torch.no_grad():
            parts = start.split([tensor.numel() for tensor in self.tensors])
            for tensor, part in zip(self.tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        num_examples = 0
        if isinstance(self.config.optimizer, SGDConfig):
            self.inner[rank] = self.optimizer()  # without momentum of the round before
        for indices, crops in [self.steps[rank].pop(0) for _ in range(num_steps)]:
            mean, std = self.dataset.mean, self.dataset.std
            assert mean is not None
            assert std is not None
            layout: Any = {"dtype": torch.float64, "memory_format": torch.contiguous_format}
            inputs = normalize(torch.stack(crops), mean, std, **layout)
            self.inner[rank].zero_grad()
            labels = self.dataset.train.labels[indices].long()
            F.cross_entropy(self.model(inputs), labels).backward()
            self.inner[rank].step()
            num_examples += len(indices)
        return start - self.parameters(), num_examples

    def weights(self, num_examples: Sequence[int], num_steps: Sequence[int]) -> list[float]:
        s = self.config.strategy
        assert isinstance(s, DiLoCoConfig)
        if s.weights:
            return list(s.weights)
        if s.weighting == "uniform":
            return [1 / len(num_steps) for _ in num_steps]
        shares = [number / sum(num_examples) for number in num_examples]
        if s.weighting == "examples":
            return shares
        weights = [self.total_weight(steps) for steps in num_steps]
        effective = sum(share * weight for share, weight in zip(shares, weights, strict=True))
        return [share * effective / weight for share, weight in zip(shares, weights, strict=True)]

    def total_weight(self, num_steps: int) -> float:
        """How far so many steps along a gradient of 1 go at a rate of 1: FedNova's ||a_i||_1."""
        o = self.config.optimizer
        if not isinstance(o, SGDConfig):
            return num_steps
        parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        parameter.grad = torch.ones_like(parameter)
        optimizer = SGD([parameter], lr=1, momentum=o.momentum, nesterov=o.nesterov)
        for _ in range(num_steps):
            optimizer.step()
        return -float(parameter.detach())


def outer_step(anchor: Tensor, velocity: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Nesterov's momentum as in the paper: rate 0.7, momentum 0.9."""
    velocity = 0.9 * velocity + gradient
    return anchor - 0.7 * (gradient + 0.9 * velocity), velocity


def simulated(workers: Sequence[dict[str, Any]], overrides: Sequence[str]) -> Tensor:
    one = Simulation(workers, overrides)
    anchor = one.parameters()
    velocity = torch.zeros_like(anchor)
    for record in one.rounds:
        moves, num_examples = zip(
            *(one.moved(rank, anchor, number) for rank, number in enumerate(record["local_steps"])),
            strict=True,
        )
        weights = one.weights(num_examples, record["local_steps"])
        gradient = sum(
            (w * move for w, move in zip(weights, moves, strict=True)), torch.zeros_like(anchor)
        )
        anchor, velocity = outer_step(anchor, velocity, gradient)
    assert not any(one.steps), "the rounds are all steps that were taken"
    return anchor


def agree(num_workers: int, *overrides: str) -> list[dict[str, Any]]:
    """Real workers all have the weights that the simulation reaches, which are not those it began
    with.
    """
    workers = diloco(num_workers, *overrides)
    expected = simulated(workers, words(*overrides))
    assert workers[0]["moved"] > 0.01
    for worker in workers:
        assert torch.equal(worker["parameters"], workers[0]["parameters"])
        torch.testing.assert_close(worker["parameters"], expected, rtol=1e-9, atol=1e-11)
    return workers


MOMENTUM = ("optimizer=sgd", "optimizer.momentum=0.9", "strategy.weighting=fednova")


@pytest.mark.full(but=3)
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize(
    "weighting",
    [
        *(("strategy.weighting=" + name,) for name in ("fednova", "uniform", "examples")),
        (),
        (*MOMENTUM, "optimizer.nesterov=false"),
        (*MOMENTUM, "optimizer.nesterov=true"),
    ],
)
def test_workers_reach_the_weights_of_a_plain_simulation(
    num_workers: int, weighting: tuple[str, ...]
) -> None:
    workers = agree(num_workers, *UNEVEN[num_workers], *(weighting or (GIVEN[num_workers],)))
    for epoch in (1, 2):
        rounds = [record for record in workers[0]["rounds"] if record["epoch"] == epoch]
        whole = [record["local_steps"] for record in rounds[:-1]]
        assert whole == [STEPS[num_workers]] * 2
        assert sum(record["num_examples"] for record in rounds) == NUM_TRAIN


def test_even_workers_take_rounds_of_sync_every_steps() -> None:
    workers = agree(2)
    assert [record["local_steps"] for record in workers[0]["rounds"]] == [[3, 3], [3, 3]] * 2
    assert [record["num_examples"] for record in workers[0]["rounds"]] == [48, 43] * 2


def test_messages_are_counted_on_the_worker_with_most_of_them() -> None:
    """Of three workers in a tree the first takes part in all four messages, the others in two
    each.
    """
    first, *_ = agree(3, *UNEVEN[3], "strategy.algorithm=tree")
    assert [epoch["exchange_steps"] for epoch in first["epochs"]] == [4 * 3, 4 * 3], "of 3 rounds"


@pytest.mark.full
def test_a_codec_sends_less_and_keeps_workers_equal() -> None:
    plain, *_ = diloco(3, *UNEVEN[3], "precision=fp32")
    vector_bytes = 4 * len(plain["parameters"])
    sent = [epoch["sent_bytes"] for epoch in plain["epochs"]]
    assert sent == pytest.approx([3 * 2 * 2 / 3 * vector_bytes] * 2, rel=0.01), "in 3 rounds"
    for codec, part in (
        (("compression=fp16",), 0.5),
        (("compression=topk", "compression.density=0.05"), 0.15),
    ):
        first, *others = diloco(3, *UNEVEN[3], "precision=fp32", *codec)
        assert all(torch.equal(other["parameters"], first["parameters"]) for other in others)
        assert first["moved"] > 0.001
        assert not torch.equal(first["parameters"], plain["parameters"])
        for epoch, of_plain in zip(first["epochs"], sent, strict=True):
            assert epoch["codec_seconds"] > 0
            assert epoch["sent_bytes"] == pytest.approx(part * of_plain, rel=0.02)


def test_a_round_ends_the_run_with_its_epoch_on_record() -> None:
    how = (*UNEVEN[2], "epochs=9")
    limits = (("rounds=4", 4, 2), ("rounds=3", 3, 1), ("seconds=1e-6", 1, 1))
    for limit, num_rounds, num_epochs in limits:
        first, second = diloco(2, *how, f"strategy.max_{limit}")
        rounds, epochs = first["rounds"], first["epochs"]
        assert len(rounds) == num_rounds
        assert [epoch["epoch"] for epoch in epochs] == list(range(1, num_epochs + 1))
        last = [record for record in rounds if record["epoch"] == num_epochs]
        assert sum(record["num_examples"] for record in last) < NUM_TRAIN or limit == "rounds=3"
        assert epochs[-1]["num_steps"] == sum(record["local_steps"][0] for record in last)
        assert None not in (epochs[-1][key] for key in ("train_loss", "test_loss", "test_accuracy"))
        assert torch.equal(first["parameters"], second["parameters"])


def test_a_rounds_times_add_up() -> None:
    workers = diloco(2, *UNEVEN[2])
    rounds, epochs = workers[0]["rounds"], workers[0]["epochs"]
    assert [record["round"] for record in rounds] == list(range(1, len(rounds) + 1))
    keys = ("began", "compute", "idle", "exposed_exchange", "exchange")
    before, epoch = torch.zeros(2, dtype=torch.float64), 1
    for record in rounds:
        assert record["workers"] == [0, 1]
        assert record["worker_batches"] == [5, 9]
        began, compute, idle, exposed, travel = (
            torch.tensor(record[f"{key}_seconds"], dtype=torch.float64) for key in keys
        )
        arrived, released = began + compute, began + compute + idle + exposed
        assert compute.min() > 0
        assert idle.min() >= 0
        assert exposed.min() > -1e-9
        assert travel.min() > 0
        torch.testing.assert_close(idle, arrived.max() - arrived, rtol=0, atol=1e-6)
        assert idle[arrived.argmax()] == 0
        if record["epoch"] == epoch:
            assert (began - before).min() >= -1e-6, "a round begins when the one before has ended"
        before, epoch = released, record["epoch"]
    assert min(rounds[0]["began_seconds"]) == 0
    for number, of_epoch in enumerate(epochs, 1):
        mine = [record for record in rounds if record["epoch"] == number]
        idle, travel = (
            torch.tensor([record[f"{key}_seconds"] for record in mine], dtype=torch.float64)
            for key in ("idle", "exchange")
        )
        assert of_epoch["worker_wait_seconds"] == pytest.approx(idle.sum(dim=0).tolist(), abs=1e-6)
        exchange = float(travel.min(dim=1).values.sum())
        assert of_epoch["exchange_seconds"] == pytest.approx(exchange, abs=1e-6)
        assert of_epoch["codec_seconds"] is None
        assert of_epoch["exposed_exchange_seconds"] == of_epoch["exchange_seconds"]


@pytest.mark.full
def test_steps_follow_measured_speeds_whatever_the_workers_clocks_say(tmp_path: Path) -> None:
    """Steps are even at first, one worker is twelve times slower, and clocks are hours apart."""
    env = imported_first(
        tmp_path,
        "import os, time\n"
        "if 'RANK' in os.environ:\n"
        f"    plain, ahead = time.monotonic, {CLOCKS_APART} * int(os.environ['RANK'])\n"
        "    time.monotonic = lambda: plain() + ahead\n",
    )
    steps = ("allocation=steps_by_speed", "allocation.local_steps=[10,10]")
    point = ("data.num_train=4000", "model=tiny_cnn", "local_batch=16", "num_workers=2", "epochs=9")
    slow = "launch.slowdown=[1,12]"  # on a busy machine too, one is slower than the other
    how = ("strategy=diloco", "strategy.max_rounds=6", "allocation.adapt_every=4", slow, "study=s")
    ran_ok("run", *TINY, *point, *how, *steps, cwd=tmp_path, env=env)
    (paths,) = runs(tmp_path)
    records = read_records(paths.metrics)[0]
    event, *_ = (record for record in records if record.get("event") == "reallocated")
    assert "after round 4" in event["message"]
    assert "local steps [10, 10] become [" in event["message"]
    rounds = [record for record in records if record["type"] == "round"]
    assert [record["local_steps"] for record in rounds[:4]] == [[10, 10]] * 4
    fast, slower = (sum(one["compute_seconds"][rank] for one in rounds[:4]) for rank in range(2))
    assert rounds[4]["local_steps"] == [int(10 * slower / fast), 10]
    assert rounds[4]["local_steps"][0] > 10
    for record in rounds:
        began, compute = record["began_seconds"], record["compute_seconds"]
        # However busy the machine is, the differences are small beside those of the clocks.
        assert max(b + c for b, c in zip(began, compute, strict=True)) < CLOCKS_APART / 2
        assert abs(began[0] - began[1]) < CLOCKS_APART / 2
        assert min(record["idle_seconds"]) == 0, "one clock for all"


@pytest.mark.full
def test_a_diloco_worker_also_holds_an_anchor_and_outer_momentum() -> None:
    """Plain: parameters, gradients and two of AdamW."""
    wide = ("model.width=64", "optimizer=adamw_diloco", "data.num_train=32", "epochs=1")
    plain = trained(2, "strategy=allreduce", *wide)
    assert [worker["num_vectors"] for worker in plain] == [4, 4]
    workers = trained(2, "strategy=diloco", "strategy.sync_every=1", *wide)
    assert [worker["num_vectors"] for worker in workers] == [6, 6]
