"""The links of a cluster that is simulated: their bandwidths, latencies and who shares them, as a
user describes them in words such as `25gbit,10us`.

A message between two workers crosses, at most, the link of a node and that of a site. All messages
of one round start together. Each link carries what all of them send through it, in both directions
at once, so the round takes as long as the busiest link, plus the latency.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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
S = TypeVar("S")
T = TypeVar("T")
_EXAMPLE = "25gbit,10us, or 100gbit,5us,per_node=8,inner=2400gbit/2us"
_REMEDY = (
    "Write one bandwidth in kbit, mbit, gbit or tbit and a latency in ns, us, ms or s, such as "
    f"{_EXAMPLE}."
)
_UNITS: Mapping[str, Mapping[str, float]] = {
    "bandwidth": {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12},
    "latency": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
}


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
        links = (self.link, self.inner, self.between)
        return tuple(dict.fromkeys(one.published for one in links if one.published))

    def seconds(self, messages: Messages | ToAll) -> float:
        """Return how long one round of messages takes until the last has arrived."""
        slowest, latency = 0.0, self.message_seconds * messages.most
        for groups, link in self._levels(messages):
            load, crosses = messages.load(groups)
            slowest = max(slowest, load / link.bytes_per_second)
            latency += link.latency_seconds * crosses
        of_host = self.byte_seconds * messages.load(np.arange(messages.number_of))[0]
        return slowest + of_host + latency

    def _levels(self, messages: Messages | ToAll) -> Iterator[tuple[Numbers, Link]]:
        """Yield for each level of links the group of each worker that shares one, and the link.

        A message crosses a level if its two ends are in different groups.
        """
        workers = np.arange(messages.number_of)
        nodes = workers // self.per_node
        yield nodes, self.link
        if self.per_node > 1:  # each worker has links of its own to the others of its node
            yield workers, self.inner
        if self.sites > 1:
            yield self._site_of(messages), self.between

    def _site_of(self, messages: Messages | ToAll) -> Numbers:
        """Return the site of each of the workers and servers between which messages are. Sites
        divide the workers, and the servers on further nodes.
        """
        workers, servers = messages.num_workers, messages.number_of - messages.num_workers
        of = [np.arange(count) * self.sites // max(1, count) for count in (workers, servers)]
        return np.concatenate(of)


@dataclass(frozen=True)
class Messages:
    """The messages of one round among `number_of` workers: `sizes` are the bytes from each of
    `sources` to the same place of `targets`.
    """

    number_of: int
    sources: Numbers
    targets: Numbers
    sizes: Array

    @property
    def num_workers(self) -> int:
        """The number of workers: all that send and get messages."""
        return self.number_of

    @property
    def most(self) -> int:
        """The most messages that one worker sends."""
        return int(np.bincount(self.sources).max())

    def load(self, groups: Numbers) -> tuple[float, bool]:
        """Return the most bytes that leave or enter one group of workers, and True if any message
        crosses the border of a group.
        """
        begin, end = groups[self.sources], groups[self.targets]
        crosses = begin != end
        sizes = np.where(crosses, self.sizes, 0.0)
        most = max(np.bincount(side, sizes).max() for side in (begin, end))
        return float(most), bool(crosses.any())


@dataclass(frozen=True)
class ToAll:
    """Messages from each of `sources` to each of `targets` among `number_of` workers and servers on
    further nodes, of which the first `num_workers` are workers. Source i sends the share j of its
    bytes `sizes[i]` to target j.
    """

    number_of: int
    num_workers: int
    sources: Numbers
    targets: Numbers
    sizes: Array
    shares: Array

    @property
    def most(self) -> int:
        """The most messages that one target gets, or one source sends."""
        return max(len(self.sources), len(self.targets))

    def load(self, groups: Numbers) -> tuple[float, bool]:
        """Return the most bytes that leave or enter one group, and True if any message crosses the
        border of a group.
        """
        number_of = int(groups.max()) + 1
        sent = np.bincount(groups[self.sources], self.sizes, number_of)
        taken = np.bincount(groups[self.targets], self.shares, number_of)
        leaving, entering = sent * (taken.sum() - taken), taken * (sent.sum() - sent)
        most = float(max(leaving.max(), entering.max()))
        return most, most > 0


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
    told = f"{option} {text or repr(text)}"
    given: dict[str, object] = {}
    plain: list[str] = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        key, is_pair, value = word.partition("=")
        if not is_pair:
            plain.append(word)
        elif key not in _KEYS:
            near = did_you_mean(key, [*_KEYS])
            raise ValueError(f"{told}: unknown word {key!r}.{near} Known: {', '.join(_KEYS)}.")
        elif key in given:
            raise ValueError(f"{told}: {key} is there twice. Give it once.")
        else:
            given[key] = _read(f"{told}: {word}", value, _KEYS[key])
    link = _read(told, plain, _link)
    found = Network(link, **given)  # type: ignore[arg-type]
    if (found.sites > 1) != (found.between.bytes_per_second < np.inf):
        raise ValueError(
            f"{told}: sites and between belong together, as in sites=4,between=1gbit/20ms."
        )
    if found.per_node > 1 and found.inner.bytes_per_second == np.inf:
        raise ValueError(f"{told}: say how workers of one node exchange, as in inner=2400gbit/2us.")
    if "inner" in given and "per_node" not in given:
        raise ValueError(f"{told}: inner is of workers of one node: give per_node=8, too.")
    return found


def _read(told: str, value: S, read: Callable[[S], T]) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{told}: {error}") from None


def _link(words: Sequence[str]) -> Link:
    """Return the link that words such as `25gbit` and `10us` describe."""
    given: dict[str, float] = {}
    for word in words:
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]+)", word.strip().lower())
        kind = next((one for one, units in _UNITS.items() if found and found[2] in units), "")
        if found is None or not kind or not float(found[1]) > 0:
            unit = re.sub("[^a-z]", "", word.lower())
            near = "" if kind else did_you_mean(unit, [one for of in _UNITS.values() for one in of])
            raise ValueError(f"{word} is not understood.{near} {_REMEDY}")
        if kind in given:
            raise ValueError(f"{word} is a second {kind}. {_REMEDY}")
        given[kind] = float(found[1]) * _UNITS[kind][found[2]]
    if "bandwidth" not in given:
        raise ValueError(f"the bandwidth is missing. {_REMEDY}")
    rate, latency = given["bandwidth"] / 8 * _GOODPUT, given.get("latency")
    if latency is not None:
        return Link(rate, latency)
    slower = [one for one in _listed() if one.bytes_per_second <= rate]
    return max(slower, default=_listed()[0])._replace(bytes_per_second=rate)


@functools.cache
def _listed() -> tuple[Link, ...]:
    """Return the links of `conf/links.yaml`, the slowest first."""
    table: Mapping[str, Mapping[str, str]] = yaml.safe_load((conf_dir() / "links.yaml").read_text())
    links = [
        _link([rate, of["latency"]])._replace(
            published=f"{of['latency']} of {rate} ({of['source']})"
        )
        for rate, of in table.items()
    ]
    return tuple(sorted(links))


def _link_of(text: str) -> Link:
    return _link(text.split("/"))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give a whole number from 1, such as 8.")
    return int(text)


_KEYS: Mapping[str, Callable[[str], object]] = {
    "per_node": _count,
    "inner": _link_of,
    "sites": _count,
    "between": _link_of,
}
