"""Who decides how much the coming round takes: the configured batch, and one that changes during a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bsweep import batching, study
from bsweep.batching import Policy, Seen
from bsweep.config import ConfigError, conf_dir
from bsweep.data.plan import Share, global_batch
from tests.policies import Doubling
from tests.running import TINY, compose
from tests.test_equivalence import NUM_TRAIN, _end_processes, trained  # noqa: F401 (the fixture ends the processes)

LINEAR = ("optimizer.lr_rule=linear", "optimizer.reference_batch=24")
DOUBLING = ("global_batch=24", "log_every_steps=1", *LINEAR)


def test_the_configured_batch_is_every_rounds() -> None:
    config = compose("local_batch=5", "accumulation_steps=3", "num_workers=2")
    policy = batching.build(config)
    assert policy.shares(0.0) == policy.shares(1.7) == (Share(15, 1, num_passes=3),) * 2
    uneven = compose("strategy=diloco", "num_workers=2", "local_batch=8", "allocation.local_batches=[5,9]")
    assert [share.worker_batch for share in batching.build(uneven).shares(0.0)] == [5, 9]


def test_a_larger_batch_than_the_local_one_is_computed_in_passes() -> None:
    policy = Doubling(compose("strategy=allreduce", "num_workers=3", "local_batch=8"))
    assert policy.of_global_batch(24) == (Share(8, 1),) * 3
    assert policy.of_global_batch(50) == (Share(16, 1, 2), Share(17, 1, 3), Share(17, 1, 3))
    assert policy.of_global_batch(4) == (Share(1, 1), Share(1, 1), Share(2, 1))


@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_a_batch_that_doubles_within_an_epoch_reaches_one_workers_weights(strategy: str) -> None:
    (one,) = trained(1, "strategy=single", *DOUBLING, policy="Doubling")
    workers = trained(2, f"strategy={strategy}", *DOUBLING, policy="Doubling")
    (fixed,) = trained(1, "strategy=single", *DOUBLING)
    assert one["moved"] > 0.01 and not torch.allclose(one["parameters"], fixed["parameters"], rtol=1e-4)
    sizes = [24, 24, 43, 48, 24, 19]
    assert [len(indices) for indices, _ in one["seen"]] == sizes
    for worker in workers:
        torch.testing.assert_close(worker["parameters"], one["parameters"], rtol=1e-9, atol=1e-11)
    for number, (indices, _) in enumerate(one["seen"]):
        assert [i for worker in workers for i in worker["seen"][number][0]] == indices
    for epoch in (one["seen"][:3], one["seen"][3:]):
        assert sorted(i for indices, _ in epoch for i in indices) == list(range(NUM_TRAIN))
    for run in (one, workers[0]):
        assert [step["global_batch"] for step in run["steps"]] == [24, 24, 48, 48, 24, 24]
        assert [step["learning_rate"] for step in run["steps"]] == [0.5, 0.5, 1.0, 1.0, 0.5, 0.5]
        assert [step["epochs_done"] for step in run["steps"]][2::3] == [1, 2]
        assert [epoch["global_batch"] for epoch in run["epochs"]] == [48, 24]


@pytest.mark.parametrize("more", [("strategy.sync_every=1",), ("strategy.sync_every=3", "strategy.warmup_steps=100")])
def test_workers_that_step_alone_follow_a_doubled_batch_too(more: tuple[str, ...]) -> None:
    plain = tuple(word for word in DOUBLING if "lr_rule" not in word)
    (one,) = trained(1, "strategy=single", *plain, policy="Doubling")
    for worker in trained(2, "strategy=local_sgd", *plain, *more, policy="Doubling"):
        torch.testing.assert_close(worker["parameters"], one["parameters"], rtol=1e-9, atol=1e-11)


# How each policy is to leave the batch as it is, and to change it: twice, up and down where it can.
STILL = {
    "schedule": ("batching.every_epochs=100",),
    "raise_instead_of_decay": ("optimizer.schedule=multistep", "optimizer.milestones=[100]"),
}
CHANGING = {
    "schedule": (
        ("batching.every_epochs=0.4", "batching.max_global_batch=60", *LINEAR),
        [24, 24, 43, 60, 31],
        [0.5, 0.5, 1.0, 1.25, 1.25],
    ),
    "raise_instead_of_decay": (
        (
            *("optimizer.schedule=multistep", "optimizer.milestones=[0.3,1]", "optimizer.gamma=0.5"),
            "batching.max_global_batch=72",
        ),
        [24, 24, 43, 72, 19],
        [0.5, 0.5, 0.5, 0.375, 0.375],  # the second step crosses a milestone
    ),
}


def test_every_policy_is_tested() -> None:
    here = {path.stem for path in (conf_dir() / "batching").glob("*.yaml")}
    assert {*STILL} == {*CHANGING} == here - {"fixed", "own"}


@pytest.mark.parametrize("policy", STILL)
def test_a_policy_that_changes_nothing_is_the_fixed_batch_bit_for_bit(policy: str) -> None:
    more = ("local_batch=12", "optimizer.weight_decay=0.01")
    plain = tuple(word for word in STILL[policy] if not word.startswith("batching."))
    fixed, still = (
        trained(2, "strategy=allreduce", *more, *words) for words in (plain, (f"batching={policy}", *STILL[policy]))
    )
    assert fixed[0]["moved"] > 0.01
    for one, other in zip(fixed, still, strict=True):
        assert torch.equal(one["parameters"], other["parameters"])
        assert [indices for indices, _ in one["seen"]] == [indices for indices, _ in other["seen"]]


@pytest.mark.parametrize("policy", CHANGING)
def test_every_policy_reaches_one_workers_weights_by_the_same_decisions(policy: str) -> None:
    words, sizes, rates = CHANGING[policy]
    point = (f"batching={policy}", "global_batch=24", "log_every_steps=1", *words)
    (one,) = trained(1, "strategy=single", *point)
    workers = trained(2, "strategy=allreduce", *point)
    assert one["moved"] > 0.01 and [len(indices) for indices, _ in one["seen"]] == sizes
    for worker in workers:
        torch.testing.assert_close(worker["parameters"], one["parameters"], rtol=1e-9, atol=1e-11)
    for number, (indices, _) in enumerate(one["seen"]):
        assert [i for worker in workers for i in worker["seen"][number][0]] == indices
    assert sorted(i for indices, _ in one["seen"] for i in indices) == sorted(2 * [*range(NUM_TRAIN)])
    for run in (one, workers[0]):
        assert [step["learning_rate"] for step in run["steps"]] == pytest.approx(rates)
        changes = [event for event in run["events"] if event["event"] == "batch_changed"]
        assert changes and all(change["inputs"] for change in changes)


def seen_at(epochs_done: float, **more: Any) -> Seen:
    """What a lone worker sees where a step ends."""
    return Seen(epochs_done, (), torch.zeros(3, dtype=torch.float64), lambda values: values.unsqueeze(0), **more)


def batches(policy: Policy, *seen: Seen) -> list[int]:
    """The global batch after each look."""
    found = []
    for one in seen:
        policy.observe(one)
        found.append(global_batch(policy.shares(one.epochs_done)))
    return found


def test_a_schedule_shrinks_the_batch_too_and_ends_at_its_bounds_and_the_data() -> None:
    words = ("batching=schedule", "global_batch=64", "num_workers=2", "model=tiny_cnn")
    times = [seen_at(epochs, num_train=100) for epochs in (0.5, 1.0, 1.5, 2.0, 3.0)]
    shrinking = batching.build(compose(*words, "batching.factor=0.25"))
    assert batches(shrinking, *times) == [64, 16, 16, 4, 4]
    assert batches(batching.build(compose(*words)), *times) == [64, 100, 100, 100, 100]
    seesaw = batching.build(compose(*words, "batching.rate=seesaw", "batching.max_global_batch=1000"))
    assert batches(seesaw, seen_at(2.0)) == [256] and seesaw.rate_factor(2.0) == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("schedule", "batching.max_global_batch=32"),
            "max_global_batch=32 excludes the configured global batch of 64",
        ),
        (
            ("schedule", "batching.min_global_batch=65"),
            "min_global_batch=65 excludes the configured global batch of 64",
        ),
        (("schedule", "batching.min_global_batch=1"), "too small for num_workers=2"),
        (("schedule", "batching.factor=1"), "changes nothing"),
        (("schedule", "batching.rate=seesaw", "optimizer.lr_rule=linear"), "Use optimizer.lr_rule=fixed"),
        (("raise_instead_of_decay",), "Use optimizer.schedule=multistep"),
        (
            (
                "raise_instead_of_decay",
                "optimizer.schedule=multistep",
                "optimizer.milestones=[1]",
                "optimizer.lr_rule=sqrt",
            ),
            "optimizer.lr_rule=sqrt with batching=raise_instead_of_decay",
        ),
    ],
)
def test_what_contradicts_a_policy_is_refused_with_the_remedy(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(f"batching={words[0]}", "global_batch=64", "num_workers=2", *words[1:])


def test_a_policy_that_would_exceed_the_training_set_is_refused() -> None:
    config = compose(*TINY, "batching=schedule", "global_batch=8", "model=tiny_cnn", "batching.max_global_batch=1000")
    with pytest.raises(
        ConfigError, match="max_global_batch=1000 is larger than the training set of 90 examples: use 90"
    ):
        study.check(config)
