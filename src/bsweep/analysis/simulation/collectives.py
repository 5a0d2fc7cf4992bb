"""Exchanges among workers as the rounds of messages that they consist of: ring, tree, hierarchical,
and parts of them.

All workers begin a round together. A ring of N workers has 2 (N - 1) alike rounds, which count as
one round and the number of its repetitions. The rounds are those of
`bsweep.strategies.groups`, whose `native` exchange is a ring between CPUs, and the quicker of
ring and hierarchical between GPUs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bsweep.analysis.simulation.network import Network, Numbers, Round


def ring(groups: Numbers, num_bytes: float) -> list[Round]:
    """Return the rounds of a ring all-reduce in each row of `groups`, which has workers' numbers.

    Each worker sends a part of the vector to its neighbour in 2 (N - 1) rounds.
    """
    return [replace(part, repeat=2 * part.repeat) for part in gather(groups, num_bytes)]


def gather(groups: Numbers, num_bytes: float) -> list[Round]:
    """Return the rounds in which each worker gets all parts of a vector of `num_bytes`, of which
    each has one: an all-gather in a ring. A reduce-scatter has the same rounds.
    """
    count = groups.shape[1]
    targets = np.roll(groups, -1, axis=1)
    return [_round(groups, groups, targets, num_bytes / count, count - 1)] if count > 1 else []


def tree(groups: Numbers, num_bytes: float) -> list[Round]:
    """Return the rounds of an all-reduce along a binomial tree: up to its root, and down again."""
    count, rounds = groups.shape[1], []
    for level in range((count - 1).bit_length()):
        senders = np.arange(2**level, count, 2 ** (level + 1))
        sources, targets = groups[:, senders], groups[:, senders - 2**level]
        # The way down has the same messages, turned round.
        rounds.append(_round(groups, sources, targets, num_bytes, 2))
    return rounds


def hierarchical(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return a ring within each node, then rings of the workers of the same place in all nodes,
    each for its part of the vector, and a ring within each node again.

    If the workers do not fill nodes, it is a plain ring.
    """
    rows, count = groups.shape
    per_node = network.per_node
    if per_node == 1 or count <= per_node or count % per_node:
        return ring(groups, num_bytes)
    across = groups.reshape(rows, -1, per_node).swapaxes(1, 2).reshape(rows * per_node, -1)
    inside = gather(groups.reshape(-1, per_node), num_bytes)
    outside = ring(across, num_bytes / per_node)
    return [*inside, *outside, *inside]


def native(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return the quicker of ring and hierarchical on a network."""
    exchanges = (ring(groups, num_bytes), hierarchical(groups, num_bytes, network))
    return min(exchanges, key=network.seconds)


def _round(groups: Numbers, sources: Numbers, targets: Numbers, size: float, repeat: int) -> Round:
    number, sizes = int(groups.max()) + 1, np.full(sources.size, size)
    return Round(number, sources.ravel(), targets.ravel(), sizes, repeat=repeat)
