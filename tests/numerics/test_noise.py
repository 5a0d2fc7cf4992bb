"""The gradient noise scale: what is measured of a run's gradients, and what is not changed by
it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bsweep
from bsweep.config.split_strategies import PipelineConfig
from bsweep.data import plan
from bsweep.numerics import noise_scale
from bsweep.numerics.noise_scale import Average, of_parts, squared_norm
from bsweep.numerics.vector import Vector
from bsweep.strategies import Strategy
from bsweep.train import loop, noise_meter
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job
from tests.strategies.test_equivalence import CONTRACT, DIVIDED, _end_processes, trained  # noqa: F401 (the fixture ends the processes)
from tests.support.running import ROOT, TINY, forks, popen, ranks, recorded
from tests.train.test_steps import prepared

MEASURED = "measure.noise_scale=true"
# Cuts by time would differ from run to run.
PIPELINE = ("strategy=pipeline", "strategy.microbatches=2", "strategy.cuts=[1]")
LAMB = ("optimizer=lamb", "optimizer.lr=0.01")


@pytest.mark.parametrize("sizes", [(8, 8), (5, 12, 7), (1, 2, 3, 4)])
def test_estimates_of_uneven_parts_have_no_bias(sizes: tuple[int, ...]) -> None:
    """Of gradients that are drawn around (2, 1, 0, ..., 0) with a variance of 3 in each of ten
    dimensions.
    """
    generator = torch.Generator().manual_seed(0)
    gradients = 3**0.5 * torch.randn(4000, sum(sizes), 10, dtype=torch.float64, generator=generator)
    gradients += torch.tensor([2.0, 1.0, *[0.0] * 8])
    whole = gradients.mean(dim=1).square().sum(dim=1)
    parts = sum(
        len(part[0]) / sum(sizes) * part.mean(dim=1).square().sum(dim=1)
        for part in gradients.split(sizes, dim=1)
    )
    for found, truth in zip(
        of_parts(whole, torch.as_tensor(parts), len(sizes), sum(sizes)), (5.0, 30.0), strict=True
    ):
        assert abs(float(found.mean()) - truth) < 4 * float(found.std()) / len(found) ** 0.5
        assert float(found.std()) / len(found) ** 0.5 < 0.02 * truth, "or the test says nothing"


def test_the_norm_of_a_long_vector_is_exact_to_six_digits() -> None:
    """A difference of two of them is small; torch's own loses three digits on CPUs."""
    values = torch.rand(3_000_001).pow(3)
    assert float(squared_norm(values)) == pytest.approx(
        float(values.double().square().sum()), rel=1e-6
    )


def test_an_average_forgets_and_says_where_it_knows_too_little() -> None:
    average = Average()
    assert average.estimate() is None
    for square in (1.0, 3.0):
        average = average.joined(square, 8.0, 10)
    few = average.estimate()
    assert few
    assert few.noise_scale is None, "two records do not tell how much they scatter"
    assert few.squared_norm == pytest.approx((0.9 * 1 + 3) / 1.9)
    for _ in range(200):
        average = average.joined(2.0, 8.0, 10)
    settled = average.estimate()
    assert settled
    assert settled.num_samples == 2020
    assert settled.noise_scale == pytest.approx(4.0)
    assert settled.squared_norm_error == pytest.approx(0, abs=1e-4)
    for number in range(200):
        average = average.joined((-1) ** number + 0.1, 8.0, 10)
    lost = average.estimate()
    assert lost
    assert lost.noise_scale is None, "its mean is within its error of zero"
    assert lost.squared_norm_error == pytest.approx((1 / 18) ** 0.5, rel=0.1), (
        "as of 19 values with a deviation of 1"
    )


class FirstStage(Strategy):
    """The first of two workers; in the gradient of the other one's stage a square overflows."""

    can, replica = PipelineConfig(name="pipeline", replicas=2).can, 0

    def __init__(self) -> None: ...

    def gather(self, values: Tensor) -> Tensor:
        return torch.stack([values, torch.zeros_like(values)])

    def prepare(self, *_: object) -> None: ...

    def step(self) -> None: ...


def test_a_stage_whose_gradient_overflows_alone_ends_no_run() -> None:
    """Its loss or its parameters tell later that it diverges."""
    assert not squared_norm(torch.full((3,), 2e19)).isfinite()
    vector, strategy = Vector(nn.Linear(3, 1)), FirstStage()
    optimizer = torch.optim.SGD(vector.tensors, lr=0.1)
    meter = noise_meter.NoiseMeter(vector, optimizer, strategy)
    for number in range(12):
        meter.begin_step((plan.Share(4, 1),) * 2, 8, number, has_graph=False)
        meter.before_exchange()
        optimizer.step()
        meter.after_step()
    assert meter.record(Cursor.create(torch.device("cpu"), 8)) is None
    assert meter.estimate() is None


@pytest.fixture
def _each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "APART_STEPS", 1)
    monkeypatch.setattr(noise_meter, "RECORD_STEPS", 1)


STRATEGIES = (
    ("strategy=horovod",),
    ("strategy=horovod", "strategy.buckets=3"),
    ("strategy=ddp",),
    ("strategy=ddp", "accumulation_steps=2", "global_batch=16"),
    ("strategy=allreduce",),
)


@pytest.mark.full(but=1)
@pytest.mark.usefixtures("_each_step")
@pytest.mark.parametrize(
    "overrides", [("local_batch=8", "accumulation_steps=2"), ("local_batch=16",)]
)
def test_workers_passes_and_halves_measure_the_same(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Two workers' record is the mean over every third step, unless it is an epoch's last."""
    job = prepared(tmp_path, *CONTRACT, *overrides, MEASURED)
    with job.log:
        loop.train(job, None)
    records = recorded(tmp_path, "noise_scale")
    assert [record["num_steps"] for record in records] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert {record["gradient_batch"] for record in records} == {8}
    assert records[0]["num_examples"] == 16
    thirds = [record for record in records if record["num_steps"] in (1, 4, 7, 10)]
    means = [sum(record[key] for record in thirds) / 4 for key in ("gradient_square", "variance")]
    assert min(means) > 0
    for strategy in STRATEGIES:
        first, _ = trained(2, *strategy, MEASURED)
        (record,) = first["noise_scales"]
        assert (record["gradient_square"], record["variance"]) == pytest.approx(means, rel=1e-6), (
            strategy
        )
        counts = [record[key] for key in ("num_steps", "num_gradients", "gradient_batch")]
        assert counts == [10, 8, 8]


def test_a_record_of_uneven_workers_is_what_their_gradients_come_to(tmp_path: Path) -> None:
    """By hand, of ten epochs of one step each, at a rate that moves nothing."""
    words = ("data.num_train=24", "epochs=10", "optimizer.lr=1e-12", MEASURED)
    sizes = ("global_batch=24", "allocation.local_batches=[5,12,7]")
    (record,) = trained(3, "strategy=horovod", *sizes, *words)[0]["noise_scales"]
    job = prepared(tmp_path, *CONTRACT, *words)
    estimates = []
    for epoch in (1, 4, 7, 10):
        order, crops = plan.epoch_order(24, seed=0, epoch=epoch), job.inputs.crops(epoch, seed=0)
        gradients = torch.stack([gradient(job, part, crops) for part in order.split([5, 12, 7])])
        weights = torch.tensor([5, 12, 7], dtype=gradients.dtype) / 24
        whole = float((weights @ gradients).square().sum())
        parts = float(weights @ gradients.square().sum(dim=1))
        estimates.append(of_parts(whole, parts, 3, 24))
    expected = torch.tensor(estimates).mean(dim=0).tolist()
    assert (record["gradient_square"], record["variance"]) == pytest.approx(expected, rel=1e-5)
    counts = [record[key] for key in ("num_gradients", "gradient_batch", "num_examples")]
    assert counts == [12, 8, 240]


def gradient(job: Job, part: Tensor, crops: Tensor) -> Tensor:
    """Of the mean loss over some examples, flat."""
    inputs, targets = job.inputs.training(part, crops)
    loss = job.objective.loss(job.model(inputs), targets) / len(part)
    return torch.cat([one.reshape(-1) for one in torch.autograd.grad(loss, job.vector.tensors)])


NOISY = (
    *TINY,
    "model=own",
    f"model.target={ROOT / 'tests/support/noisy_network.py'}:build",
    "precision=fp32",
    "epochs=2",
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_workers", "overrides"),
    [
        (1, ("strategy=single",)),
        (1, ("strategy=single", "accumulation_steps=2")),
        (2, ("strategy=horovod",)),
        (3, ("strategy=ddp",)),
    ],
)
def test_measuring_changes_no_weight_no_statistic_and_no_random_number(
    num_workers: int, overrides: tuple[str, ...]
) -> None:
    plain, measured = (
        trained(num_workers, *overrides, "local_batch=3", *more, contract=NOISY)
        for more in ((), (MEASURED,))
    )
    assert len(measured[0]["noise_scales"]) > 0
    for one, other in zip(plain, measured, strict=True):
        assert one["moved"] > 0.001
        assert torch.equal(one["parameters"], other["parameters"])
        assert all(map(torch.equal, one["buffers"], other["buffers"]))


@pytest.mark.full
def test_a_step_whose_gradients_overflow_in_fp16_is_not_counted() -> None:
    words = ("strategy=allreduce", "precision=fp16", "epochs=3", MEASURED)
    (found,) = trained(2, *words, overflow=(1, 4))[0]["noise_scales"][:1]
    (exact,) = trained(2, *words[:1], "precision=fp32", *words[2:])[0]["noise_scales"][:1]
    assert found["num_gradients"] == 6
    assert exact["num_gradients"] == 8
    assert found["variance"] == pytest.approx(exact["variance"], rel=0.3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("split", "more"),
    [
        (("strategy=tensor",), DIVIDED),
        (PIPELINE, ()),
        (PIPELINE, (*DIVIDED, *LAMB)),  # whose optimizer clips gradients
    ],
)
def test_replicas_of_a_split_model_measure_what_whole_ones_do(
    split: tuple[str, ...], more: tuple[str, ...]
) -> None:
    words = (*more, "global_batch=24", "epochs=8", MEASURED)
    first, *_ = trained(4, *split, "strategy.replicas=2", *words)
    whole, *_ = trained(2, "strategy=allreduce", *words)
    assert len(first["noise_scales"]) == len(whole["noise_scales"]) > 0
    for ours, theirs in zip(first["noise_scales"], whole["noise_scales"], strict=True):
        for key in ("gradient_square", "variance", "num_gradients", "gradient_batch"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-8), key


class Quadratic(nn.Module):
    """Losses |theta - x|^2 / 2 of examples x around zero: the true gradient is theta, its noise the
    examples' own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([2.0, 1.0, *[0.0] * 8]))

    def forward(self, examples: Tensor) -> Tensor:
        return self.theta - examples


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum(dim=1).mean() / 2


@pytest.mark.full
def test_a_monitor_finds_the_noise_of_a_quadratic_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_scale, "DECAY", 1.0)  # nothing is forgotten
    generator, model = torch.Generator().manual_seed(0), Quadratic()
    monitor = bsweep.NoiseScale(model, loss=half_square, every=2)
    for _ in range(3000):
        examples = 3**0.5 * torch.randn(15, 10, generator=generator)
        monitor.step((examples, torch.zeros(15)))
    found = monitor.noise
    assert found
    assert found.num_samples == 1500
    assert model.theta.grad is None
    assert abs(found.squared_norm - 5) < 4 * found.squared_norm_error < 0.4
    assert found.trace == pytest.approx(30, rel=0.05)
    assert monitor.noise_scale == pytest.approx(6, rel=0.1)
    assert str(monitor) == f"noise scale {monitor.noise_scale:.3g} examples (1500 steps measured)"


class KeepsMean(nn.Module):
    """Puts another tensor in the place of its statistic at each pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.mean = 0.9 * self.mean + y.detach().mean(0)
        return y


def test_a_monitor_leaves_the_loop_as_it_was() -> None:
    keeper = KeepsMean()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), keeper)
    batch = torch.randn(8, 4), torch.randint(3, (8,))
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()

    def all_there_is() -> list[Tensor]:
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        return [*model.buffers(), *gradients, torch.get_rng_state()]

    mean, before = keeper.mean, [tensor.clone() for tensor in all_there_is()]
    monitor = bsweep.NoiseScale(model)
    monitor.step(batch)
    after = all_there_is()
    assert len(after) == 11
    assert monitor.noise
    assert monitor.noise.trace > 0
    assert all(map(torch.equal, before, after))
    assert keeper.mean is mean


def test_a_lone_example_at_the_end_of_an_epoch_counts_nothing() -> None:
    monitor = bsweep.NoiseScale(nn.Linear(4, 3), every=1)
    assert str(monitor) == "noise scale not identifiable (0 steps measured)"
    for size in (8, 1, 8):
        monitor.step((torch.randn(size, 4), torch.zeros(size, dtype=torch.long)))
    assert monitor.noise
    assert monitor.noise.num_samples == 2
    assert monitor.unreported() == monitor.noise
    assert monitor.unreported() is None


def test_a_monitor_says_what_it_takes() -> None:
    for batch in (torch.zeros(8, 4), (torch.zeros(1, 4), torch.zeros(2))):
        with pytest.raises(ValueError, match="takes a batch as a pair of tensors of equal length"):
            bsweep.NoiseScale(nn.Linear(4, 3)).step(batch)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every=0 must be 1 or more: use every=50"):
        bsweep.NoiseScale(nn.Linear(4, 3), every=0)


@pytest.mark.full
def test_loops_of_others_measure_the_same_over_horovod_and_in_ddp() -> None:
    examples = ROOT / "examples"
    # What torch's DDP leaves is kept to the end: where it is dropped, one exit in some waits for
    # itself (torch 2.13).
    plain, horovod, ddp = (
        [
            forks().python,
            "-c",
            f"import os, runpy, sys; kept = runpy.run_path('{examples / name}.py'){end}",
        ]
        for name, end in (
            ("noise_scale", ""),
            ("noise_scale_horovod", ""),
            ("noise_scale_ddp", "; sys.stdout.flush(); os._exit(0)"),
        )
    )
    over_horovod = [forks().horovodrun, "-np", "2", "--gloo", *horovod]
    started = [(plain, {}), (over_horovod, {}), *((ddp, variables) for variables in ranks(2))]
    running = [popen(command, ROOT, env=env, output=subprocess.PIPE) for command, env in started]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert not any(process.returncode for process in running), said
    alone, *of_two = (re.findall(r"noise scale (\S+) examples", text) for text in said)
    assert 20 < float(alone[1]) < 500
    assert len(of_two[1]) == 3
    assert of_two[1] == of_two[2]
    assert sorted(of_two[0]) == sorted(2 * of_two[1])
