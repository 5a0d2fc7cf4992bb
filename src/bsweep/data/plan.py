"""The batch plan: which examples form a step, or a round of local steps, and which of them a worker
takes.

Pure: an epoch's order depends on the seed and the epoch alone, and a step is the next slice of it.
So the number of workers cannot change what a step trains on, every example comes once an epoch, the
last one included, and the batch size may change at any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bsweep.core.randomness import random_bits, stream_of


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> Tensor:
    """The examples of an epoch in their order: a permutation, int64 (num_examples,) on the CPU."""
    return random_bits(torch.arange(num_examples), stream_of("order", seed, epoch)).argsort()


def step_indices(order: Tensor, start: int, num_examples: int) -> Tensor:
    """The examples of the step, or round, that begins at position `start` of the order: so many, or
    what is left.
    """
    return order[start : start + num_examples]


@dataclass(frozen=True)
class Share:
    """What one worker takes of a round."""

    worker_batch: int  # examples of one optimizer step
    # optimizer steps between two synchronisations: 1 where each step is one; 0 of a lost worker
    num_steps: int
    num_passes: int = (
        1  # forward and backward passes of a step, over which its gradient accumulates
    )

    @property
    def num_examples(self) -> int:
        return self.worker_batch * self.num_steps


def global_batch(shares: Sequence[Share]) -> int:
    """Examples of one optimizer step of all workers together."""
    return sum(share.worker_batch for share in shares if share.num_steps)


def of_members(shares: Sequence[Share], members: Sequence[int]) -> tuple[Share, ...]:
    """The shares, of which workers that were lost take nothing."""
    return tuple(
        share if rank in members else replace(share, num_steps=0)
        for rank, share in enumerate(shares)
    )


def round_size(shares: Sequence[Share]) -> int:
    """Examples that all workers take together before they synchronise: a global batch, where each
    step does.
    """
    return sum(share.num_examples for share in shares)


def local_steps(batch: Tensor, rank: int, shares: Sequence[Share]) -> list[Tensor]:
    """A worker's part of a round's examples, by optimizer steps; one step at least, which may be
    empty.

    Of fewer examples than the round's, every worker takes a part in proportion, in as few steps as
    its batch allows.
    """
    part = _part(batch, rank, [share.num_examples for share in shares])
    num_steps = max(1, -(-len(part) // shares[rank].worker_batch))
    return [worker_part(part, step, num_steps) for step in range(num_steps)]


def worker_part(indices: Tensor, rank: int, num_workers: int) -> Tensor:
    """Part `rank` of `num_workers` contiguous parts whose sizes differ by at most one; empty where
    there are too few.

    It shares examples among equals: workers, steps, accumulation steps.
    """
    return _part(indices, rank, [1] * num_workers)


def _part(indices: Tensor, number: int, weights: Sequence[int]) -> Tensor:
    """Part `number` of contiguous parts in proportion to `weights`."""
    before, total, n = sum(weights[:number]), sum(weights), len(indices)
    return indices[n * before // total : n * (before + weights[number]) // total]
