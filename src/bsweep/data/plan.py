"""The batch plan: which examples form a step, and which of them a worker takes.

Pure: an epoch's order depends on the seed and the epoch alone, and a step is the next slice of it. So the number of
workers cannot change what a step trains on, every example comes once an epoch, the last one included, and the batch
size may change at any step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bsweep.data.randomness import random_bits


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> Tensor:
    """The examples of an epoch in their order: a permutation, int64 (num_examples,) on the CPU."""
    return random_bits(torch.arange(num_examples), "order", seed, epoch).argsort()


def num_steps(num_examples: int, global_batch: int) -> int:
    """Steps of an epoch; the last may have fewer than `global_batch` examples."""
    return -(-num_examples // global_batch)


def step_indices(order: Tensor, start: int, global_batch: int) -> Tensor:
    """The examples of the step that begins at position `start` of the order: `global_batch`, or what is left."""
    return order[start : start + global_batch]


def worker_part(indices: Tensor, rank: int, num_workers: int) -> Tensor:
    """Part `rank` of `num_workers` contiguous parts whose sizes differ by at most one; empty where there are too few.

    It shares a step among workers, and a worker's part among its accumulation steps.
    """
    n = len(indices)
    return indices[n * rank // num_workers : n * (rank + 1) // num_workers]
