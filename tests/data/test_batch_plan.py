"""The batch plan is exact: every example once an epoch, and the same step whatever the workers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bsweep.data.plan import Share, epoch_order, even_part, local_steps, round_size, step_indices

SIZES = [(n, batch) for n in (1, 2, 7, 64, 97, 1000) for batch in (1, 3, 8, 64, 1000)]


def steps(num_examples: int, global_batch: int, *, seed: int = 0, epoch: int = 1) -> list[Tensor]:
    order = epoch_order(num_examples, seed=seed, epoch=epoch)
    starts = range(0, num_examples, global_batch)
    return [step_indices(order, start, global_batch) for start in starts]


@pytest.mark.parametrize(("num_examples", "global_batch"), SIZES)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_every_example_comes_once_an_epoch_whatever_the_workers(
    num_examples: int, global_batch: int, num_workers: int
) -> None:
    epoch = steps(num_examples, global_batch)
    assert torch.cat(epoch).sort().values.tolist() == list(range(num_examples))
    assert all(len(step) == global_batch for step in epoch[:-1])
    assert 1 <= len(epoch[-1]) <= global_batch
    for step in epoch:
        parts = [even_part(step, rank, num_workers) for rank in range(num_workers)]
        assert torch.equal(torch.cat(parts), step)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


UNEVEN = [
    (Share(5, 3),),
    (Share(8, 4), Share(8, 4)),
    (Share(5, 3), Share(12, 2), Share(7, 4)),
    (Share(4, 100), Share(4, 1)),
    (Share(1, 1), Share(64, 1), Share(3, 7), Share(2, 2)),
    (Share(5, 3), Share(12, 0), Share(7, 4)),  # the second worker is lost
    (Share(5, 0), Share(12, 2)),
]


@pytest.mark.parametrize("shares", UNEVEN)
@pytest.mark.parametrize("num_examples", [1, 2, 66, 67, 68, 1000])
def test_a_round_takes_every_example_once_and_a_lost_worker_takes_none(
    shares: tuple[Share, ...], num_examples: int
) -> None:
    size = round_size(shares)
    for batch in steps(num_examples, size):
        by_worker = [local_steps(batch, rank, shares) for rank in range(len(shares))]
        assert torch.equal(torch.cat([part for parts in by_worker for part in parts]), batch)
        for share, parts in zip(shares, by_worker, strict=True):
            lengths = [len(part) for part in parts]
            if not share.num_steps:
                assert lengths == [0]
            elif len(batch) == size:
                assert lengths == [share.worker_batch] * share.num_steps
            else:
                assert abs(sum(lengths) - len(batch) * share.num_examples / size) < 1, (
                    "its part, in proportion"
                )
                assert len(lengths) == max(1, -(-sum(lengths) // share.worker_batch)), (
                    "in no more steps than it needs"
                )
                assert max(lengths) <= share.worker_batch
                assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("num_examples", [0, 1, 7, 64, 97])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
@pytest.mark.parametrize("local_batch", [1, 2, 13, 400])
def test_equal_shares_are_even_parts(num_examples: int, num_workers: int, local_batch: int) -> None:
    """Not a single border moves where all shares are the same: what was measured with one batch for
    all stays.
    """
    indices, shares = torch.arange(num_examples), [Share(local_batch, 1)] * num_workers
    for rank in range(num_workers):
        parts = local_steps(indices, rank, shares)
        assert torch.equal(torch.cat(parts), even_part(indices, rank, num_workers))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed=seed, epoch=epoch).tolist())
        for seed in (0, 1)
        for epoch in (1, 2)
    }
    assert len(set(orders.values())) == 4
    torch.manual_seed(99)  # no matter what else drew random numbers
    assert tuple(epoch_order(50, seed=0, epoch=1).tolist()) == orders[0, 1]


def test_the_order_is_recorded_for_ever() -> None:
    """A change of these numbers changes every result that was ever measured."""
    assert epoch_order(10, seed=0, epoch=1).tolist() == [4, 6, 0, 7, 3, 1, 9, 2, 8, 5]
