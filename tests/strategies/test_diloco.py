"""DiLoCo on real processes against a plain simulation of it, and what it records, holds and
sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from bsweep import batching, data, models
from bsweep.config.run import RunConfig
from bsweep.config.strategies import DiLoCoConfig
from bsweep.core.ranks import Place
from bsweep.data import augment
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.strategies.diloco import Arrivals, DiLoCo
from tests.strategies.test_equivalence import (  # noqa: F401 (the fixture ends the processes that `trained` starts)
    CONTRACT,
    NUM_TRAIN,
    TEXT_CONTRACT,
    _end_processes,
    trained,
)
from tests.support.running import TINY, compose, imported_first, ran_ok, write_text

UNEVEN = {
    2: (
        "allocation.local_batches=[5,9]",
        "allocation.local_steps=[4,2]",
    ),  # rounds of 38: two and a tail of 15
    3: (
        "allocation.local_batches=[5,9,4]",
        "allocation.local_steps=[3,2,1]",
    ),  # of 37: two and a tail of 17
}
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
        o = self.config.optimizer
        assert o.lr
        self.inner = [
            AdamW(self.tensors, lr=o.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=o.weight_decay)
            for _ in workers
        ]
        self.steps = [list(worker["seen"]) for worker in workers]
        self.rounds = workers[0]["rounds"]

    def parameters(self) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors])

    def moved(self, rank: int, start: Tensor, num_steps: int) -> tuple[Tensor, int]:
        """How far a worker's next steps lead from `start`, negated, and on how many examples."""
        with torch.no_grad():
            parts = start.split([tensor.numel() for tensor in self.tensors])
            for tensor, part in zip(self.tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        num_examples = 0
        for indices, crops in [self.steps[rank].pop(0) for _ in range(num_steps)]:
            mean, std = self.dataset.mean, self.dataset.std
            assert mean is not None
            assert std is not None
            inputs = augment.normalize(
                torch.stack(crops),
                mean,
                std,
                dtype=torch.float64,
                memory_format=torch.contiguous_format,
            )
            self.inner[rank].zero_grad()
            F.cross_entropy(
                self.model(inputs), self.dataset.train_labels[indices].long()
            ).backward()
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
        effective = sum(share * steps for share, steps in zip(shares, num_steps, strict=True))
        return [share * effective / steps for share, steps in zip(shares, num_steps, strict=True)]


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


@pytest.mark.full(but=1)
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("weighting", ["uniform", "examples", "fednova", "given"])
def test_workers_reach_the_weights_of_a_plain_simulation(num_workers: int, weighting: str) -> None:
    how = GIVEN[num_workers] if weighting == "given" else f"strategy.weighting={weighting}"
    workers = agree(num_workers, *UNEVEN[num_workers], how)
    for epoch in (1, 2):
        rounds = [record for record in workers[0]["rounds"] if record["epoch"] == epoch]
        steps = compose(
            "local_batch=8", f"num_workers={num_workers}", *words(*UNEVEN[num_workers])
        ).local_steps
        assert [tuple(record["local_steps"]) for record in rounds[:-1]] == [steps] * (
            len(rounds) - 1
        )
        assert sum(record["num_examples"] for record in rounds) == NUM_TRAIN


def test_even_workers_take_rounds_of_sync_every_steps() -> None:
    workers = agree(2)
    assert [record["local_steps"] for record in workers[0]["rounds"]] == [[3, 3], [3, 3]] * 2
    assert [record["num_examples"] for record in workers[0]["rounds"]] == [48, 43] * 2


def test_how_moves_count_changes_the_weights() -> None:
    ways = [
        *(f"strategy.weighting={name}" for name in ("uniform", "examples", "fednova")),
        GIVEN[3],
    ]
    reached = [diloco(3, *UNEVEN[3], way)[0]["parameters"] for way in ways]
    for i, one in enumerate(reached):
        assert all(float((one - other).abs().max()) > 1e-6 for other in reached[:i])


@pytest.mark.full(but=2)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "horovod"])
def test_the_sum_may_be_anyones(algorithm: str) -> None:
    launch = "horovodrun" if algorithm == "horovod" else "torchrun"
    workers = diloco(2, *UNEVEN[2], f"strategy.algorithm={algorithm}", f"launch={launch}")
    expected = diloco(2, *UNEVEN[2], "strategy.weighting=examples")[0]["parameters"]
    for worker in workers:
        torch.testing.assert_close(worker["parameters"], expected, rtol=1e-9, atol=1e-11)


def test_messages_are_counted_on_the_worker_with_most_of_them() -> None:
    """Of three workers in a tree the first takes part in all four messages, the others in two
    each.
    """
    first, *_ = diloco(3, *UNEVEN[3], "strategy.algorithm=tree")
    rounds = [sum(record["epoch"] == epoch for record in first["rounds"]) for epoch in (1, 2)]
    assert [epoch["exchange_steps"] for epoch in first["epochs"]] == [
        4 * number for number in rounds
    ]


@pytest.mark.full
def test_a_codec_sends_less_and_keeps_workers_equal() -> None:
    plain, *_ = diloco(3, *UNEVEN[3], "precision=fp32")
    vector_bytes = 4 * len(plain["parameters"])
    rounds = [sum(record["epoch"] == epoch for record in plain["rounds"]) for epoch in (1, 2)]
    sent = [epoch["sent_bytes"] for epoch in plain["epochs"]]
    assert sent == pytest.approx([number * 2 * 2 / 3 * vector_bytes for number in rounds], rel=0.01)
    for codec, part in (
        (("compression=fp16",), 0.5),
        (("compression=topk", "compression.density=0.05"), 0.15),
    ):
        workers = diloco(3, *UNEVEN[3], "precision=fp32", *codec)
        assert all(epoch["codec_seconds"] > 0 for epoch in workers[0]["epochs"])
        assert all(
            torch.equal(worker["parameters"], workers[0]["parameters"]) for worker in workers
        )
        assert workers[0]["moved"] > 0.001
        assert not torch.equal(workers[0]["parameters"], plain["parameters"])
        assert [epoch["sent_bytes"] for epoch in workers[0]["epochs"]] == pytest.approx(
            [part * number for number in sent], rel=0.02
        )


def test_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    contract = (*TEXT_CONTRACT, f"data.path={write_text(tmp_path / 'text.txt', 1618)}")
    point = (*words(*UNEVEN[2]), "precision=fp32")
    once = trained(2, *point, contract=contract)
    # Which trains anew, and changes nothing else.
    again = trained(2, *point, "log_every_steps=7", contract=contract)
    other = trained(2, *point, "seed=1", contract=contract)
    for run in (again, once[1:]):
        assert all(torch.equal(worker["parameters"], once[0]["parameters"]) for worker in run)
    assert not torch.equal(other[0]["parameters"], once[0]["parameters"])


def test_a_round_ends_the_run_with_its_epoch_on_record() -> None:
    how = (*UNEVEN[2], "epochs=9")
    for limit, num_rounds, num_epochs in (
        ("rounds=4", 4, 2),
        ("rounds=3", 3, 1),
        ("seconds=1e-6", 1, 1),
    ):
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
    assert all(
        record["workers"] == [0, 1] and record["worker_batches"] == [5, 9] for record in rounds
    )
    keys = (
        "began_seconds",
        "compute_seconds",
        "idle_seconds",
        "exposed_exchange_seconds",
        "exchange_seconds",
    )
    before, epoch = torch.zeros(2, dtype=torch.float64), 1
    for record in rounds:
        began, compute, idle, exposed, travel = (
            torch.tensor(record[key], dtype=torch.float64) for key in keys
        )
        arrived, released = began + compute, began + compute + idle + exposed
        assert compute.min() > 0
        assert idle.min() >= 0
        assert exposed.min() > -1e-9
        assert travel.min() > 0
        torch.testing.assert_close(idle, arrived.max() - arrived, rtol=0, atol=1e-6)
        assert idle[arrived.argmax()] == 0
        if record["epoch"] == epoch:
            assert bool((began >= before - 1e-6).all()), (
                "a round begins when the one before has ended"
            )
        before, epoch = released, record["epoch"]
    assert min(rounds[0]["began_seconds"]) == 0
    for number, of_epoch in enumerate(epochs, 1):
        idle, travel = (
            torch.tensor(
                [record[key] for record in rounds if record["epoch"] == number], dtype=torch.float64
            )
            for key in ("idle_seconds", "exchange_seconds")
        )
        assert of_epoch["worker_wait_seconds"] == pytest.approx(idle.sum(dim=0).tolist(), abs=1e-6)
        exchange = float(travel.min(dim=1).values.sum())
        assert of_epoch["exchange_seconds"] == pytest.approx(exchange, abs=1e-6)
        assert of_epoch["codec_seconds"] is None
        assert of_epoch["exposed_exchange_seconds"] == of_epoch["exchange_seconds"]


@pytest.mark.full
def test_steps_follow_measured_speeds_whatever_the_workers_clocks_say(
    tmp_path: Path,
) -> None:
    """Steps are even at first, one worker is twelve times slower, and clocks are hours apart."""
    env = imported_first(
        tmp_path,
        "import os, time\n"
        "if 'RANK' in os.environ:\n"
        f"    plain, ahead = time.monotonic, {CLOCKS_APART} * int(os.environ['RANK'])\n"
        "    time.monotonic = lambda: plain() + ahead\n",
    )
    point = (
        *TINY,
        "data.num_train=4000",
        "model=tiny_cnn",
        "local_batch=16",
        "num_workers=2",
        "strategy=diloco",
        "strategy.max_rounds=6",
        "allocation=steps_by_speed",
        "allocation.local_steps=[10,10]",
        "allocation.adapt_every=4",
        "launch.slowdown=[1,12]",  # on a busy machine too, one is slower than the other
        "epochs=9",
        "study=s",
    )
    ran_ok("run", *point, cwd=tmp_path, env=env)
    (folder,) = (file.parent for file in tmp_path.glob("results/s/*/summary.json"))
    records = read_records(RunPaths(folder).metrics)[0]
    event, *_ = (record for record in records if record.get("event") == "reallocated")
    assert "after round 4" in event["message"]
    assert "local steps [10, 10] become [" in event["message"]
    rounds = [record for record in records if record["type"] == "round"]
    assert [record["local_steps"] for record in rounds[:4]] == [[10, 10]] * 4
    fast, slow = (
        sum(record["compute_seconds"][rank] for record in rounds[:4]) for rank in range(2)
    )
    assert rounds[4]["local_steps"] == [int(10 * slow / fast), 10]
    assert rounds[4]["local_steps"][0] > 10
    for record in rounds:
        began, compute = record["began_seconds"], record["compute_seconds"]
        # However busy the machine is, the differences are small beside those of the clocks.
        assert max(b + c for b, c in zip(began, compute, strict=True)) < CLOCKS_APART / 2
        assert abs(began[0] - began[1]) < CLOCKS_APART / 2
        assert min(record["idle_seconds"]) == 0, "one clock for all"


@pytest.mark.full
def test_steps_of_a_network_aware_run_follow_the_measured_exchange(tmp_path: Path) -> None:
    """Told to synchronise each step, with an exchange that takes longer than the steps."""
    point = (
        *TINY,
        "data.num_train=4000",
        "model=tiny_cnn",
        "model.width=32",
        "local_batch=4",
        "num_workers=2",
        "strategy=diloco",
        "strategy.sync_every=1",
        "strategy.max_rounds=4",
        "allocation=network_aware",
        "allocation.local_steps=[1,1]",
        "allocation.adapt_every=3",
        "allocation.max_exchange_share=0.01",
        "study=s",
    )
    ran_ok("run", *point, cwd=tmp_path)
    (folder,) = (file.parent for file in tmp_path.glob("results/s/*/summary.json"))
    rounds = [
        record for record in read_records(RunPaths(folder).metrics)[0] if record["type"] == "round"
    ]
    assert [record["local_steps"] for record in rounds[:3]] == [[1, 1]] * 3
    assert min(rounds[3]["local_steps"]) >= 3


@pytest.mark.parametrize("nesterov", [False, True])
def test_fednova_counts_what_momentum_makes_of_steps(
    monkeypatch: pytest.MonkeyPatch, nesterov: bool
) -> None:
    """||a_i||_1: how far an optimizer goes in so many steps along a gradient of 1, at a rate of
    1.
    """
    sgd = ("optimizer=sgd", "optimizer.momentum=0.9", f"optimizer.nesterov={str(nesterov).lower()}")
    point = ("strategy=diloco", "strategy.weighting=fednova", *sgd)
    config = compose("local_batch=8", "num_workers=2", *point)
    assert isinstance(config.strategy, DiLoCoConfig)
    monkeypatch.setattr(
        "bsweep.strategies.diloco.resolve", lambda _: lambda *_: SimpleNamespace(has_codec=False)
    )
    number = torch.tensor([3.0, 20.0], dtype=torch.float64)
    went = []
    for steps in (3, 20):
        parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = SGD([parameter], lr=1, momentum=0.9, nesterov=nesterov)
        parameter.grad = torch.ones_like(parameter)
        for _ in range(steps):
            optimizer.step()
        went.append(-float(parameter.detach()))
        worker = DiLoCo(config, config.strategy, Place(0, 2), RunPaths(Path()))
        worker._optimizer, before = optimizer, float(parameter.detach())
        worker.begin_round(())
        optimizer.step()
        assert float(parameter.detach()) - before == pytest.approx(-1 - 0.9 * nesterov), (
            "as if it were the first"
        )
    mean = sum(went) / 2
    for rank in range(2):
        worker = DiLoCo(config, config.strategy, Place(rank, 2), RunPaths(Path()))
        weight = worker._weight(torch.ones(2, dtype=torch.float64), number)
        assert weight == pytest.approx(0.5 * mean / went[rank], rel=1e-12)


def test_a_network_aware_run_measures_the_exchange_and_the_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 0.1 s, and 1 s of travel and codec: a tenth of the time is 90 steps."""
    point = ("allocation=network_aware", "allocation.local_steps=[90,90]")
    share = (
        "allocation.adapt_every=2",
        "allocation.max_exchange_share=0.1",
        "strategy.sync_every=90",
    )
    config = compose("local_batch=8", "num_workers=2", "strategy=diloco", *point, *share)
    assert isinstance(config.strategy, DiLoCoConfig)
    monkeypatch.setattr(
        "bsweep.strategies.diloco.resolve", lambda _: lambda *_: SimpleNamespace(has_codec=True)
    )
    worker, policy = (
        DiLoCo(config, config.strategy, Place(0, 2), RunPaths(Path())),
        batching.build(config),
    )

    def record(number: int, spent: list[float]) -> None:
        began = torch.full((2,), 10.0 * number, dtype=torch.float64)
        arrived = began + 9
        worker._round = number
        both = torch.tensor([spent, spent], dtype=torch.float64)
        worker._close_round(1, arrivals(began, arrived), arrived + sum(spent), both)
        rounds = tuple(worker.records)
        worker.records = []
        policy.observe(
            batching.Seen(0.0, rounds, torch.zeros(3), lambda values: values.unsqueeze(0))
        )

    for number in range(1, 5):
        record(number, [0.75, 0.25])
    assert [share.num_steps for share in policy.shares(0.0)] == [90, 90]
    for number in (5, 6):
        record(number, [1.5, 0.5])
    assert [share.num_steps for share in policy.shares(0.0)] == [180, 180]
    again = batching.build(config)
    again.load_state(policy.state())
    assert again.shares(0.0) == policy.shares(0.0)


def arrivals(began: Tensor, arrived: Tensor) -> Arrivals:
    """Of two workers that took whole rounds of 90 steps of 8 examples."""
    examples, steps = (torch.full((2,), number, dtype=torch.float64) for number in (720.0, 90.0))
    sums = torch.ones(2, 3, dtype=torch.float64)
    return Arrivals(sums, examples, examples, examples / steps, steps, began, arrived)


@pytest.mark.full
@pytest.mark.parametrize(("overrides", "more"), [((), 2), (("compression=topk",), 3)])
def test_a_diloco_worker_also_holds_an_anchor_and_outer_momentum(
    overrides: tuple[str, ...], more: int
) -> None:
    """Plain: parameters, gradients and two of AdamW. Top-k holds its memory, too."""
    wide = ("model.width=64", "optimizer=adamw_diloco", "data.num_train=32", "epochs=1")
    plain = trained(2, "strategy=allreduce", *wide)
    assert [worker["num_vectors"] for worker in plain] == [4, 4]
    workers = trained(2, "strategy=diloco", "strategy.sync_every=1", *overrides, *wide)
    assert [worker["num_vectors"] for worker in workers] == [4 + more, 4 + more]
