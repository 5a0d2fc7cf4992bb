"""Who decides how much the coming round takes: the configured batch, and one that changes during a run."""

from __future__ import annotations

import pytest
import torch

from bsweep import batching
from bsweep.data.plan import Share
from tests.policies import Doubling
from tests.running import compose
from tests.test_equivalence import NUM_TRAIN, _end_processes, trained  # noqa: F401 (the fixture ends the processes)

DOUBLING = ("global_batch=24", "log_every_steps=1", "optimizer.lr_rule=linear", "optimizer.reference_batch=24")


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
