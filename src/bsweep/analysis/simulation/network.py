"""The links of a cluster that is simulated: their bandwidths, latencies and who shares them, as a
user describes them in words such as `25gbit,10us`; and exchanges over them as the rounds of
messages that they consist of.

A message between two workers crosses, at most, the link of a node and that of a site. All messages
of one round start together. Each link carries what all of them send through it, in both directions
at once, so the round takes as long as the busiest link, plus the latency. A ring of N workers has
2 (N - 1) alike rounds, which count as one round and the number of its repetitions.

The exchanges are those of `bsweep.strategies.groups`, whose `native` exchange is a ring between
CPUs, and the quicker of ring and hierarchical between GPUs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from bsweep.config.parsing import conf_dir
from bsweep.config.values import did_you_mean

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

_GOODPUT = 0.95
"""The share of a link's nominal bandwidth that payload can have. With Ethernet's frames of 1,500
bytes, TCP and IP leave 1,448 of the 1,538 bytes that a frame takes on the wire.
"""
_EXAMPLE = "25gbit,10us, or 100gbit,5us,per_node=8,inner=2400gbit/2us"
_REMEDY = (
    "Write one bandwidth in kbit, mbit, gbit or tbit and a latency in ns, us, ms or s, such as "
    f"{_EXAMPLE}."
)
_UNITS: Mapping[str, tuple[str, float]] = {
    "kbit": ("bandwidth", 1e3), "mbit": ("bandwidth", 1e6), "gbit": ("bandwidth", 1e9),
    "tbit": ("bandwidth", 1e12), "ns": ("latency", 1e-9), "us": ("latency", 1e-6),
    "ms": ("latency", 1e-3), "s": ("latency", 1.0),
}  # fmt: skip


class Link(NamedTuple):
    """The payload that a link carries in a second and each direction, and its latency.

    `published` says where the latency comes from, if `conf/links.yaml` has it and not the user.
    """

    bytes_per_second: float
    latency_seconds: float
    published: str = ""


FREE = Link(np.inf, 0.0)
"""A link that takes no time."""


@dataclass(frozen=True)
class Network:
    """The links between the workers of a cluster.

    `link` is that of a node, which `per_node` workers share. Workers of one node exchange through
    `inner`. Workers are at `sites` places, each with one link `between` it and the others.

    A worker's host needs `message_seconds` for each message and `byte_seconds` for each byte,
    beside the time on the wire.
    """

    link: Link
    per_node: int = 1
    inner: Link = FREE
    sites: int = 1
    between: Link = FREE
    message_seconds: float = 0.0
    byte_seconds: float = 0.0

    @property
    def published(self) -> tuple[str, ...]:
        """The sources of the latencies that the user did not give; see `Link`."""
        sources = (link.published for link in (self.link, self.inner, self.between))
        return tuple(dict.fromkeys(filter(None, sources)))

    def seconds(self, rounds: Sequence[Round]) -> float:
        """Return how long rounds of messages take, one after another, until the last message has
        arrived.
        """
        return sum(messages.repeat * self._round_seconds(messages) for messages in rounds)

    def _round_seconds(self, messages: Round) -> float:
        workers = np.arange(messages.number)
        # A message crosses a level of links if its two ends are in different groups. Each worker
        # has links of its own to the others of its node.
        levels = (
            (workers // self.per_node, self.link),
            (workers, self.inner),
            (self._sites_of(messages), self.between),
        )
        slowest, latency = 0.0, self.message_seconds * messages.most
        for groups, link in levels:
            load, crosses = messages.load(groups)
            slowest = max(slowest, load / link.bytes_per_second)
            latency += link.latency_seconds * crosses
        return slowest + self.byte_seconds * messages.load(workers)[0] + latency

    def _sites_of(self, messages: Round) -> Numbers:
        """Return the site of each worker and server. Sites divide the workers, and the servers on
        further nodes.
        """
        counts = (messages.number - messages.num_servers, messages.num_servers)
        return np.concatenate([np.arange(count) * self.sites // max(1, count) for count in counts])


@dataclass(frozen=True)
class Round:
    """Messages that start together, among workers and servers, which are `number` in all. The last
    `num_servers` are servers on further nodes. `repeat` such rounds follow one another.

    `sizes` are the bytes from each of `sources` to the same place of `targets`. With `shares`, each
    source sends something to each target: of its bytes, the target's share.
    """

    number: int
    sources: Numbers
    targets: Numbers
    sizes: Array
    shares: Array | None = None
    num_servers: int = 0
    repeat: int = 1

    @property
    def most(self) -> int:
        """The most messages that one of them sends or, with `shares`, gets."""
        if self.shares is None:
            return int(np.bincount(self.sources).max())
        return max(len(self.sources), len(self.targets))

    def load(self, groups: Numbers) -> tuple[float, bool]:
        """Return the most bytes that leave or enter one group, and True if any message crosses the
        border of a group.

        Args:
            groups: The group of each worker and server.
        """
        begin, end = groups[self.sources], groups[self.targets]
        if self.shares is None:
            crosses = begin != end
            sizes = np.where(crosses, self.sizes, 0.0)
            most = max(np.bincount(side, sizes).max() for side in (begin, end))
            return float(most), bool(crosses.any())
        count = int(groups.max()) + 1
        sent, taken = np.bincount(begin, self.sizes, count), np.bincount(end, self.shares, count)
        leaving, entering = sent * (taken.sum() - taken), taken * (sent.sum() - sent)
        most = max(leaving.max(), entering.max())
        return float(most), bool(most > 0)


def parse_network(text: str, option: str = "--network") -> Network:
    """Return the network that a user describes, such as `25gbit,10us`.

    Args:
        text: Words joined by commas: the bandwidth and the latency of a node's link, and any of
            `per_node=8`, `inner=2400gbit/2us`, `sites=4` and `between=1gbit/20ms`.
        option: The option of the command that has the text, for messages.

    Returns:
        The network. A latency that is not given is that of the fastest link in `conf/links.yaml`
        that is no faster, or of the slowest link there.

    Raises:
        ValueError: If a word is unknown or missing, or contradicts another.
    """
    try:
        return _network([word.strip() for word in text.split(",") if word.strip()])
    except ValueError as error:
        raise ValueError(f"{option} {text or repr(text)}: {error}") from None


def _network(words: Sequence[str]) -> Network:
    """Return the network of a text's words; see `parse_network`."""
    given: dict[str, Any] = {}
    for word in (word for word in words if "=" in word):
        key, _, value = word.partition("=")
        if key not in _KEYS:
            near = did_you_mean(key, [*_KEYS])
            raise ValueError(f"unknown word {key!r}.{near} Known: {', '.join(_KEYS)}.")
        if key in given:
            raise ValueError(f"{word} is a second {key}: give it once.")
        try:
            given[key] = _KEYS[key](value)
        except ValueError as error:
            raise ValueError(f"{word}: {error}") from None
    network = Network(_link([word for word in words if "=" not in word]), **given)
    if (network.sites > 1) != (network.between.bytes_per_second < np.inf):
        raise ValueError("sites and between belong together, as in sites=4,between=1gbit/20ms.")
    if (network.per_node > 1) != (network.inner.bytes_per_second < np.inf):
        raise ValueError(
            "per_node, of two workers or more, and inner belong together, as in "
            "per_node=8,inner=2400gbit/2us."
        )
    return network


def _link(words: Sequence[str]) -> Link:
    """Return the link that words such as `25gbit` and `10us` describe."""
    given: dict[str, float] = {}
    for word in words:
        match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]+)", word.strip().lower())
        number, unit = match.groups() if match else ("0", re.sub("[^a-z]", "", word.lower()))
        kind, factor = _UNITS.get(unit, ("", 0.0))
        if not kind or float(number) == 0:
            near = "" if kind else did_you_mean(unit, [*_UNITS])
            raise ValueError(f"{word} is not understood.{near} {_REMEDY}")
        if kind in given:
            raise ValueError(f"{word} is a second {kind}. {_REMEDY}")
        given[kind] = float(number) * factor
    if "bandwidth" not in given:
        raise ValueError(f"the bandwidth is missing. {_REMEDY}")
    rate, latency = given["bandwidth"] / 8 * _GOODPUT, given.get("latency")
    if latency is not None:
        return Link(rate, latency)
    slower = [link for link in _published() if link.bytes_per_second <= rate]
    return max(slower, default=_published()[0])._replace(bytes_per_second=rate)


@functools.cache
def _published() -> tuple[Link, ...]:
    """Return the links of `conf/links.yaml`, the slowest first."""
    table: Mapping[str, Mapping[str, str]] = yaml.safe_load((conf_dir() / "links.yaml").read_text())
    links = [
        _link([rate, facts["latency"]])._replace(
            published=f"{facts['latency']} of {rate} ({facts['source']})"
        )
        for rate, facts in table.items()
    ]
    return tuple(sorted(links))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give a whole number from 1, such as 8.")
    return int(text)


_KEYS: Mapping[str, Callable[[str], object]] = {
    "per_node": _count,
    "inner": lambda text: _link(text.split("/")),
    "sites": _count,
    "between": lambda text: _link(text.split("/")),
}


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


def all_reduce(
    groups: Numbers, num_bytes: float, network: Network, algorithm: str, is_gpu: bool
) -> list[Round]:
    """Return the rounds of an all-reduce by the algorithm of a strategy's card."""
    if algorithm == "tree":
        return tree(groups, num_bytes)
    if algorithm == "ring" or not is_gpu:
        return ring(groups, num_bytes)
    exchanges = ring(groups, num_bytes), hierarchical(groups, num_bytes, network)
    return min(exchanges, key=network.seconds)


def _round(groups: Numbers, sources: Numbers, targets: Numbers, size: float, repeat: int) -> Round:
    number, sizes = int(groups.max()) + 1, np.full(sources.size, size)
    return Round(number, sources.ravel(), targets.ravel(), sizes, repeat=repeat)
