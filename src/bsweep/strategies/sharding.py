"""The division of a model's parameters among the parameter servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.core.words import counted

if TYPE_CHECKING:
    from bsweep.numerics.vector import Slice

_ELEMENT_BYTES = 4  # `chunk_bytes` assumes fp32, whatever type is sent


def check_sharding(config: RunConfig, num_classes: int, shape: tuple[int, ...]) -> None:
    """Check that every parameter server of a run would hold some of the model's parameters.

    Raises:
        ValueError: If a server would hold nothing.
    """
    if isinstance(config.strategy, ParameterServerConfig) and config.num_shards > 1:
        from bsweep import models
        from bsweep.numerics.vector import layout

        shards(
            layout(models.outlined(config.model, num_classes, shape)),
            config.num_shards,
            config.strategy,
        )


def shards(
    slices: Sequence[Slice], num_servers: int, strategy: ParameterServerConfig
) -> tuple[tuple[Slice, ...], ...]:
    """Return, for each server, the slices of the model's parameter vector that this server holds.

    Each parameter has exactly one server. Slices may be cut; they are in the vector's order.

    Raises:
        ValueError: If a server would hold nothing.
    """
    held: list[list[Slice]] = [[] for _ in range(num_servers)]
    for server, part in _assign(slices, num_servers, strategy):
        held[server].append(part)
    if not all(held):
        num_busy = sum(1 for parts in held if parts)
        raise ValueError(
            f"strategy.num_servers={num_servers} with strategy.sharding={strategy.sharding}: only "
            f"{counted(num_busy, 'server')} would hold parameters. Use fewer servers, or "
            "strategy.sharding=memory, which gives each equally many."
        )
    return tuple(tuple(sorted(parts, key=lambda part: part.start)) for parts in held)


def _assign(
    slices: Sequence[Slice], num_servers: int, strategy: ParameterServerConfig
) -> Iterator[tuple[int, Slice]]:
    """Assign the slices of the parameter vector, whole or cut, to servers, as `strategy.sharding`
    says.

    Return pairs of a server's number and a slice that this server holds.
    """
    match strategy.sharding:
        case "layer":
            return _largest_first(layers(slices), num_servers)
        case "layer_round_robin":
            return (
                (number % num_servers, part)
                for number, layer in enumerate(layers(slices))
                for part in layer
            )
        case "memory":
            return _equal_parts(slices, num_servers)
        case "hashed_chunks":
            return _hashed(slices, num_servers, max(1, strategy.chunk_bytes // _ELEMENT_BYTES))


def layers(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Return a list of slices for each layer of the model, in the model's order.

    The slices of a layer are a module's own tensors, such as weight and bias.
    """
    found: dict[str, list[Slice]] = {}
    for part in sorted(slices, key=lambda part: part.index):
        found.setdefault(part.name.rpartition(".")[0], []).append(part)
    return list(found.values())


def _largest_first(layers: list[list[Slice]], num_servers: int) -> Iterator[tuple[int, Slice]]:
    """Assign whole layers to servers, from the largest to the smallest, each to the server that
    holds the fewest elements so far.

    Yield pairs of a server's number and a slice that this server holds.
    """
    loads = [0] * num_servers
    for layer in sorted(layers, key=_size, reverse=True):
        server = loads.index(min(loads))
        loads[server] += _size(layer)
        yield from ((server, part) for part in layer)


def _equal_parts(slices: Sequence[Slice], num_servers: int) -> Iterator[tuple[int, Slice]]:
    size = slices[-1].stop
    borders = [size * server // num_servers for server in range(num_servers + 1)]
    for server, (start, stop) in enumerate(itertools.pairwise(borders)):
        for part in slices:
            if part.start < stop and start < part.stop:
                yield server, _cut(part, max(start, part.start), min(stop, part.stop))


def _hashed(slices: Sequence[Slice], num_servers: int, chunk: int) -> Iterator[tuple[int, Slice]]:
    """Cut each slice into chunks, and assign each chunk to a server by a hash of the chunk's key.

    Yield pairs of a server's number and a chunk that this server holds.

    The key is made from the tensor's index and the chunk's number, as BytePS does by default (djb2
    of a decimal key).
    """
    for part in slices:
        for number, start in enumerate(range(part.start, part.stop, chunk)):
            key = (part.index << 16) + number
            yield _djb2(str(key)) % num_servers, _cut(part, start, min(start + chunk, part.stop))


def _djb2(text: str) -> int:
    value = 5381
    for character in text.encode():
        value = (value * 33 + character) % 2**64
    return value


def _cut(part: Slice, start: int, stop: int) -> Slice:
    if (start, stop) == (part.start, part.stop):
        return part
    return replace(part, start=start, stop=stop, shape=(stop - start,))


def _size(layer: Sequence[Slice]) -> int:
    return sum(part.num_elements for part in layer)
