"""The batch plan: which examples form a step or a round, and which of them a worker takes.

All functions are pure: an epoch's order depends only on the seed, the epoch and the number of
examples, and a step is the next slice of it. So at a given global batch the number of workers does
not change what a step trains on. Every example is used once in an epoch, even the last few, and the
batch size may change at any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bsweep.core.randomness import random_bits, stream_of


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch uses the examples: a permutation, int64 (num_examples,),
    on the CPU.
    """
    return random_bits(torch.arange(num_examples), stream_of("order", seed, epoch)).argsort()


def step_indices(order: Tensor, start: int, num_examples: int) -> Tensor:
    """Return the indices of the examples of one step or round: the part of the epoch's `order` that
    begins at position `start`.

    There are `num_examples` of them, or as many as are left.
    """
    return order[start : start + num_examples]


@dataclass(frozen=True)
class Share:
    """The part of a round that one worker computes: its number of steps, and the examples and
    passes of each step.
    """

    worker_batch: int  # examples of one optimizer step
    num_steps: int  # optimizer steps between two synchronisations: 1 if every step synchronises
    num_passes: int = 1  # passes of a step, over which the gradient accumulates

    @property
    def num_examples(self) -> int:
        return self.worker_batch * self.num_steps


def global_batch(shares: Sequence[Share]) -> int:
    """Return the number of examples of one optimizer step over all workers."""
    return sum(share.worker_batch for share in shares)


def round_size(shares: Sequence[Share]) -> int:
    """Return the number of examples that all workers together take between two synchronisations.

    This is the global batch if every step synchronises.
    """
    return sum(share.num_examples for share in shares)


def local_steps(batch: Tensor, rank: int, shares: Sequence[Share]) -> list[Tensor]:
    """Return the indices of a worker's examples in a round, one tensor for each optimizer step.

    There is at least one step, which may be empty. If there are fewer examples than a full round
    has, each worker takes a proportional part, in as few steps as its batch allows.
    """
    examples = _part(batch, rank, [share.num_examples for share in shares])
    num_steps = max(1, -(-len(examples) // shares[rank].worker_batch))
    return [even_part(examples, step, num_steps) for step in range(num_steps)]


def even_part(indices: Tensor, number: int, num_parts: int) -> Tensor:
    """Cut `indices` into `num_parts` contiguous parts whose sizes differ by at most one, and return
    the part with the index `number`.

    The part may be empty if there are fewer examples than parts. The parts may belong to workers,
    to steps or to accumulation steps.
    """
    return _part(indices, number, [1] * num_parts)


def _part(indices: Tensor, number: int, weights: Sequence[int]) -> Tensor:
    """Cut `indices` into contiguous parts with sizes proportional to `weights`, and return the part
    with the index `number`.
    """
    before, total, n = sum(weights[:number]), sum(weights), len(indices)
    return indices[n * before // total : n * (before + weights[number]) // total]
