"""Exchanges among workers as the rounds of messages that they consist of: ring, tree, hierarchical,
and parts of them.

All workers begin a round together. A ring of N workers has 2 (N - 1) alike rounds, which count as
one round and the number of its repetitions. The rounds are those of
`bsweep.strategies.groups`, whose `native` exchange is a ring between CPUs, and the quicker of
ring and hierarchical between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bsweep.analysis.simulation.network import Messages, Network, Numbers, ToAll


class Round(NamedTuple):
    """Messages that start together, and how many such rounds follow one another."""

    messages: Messages | ToAll
    repeat: int = 1


def seconds(rounds: Sequence[Round], network: Network) -> float:
    """Return how long rounds take on a network, one after another."""
    return sum(one.repeat * network.seconds(one.messages) for one in rounds)


def ring(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return the rounds of a ring all-reduce in each row of `groups`, which has workers' numbers.

    Each worker sends a part of the vector to its neighbour in 2 (N - 1) rounds.
    """
    return _ring_rounds(groups, num_bytes, 2)


def gather(groups: Numbers, num_bytes: float) -> list[Round]:
    """Return the rounds in which each worker gets all parts of a vector of `num_bytes`, of which
    each has one: an all-gather in a ring. A reduce-scatter has the same rounds.
    """
    return _ring_rounds(groups, num_bytes, 1)


def _ring_rounds(groups: Numbers, num_bytes: float, times: int) -> list[Round]:
    number_of = groups.shape[1]
    if number_of < 2:
        return []
    messages = _messages(groups, groups, np.roll(groups, -1, axis=1), num_bytes / number_of)
    return [Round(messages, times * (number_of - 1))]


def tree(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return the rounds of an all-reduce along a binomial tree: up to its root, and down again."""
    number_of, found = groups.shape[1], []
    for level in range((number_of - 1).bit_length()):
        distance = 2**level
        senders = np.arange(distance, number_of, 2 * distance)
        messages = _messages(groups, groups[:, senders], groups[:, senders - distance], num_bytes)
        found.append(Round(messages, 2))  # the way down has the same messages, turned round
    return found


def hierarchical(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return a ring within each node, then rings of the workers of the same place in all nodes,
    each for its part of the vector, and a ring within each node again.

    If the workers do not fill nodes, it is a plain ring.
    """
    rows, number_of = groups.shape
    per_node = network.per_node
    if per_node == 1 or number_of <= per_node or number_of % per_node:
        return ring(groups, num_bytes, network)
    of_node = groups.reshape(-1, per_node)
    across = groups.reshape(rows, -1, per_node).swapaxes(1, 2).reshape(rows * per_node, -1)
    inside = gather(of_node, num_bytes)
    outside = ring(across, num_bytes / per_node, network)
    return [*inside, *outside, *inside]


def native(groups: Numbers, num_bytes: float, network: Network) -> list[Round]:
    """Return the quicker of ring and hierarchical on a network."""
    found = [one(groups, num_bytes, network) for one in (ring, hierarchical)]
    return min(found, key=lambda rounds: seconds(rounds, network))


ALGORITHMS: Mapping[str, Callable[[Numbers, float, Network], list[Round]]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "native": native,
}


def _messages(groups: Numbers, sources: Numbers, targets: Numbers, size: float) -> Messages:
    begin, end = sources.ravel(), targets.ravel()
    return Messages(int(groups.max()) + 1, begin, end, np.full(len(begin), size))
