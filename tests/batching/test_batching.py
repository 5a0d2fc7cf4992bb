"""Who decides how much the coming round takes: the configured batch, and one that changes during a
run.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import batching
from bsweep.batching import GradientNoise, Policy, RoundStats
from bsweep.config.saved import save_config
from bsweep.config.values import ConfigError
from bsweep.data.plan import Share, global_batch
from bsweep.numerics import optim
from bsweep.runlog.records import Round
from bsweep.study import branching
from tests.strategies.test_equivalence import NUM_TRAIN, _end_processes, assert_reached, trained  # noqa: F401 (the fixture ends the processes)
from tests.support.policies import Doubling
from tests.support.running import ROOT, compose, options

LINEAR = ("optimizer.lr_rule=linear", "optimizer.reference_batch=24")
STAGES = ("optimizer.schedule=multistep", "optimizer.milestones=[0.3,1]", "optimizer.gamma=0.5")
DOUBLING = ("global_batch=24", "log_every_steps=1", *LINEAR)


def test_the_configured_batch_is_every_rounds() -> None:
    config = compose("local_batch=5", "accumulation_steps=3", "num_workers=2")
    policy = batching.build(config)
    assert policy.shares(0.0) == policy.shares(1.7) == (Share(15, 1, num_passes=3),) * 2
    uneven = compose(
        "strategy=diloco", "num_workers=2", "local_batch=8", "allocation.local_batches=[5,9]"
    )
    assert [share.worker_batch for share in batching.build(uneven).shares(0.0)] == [5, 9]


def test_a_larger_batch_than_the_local_one_is_computed_in_passes() -> None:
    policy = Doubling(compose("strategy=allreduce", "num_workers=3", "local_batch=8"))
    assert policy.of_global_batch(24) == (Share(8, 1),) * 3
    assert policy.of_global_batch(50) == (Share(16, 1, 2), Share(17, 1, 3), Share(17, 1, 3))
    assert policy.of_global_batch(4) == (Share(1, 1), Share(1, 1), Share(2, 1))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_a_batch_that_doubles_within_an_epoch_reaches_one_workers_weights(strategy: str) -> None:
    (one,) = trained(1, "strategy=single", *DOUBLING, policy="Doubling")
    workers = trained(2, f"strategy={strategy}", *DOUBLING, policy="Doubling")
    (fixed,) = trained(1, "strategy=single", *DOUBLING)
    assert not torch.allclose(one["parameters"], fixed["parameters"], rtol=1e-4)
    sizes = [24, 24, 43, 48, 24, 19]
    assert [len(indices) for indices, _ in one["seen"]] == sizes
    assert_reached(workers, one)
    for number, (indices, _) in enumerate(one["seen"]):
        assert [i for worker in workers for i in worker["seen"][number][0]] == indices
    for epoch in (one["seen"][:3], one["seen"][3:]):
        assert sorted(i for indices, _ in epoch for i in indices) == list(range(NUM_TRAIN))
    for run in (one, workers[0]):
        assert [step["global_batch"] for step in run["steps"]] == [24, 24, 48, 48, 24, 24]
        assert [step["learning_rate"] for step in run["steps"]] == [0.5, 0.5, 1.0, 1.0, 0.5, 0.5]
        assert [step["epochs_done"] for step in run["steps"]][2::3] == [1, 2]
        assert [epoch["global_batch"] for epoch in run["epochs"]] == [48, 24]


@pytest.mark.parametrize(
    "more", [("strategy.sync_every=1",), ("strategy.sync_every=3", "strategy.warmup_steps=100")]
)
def test_workers_that_step_alone_follow_a_doubled_batch_too(more: tuple[str, ...]) -> None:
    plain = tuple(word for word in DOUBLING if "lr_rule" not in word)
    (one,) = trained(1, "strategy=single", *plain, policy="Doubling")
    assert_reached(trained(2, "strategy=local_sgd", *plain, *more, policy="Doubling"), one)


BOUNDS = ("batching.min_global_batch=8", "batching.max_global_batch=8")
# How each policy is to leave the batch as it is, and to change it.
STILL = {
    "schedule": ("batching.every_epochs=100",),
    "raise_instead_of_decay": ("optimizer.schedule=multistep", "optimizer.milestones=[100]"),
    "noise_scale": ("batching.hysteresis=1e9", "batching.every_steps=1"),
    "norm_test": ("batching.every_steps=1", "batching.max_global_batch=8"),
    "cabs": ("batching.hysteresis=1e9", "batching.every_steps=1"),
    "goodput": ("batching.every_steps=1", *BOUNDS),
}
CHANGING = {
    "schedule": ("batching.every_epochs=0.4", "batching.max_global_batch=60", *LINEAR),
    "raise_instead_of_decay": (*STAGES, "batching.max_global_batch=72"),
    "noise_scale": ("batching.hysteresis=1", "batching.every_steps=4"),
    "norm_test": ("batching.theta=0.1", "batching.every_steps=4"),
    "cabs": ("batching.hysteresis=1", "batching.every_steps=4"),
    "goodput": ("batching.every_steps=11", "batching.max_local_batch=60"),
}


def test_every_policy_is_tested() -> None:
    assert {*STILL} == {*CHANGING} == {*options("batching")} - {"fixed", "own"}


@pytest.mark.full
@pytest.mark.parametrize("policy", STILL)
def test_a_policy_that_changes_nothing_is_the_fixed_batch_bit_for_bit(policy: str) -> None:
    """Though it looks at each step, and its noise is measured."""
    words = (f"batching={policy}", *STILL[policy])
    plain = tuple(word for word in words if not word.startswith("batching"))
    fixed, still = (
        trained(2, "strategy=allreduce", "global_batch=8", *more) for more in (plain, words)
    )
    assert fixed[0]["moved"] > 0.01
    for one, other in zip(fixed, still, strict=True):
        assert torch.equal(one["parameters"], other["parameters"])
        assert [indices for indices, _ in one["seen"]] == [indices for indices, _ in other["seen"]]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("policy", CHANGING)
def test_every_policy_reaches_the_weights_of_one_worker(policy: str) -> None:
    point = ("global_batch=8", "log_every_steps=1", "optimizer.lr=0.1", *CHANGING[policy])
    workers = trained(2, "strategy=allreduce", f"batching={policy}", *point, policy="identified")
    changes = [event for event in workers[0]["events"] if event["event"] == "batch_changed"]
    assert changes
    assert all(change["inputs"] for change in changes)
    after, to = ([change[key] for change in changes] for key in ("epochs_done", "global_batch"))
    options = (f"+batching.options.after={after}", f"+batching.options.to={to}")
    own = ("batching=own", f"batching.target={ROOT}/tests/support/policies.py:Recorded", *options)
    rate = ("optimizer.schedule=constant",) if policy == "raise_instead_of_decay" else ()
    plain = tuple(word for word in point if not word.startswith("batching"))
    (one,) = trained(1, "strategy=single", *plain, *own, *rate)
    assert_reached(workers, one)
    for number, (indices, _) in enumerate(one["seen"]):
        if len(indices) > 1:  # or one worker computes something that counts nothing
            assert [i for worker in workers for i in worker["seen"][number][0]] == indices
    seen = iter(one["seen"])
    for epoch in workers[0]["epochs"]:
        of_epoch = itertools.islice(seen, epoch["num_steps"])
        assert sorted(i for indices, _ in of_epoch for i in indices) == list(range(NUM_TRAIN))


def test_the_batch_grows_instead_of_the_rate_falling_up_to_a_bound() -> None:
    words = ("batching=raise_instead_of_decay", "batching.max_global_batch=72", *STAGES)
    (run,) = trained(1, "strategy=single", "global_batch=24", "log_every_steps=1", *words)
    assert [len(indices) for indices, _ in run["seen"]] == [24, 24, 43, 72, 19]
    rates = [step["learning_rate"] for step in run["steps"]]
    assert rates == pytest.approx([0.5, 0.5, 0.5, 0.375, 0.375]), (
        "the second step crosses a milestone"
    )


def test_a_milestone_within_the_warm_up_raises_the_batch_when_that_ends() -> None:
    """As the rate of the plain schedule falls then."""
    stages = ("optimizer.schedule=multistep", "optimizer.milestones=[1,4]", "optimizer.gamma=0.5")
    point = ("global_batch=16", "optimizer.lr=0.1", "optimizer.warmup_epochs=2", *stages)
    config = compose("batching=raise_instead_of_decay", *point)
    policy, found = batching.build(config), []
    for epochs in (0.0, 1.0, 2.0, 3.0, 4.0):
        (batch,) = batches(policy, seen_at(epochs))
        rate = optim.learning_rate(config, epochs + 0.5, batch)
        found.append((batch, rate * policy.rate_factor(epochs + 0.5)))
    assert [batch for batch, _ in found] == [16, 16, 32, 32, 64]
    assert [rate for _, rate in found] == pytest.approx([0.025, 0.075, 0.1, 0.1, 0.1])


def seen_at(epochs_done: float, **more: Any) -> RoundStats:
    """What a lone worker sees where a step ends."""
    lone: dict[str, Any] = {"rounds": (), "sums": torch.zeros(3)}
    return RoundStats(epochs_done, gather=lambda values: values.unsqueeze(0), **lone | more)


def batches(policy: Policy, *seen: RoundStats) -> list[int]:
    """The global batch after each look."""
    found = []
    for one in seen:
        policy.observe(one)
        found.append(global_batch(policy.shares(one.epochs_done)))
    return found


def test_a_schedule_also_shrinks_the_batch_within_its_bounds() -> None:
    words = ("batching=schedule", "global_batch=64", "num_workers=2", "model=tiny_cnn")
    times = [seen_at(epochs, num_train=100) for epochs in (0.5, 1.0, 1.5, 2.0, 3.0)]
    shrinking = batching.build(compose(*words, "batching.factor=0.25"))
    assert batches(shrinking, *times) == [64, 16, 16, 4, 4]
    assert batches(batching.build(compose(*words)), *times) == [64, 100, 100, 100, 100]
    many = batching.build(compose(*words, "batching.every_epochs=0.001"))
    assert batches(many, seen_at(2.0)) == [1024], "multiplied a thousand times"
    config = compose(*words, "batching.rate=seesaw", "batching.max_global_batch=1000")
    seesaw, again = batching.build(config), batching.build(config)
    assert batches(seesaw, seen_at(2.0)) == [256]
    assert seesaw.rate_factor(2.0) == pytest.approx(0.5)
    assert batches(seesaw, seen_at(6.0)) == [1000]  # of 4096, so that the rate falls by the rest
    again.load_state(seesaw.state())
    factor = pytest.approx((1000 / 64) ** 0.5 / 64)
    assert seesaw.rate_factor(6.0) == again.rate_factor(6.0) == factor


def test_the_batch_follows_the_noise_scale_up_and_down() -> None:
    words = ("batching=noise_scale", "global_batch=64", "num_workers=2", "model=tiny_cnn")
    config = compose(*words, "batching.every_steps=2")
    scales = (200.0, 200.0, 150.0, -1.0, 40.0, 1e9, 1e9, 1e9)
    looks = [
        seen_at(0.1 * number, noise=GradientNoise(1.0, scale, 10))
        for number, scale in enumerate(scales, 1)
    ]
    # It looks at every second step from when noise is known; passes of 64 are full, and bounds
    # hold.
    policy = batching.build(config)
    found = batches(policy, seen_at(0.0, noise=None), *looks)
    assert found == [64, 192, 192, 192, 192, 40, 40, 1024, 1024]
    shares = [(share.num_passes, share.worker_batch) for share in policy.shares(1.0)]
    assert shares == [(16, 512)] * 2
    wide = batching.build(compose(*words, "batching.every_steps=2", "batching.max_local_batch=256"))
    assert batches(wide, looks[0], looks[0]) == [64, 200]
    assert wide.shares(0.2) == (Share(100, 1),) * 2


SMALL = "model=tiny_cnn global_batch=16"


@pytest.mark.parametrize(
    ("words", "least"),
    [
        # Each uneven worker has two examples, a lone worker's can be halved, and the noise of
        # the last one is not measured.
        ("batching=noise_scale num_workers=2 local_batch=32 allocation.local_batches=[2,62]", 64),
        (f"{SMALL} batching=cabs", 2),
        (f"{SMALL} batching=cabs num_workers=2", 2),
        (f"{SMALL} batching=schedule optimizer.lr_rule=adascale num_workers=2", 2),
        (f"{SMALL} batching=schedule", 1),
    ],
)
def test_the_least_batch_is_one_whose_noise_can_be_measured(words: str, least: int) -> None:
    config = compose(*words.split())
    assert config.batching.bounds(config)[0] == least  # type: ignore[union-attr]


def test_the_norm_test_grows_the_batch_to_where_it_passes() -> None:
    words = ("batching=norm_test", "global_batch=64", "model=tiny_cnn", "batching.every_steps=1")
    config = compose(*words, "batching.theta=0.5", "batching.max_local_batch=1024")
    policy = batching.build(config)
    at = [
        seen_at(0.1, noise=GradientNoise(square, 64.0, 10)) for square in (4.0, 3.0, 1.0, 1.0, 9.0)
    ]
    # tr / B <= theta^2 (|G|^2 + tr / B): 1 <= (4 + 1) / 4 passes, as does 1 <= (3 + 1) / 4; 1 <= (1
    # + 1) / 4 fails.
    assert batches(policy, *at[:3]) == [64, 64, 128]
    assert batches(policy, at[3], at[4]) == [round(64 / (0.25 * 1.5)), round(64 / (0.25 * 1.5))]
    barely = GradientNoise(11.0, 320.0, 10)  # 5 / 16 of the square of the batch's gradient is noise
    policy = batching.build(compose(*words, "batching.theta=0.5"))
    assert batches(policy, seen_at(0.1, noise=barely)) == [128], "a pass more at least"


def test_cabs_couples_the_batch_to_rate_variance_and_loss() -> None:
    words = ("batching=cabs", "global_batch=64", "model=tiny_cnn", "batching.every_steps=1")
    policy = batching.build(compose(*words))
    sums = torch.tensor([128.0, 0.0, 64.0], dtype=torch.float64)  # a mean loss of 2
    noise = GradientNoise(1.0, 4096.0, 10)
    (change,) = policy.observe(seen_at(0.5, noise=noise, sums=sums, learning_rate=0.0625))
    assert (change.global_batch, change.inputs["train_loss"]) == (128, 2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fixed_seconds", [0.0, 0.1])
def test_goodput_grows_the_batch_only_where_a_step_has_a_fixed_cost(fixed_seconds: float) -> None:
    """Steps of fixed_seconds + 1 ms an example, and a noise scale of 300: examples that count a
    second are known.
    """
    words = ("batching=goodput", "global_batch=64", "model=tiny_cnn", "batching.every_steps=10")
    policy = batching.build(compose(*words, "batching.max_local_batch=4096"))
    seconds: list[float] = []
    for number in range(1, 101):
        batch = global_batch(policy.shares(0.0))
        seconds.append(fixed_seconds + 0.001 * batch)
        more = {"noise": GradientNoise(1.0, 300.0, 10), "step_seconds": lambda: seconds}
        policy.observe(seen_at(number / 1000 + 0.0001, **more))

    def goodput(batch: float) -> float:
        return batch / (fixed_seconds + 0.001 * batch) / (300 + batch)

    best = max(goodput(64 * 2 ** (half / 2)) for half in range(-8, 9))
    assert goodput(batch) > 0.85 * best, "each change is worth 5 %, or is not made"
    assert batch >= 128 if fixed_seconds else batch < 64


def test_adascales_gain_is_the_batchs_factor_in_noise_and_one_without() -> None:
    rule = ("optimizer.lr_rule=adascale", "optimizer.reference_batch=32")
    config = compose(*rule, "global_batch=128", "model=tiny_cnn", "batching=schedule")
    policy, again = batching.build(config), batching.build(config)
    policy.shares(0.0)
    assert policy.rate_factor(0.0) == 1.0, "before noise is measured"
    gains = []
    for trace in (1e9, 1e-9, 32.0):
        policy.observe(seen_at(0.5, noise=GradientNoise(1.0, trace, 9)))
        gains.append(policy.rate_factor(0.5))
    assert gains == pytest.approx([4, 1, 2 / 1.25])
    policy.observe(seen_at(0.6, noise=GradientNoise(-0.1, 32.0, 9)))
    policy.observe(seen_at(0.7, noise=GradientNoise(0.1, 32.0, 9, squared_norm_error=0.1)))
    assert policy.rate_factor(0.7) == gains[-1], "held where the gradient is not known"
    policy.observe(seen_at(1.0, noise=GradientNoise(1.0, 32.0, 9)))  # the batch doubles
    again.load_state(policy.state())
    for one in (policy, again):
        one.shares(1.0)
        assert one.rate_factor(1.0) == pytest.approx(2 / 1.125)


@pytest.mark.full
def test_workers_reach_one_workers_weights_at_adascales_rates() -> None:
    """A lone worker measures the noise of other steps, and would find other gains: it is given
    those of the workers.
    """
    point = ("global_batch=8", "log_every_steps=1", "optimizer.lr=0.1", "epochs=12")
    rule = ("optimizer.lr_rule=adascale", "optimizer.reference_batch=4")
    workers = trained(2, "strategy=allreduce", *point, *rule)
    steps = workers[0]["steps"]
    until, rates = ([step[key] for step in steps] for key in ("epochs_done", "learning_rate"))
    assert len(set(rates)) > 2
    assert rates[:80] == [0.1] * 80, "until eight records of ten steps or more"
    assert 0.1 < rates[-1] <= 0.2, "with the gain"
    factors = [rate / 0.1 for rate in rates]
    options = (f"+batching.options.until={until}", f"+batching.options.factors={factors}")
    target = f"batching.target={ROOT}/tests/support/policies.py:RecordedRates"
    own = ("batching=own", target, *options)
    (one,) = trained(1, "strategy=single", *point, *own, "optimizer.lr_rule=fixed")
    assert [step["learning_rate"] for step in one["steps"]] == pytest.approx(rates)
    assert_reached(workers, one)


def test_a_run_whose_policy_decided_for_another_batch_is_not_gone_on_with(tmp_path: Path) -> None:
    words = ("batching=noise_scale", "model=tiny_cnn", "strategy=allreduce", "num_workers=2")
    save_config(compose(*words, "global_batch=64"), tmp_path / "config.yaml")
    with pytest.raises(
        ConfigError, match="batching=noise_scale chose its batch sizes for the global batch"
    ):
        branching.check_branch(compose(*words, "global_batch=1024", f"resume_from={tmp_path}"))


def test_a_network_aware_policy_counts_the_exchange_and_the_codec() -> None:
    """Steps of 0.1 s, and 1 s of travel and codec: a tenth of the time is 90 steps."""
    steps = ("allocation=network_aware", "allocation.local_steps=[90,90]", "strategy.sync_every=90")
    asked = ("allocation.adapt_every=2", "allocation.max_exchange_share=0.1")
    config = compose("local_batch=8", "num_workers=2", "strategy=diloco", *steps, *asked)
    policy, again = batching.build(config), batching.build(config)

    def look(number: int, exchange: float, codec: float) -> list[int]:
        took: dict[str, Any] = {"worker_batches": (8, 8), "local_steps": (90, 90)}
        spent = {"exchange_seconds": (exchange, exchange), "codec_seconds": (codec, codec)}
        began = {"began_seconds": (12.0 * number, 12.0 * number), "idle_seconds": (0.0, 0.0)}
        took |= {"compute_seconds": (9.0, 9.0), "num_examples": 1440, "is_whole": True}
        took |= spent | began
        whole = Round(epoch=1, round=number, workers=(0, 1), train_loss=1.0, **took)
        policy.observe(seen_at(0.0, rounds=(whole,)))
        return [share.num_steps for share in policy.shares(0.0)]

    assert [look(number, 0.75, 0.25) for number in range(1, 5)] == [[90, 90]] * 4
    assert [look(number, 1.5, 0.5) for number in (5, 6)] == [[90, 90], [180, 180]]
    again.load_state(policy.state())
    assert again.shares(0.0) == policy.shares(0.0)
