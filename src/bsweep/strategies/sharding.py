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
    shards: list[list[Slice]] = [[] for _ in range(num_servers)]
    for server, piece in _assign(slices, num_servers, strategy):
        shards[server].append(piece)
    if not all(shards):
        num_busy = sum(1 for shard in shards if shard)
        raise ValueError(
            f"strategy.num_servers={num_servers} with strategy.sharding={strategy.sharding}: only "
            f"{counted(num_busy, 'server')} would hold parameters. Use fewer servers, or "
            "strategy.sharding=memory, which gives each equally many."
        )
    return tuple(tuple(sorted(shard, key=lambda piece: piece.start)) for shard in shards)


def _assign(
    slices: Sequence[Slice], num_servers: int, strategy: ParameterServerConfig
) -> Iterator[tuple[int, Slice]]:
    """Assign the slices of the parameter vector, whole or cut, to servers, as `strategy.sharding`
    says.

    Return pairs of a server's number and a slice that this server holds.
    """
    if strategy.holds_layers:
        whole = layers(slices)
        sizes = [sum(tensor.num_elements for tensor in layer) for layer in whole]
        servers = strategy.servers_of_layers(sizes, num_servers)
        pairs = zip(servers, whole, strict=True)
        return ((server, tensor) for server, layer in pairs for tensor in layer)
    if strategy.sharding == "memory":
        return _equal_parts(slices, num_servers)
    return _hashed(slices, num_servers, max(1, strategy.chunk_bytes // _ELEMENT_BYTES))


def layers(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Return a list of slices for each layer of the model, in the model's order.

    The slices of a layer are a module's own tensors, such as weight and bias.
    """
    by_module: dict[str, list[Slice]] = {}
    for tensor in sorted(slices, key=lambda tensor: tensor.index):
        by_module.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return list(by_module.values())


def _equal_parts(slices: Sequence[Slice], num_servers: int) -> Iterator[tuple[int, Slice]]:
    size = slices[-1].stop
    borders = [size * server // num_servers for server in range(num_servers + 1)]
    for server, (start, stop) in enumerate(itertools.pairwise(borders)):
        for tensor in slices:
            if tensor.start < stop and start < tensor.stop:
                yield server, _cut(tensor, max(start, tensor.start), min(stop, tensor.stop))


def _hashed(slices: Sequence[Slice], num_servers: int, chunk: int) -> Iterator[tuple[int, Slice]]:
    """Cut each slice into chunks, and assign each chunk to a server by a hash of the chunk's key.

    Yield pairs of a server's number and a chunk that this server holds.

    The key is made from the tensor's index and the chunk's number, as BytePS does by default (djb2
    of a decimal key).
    """
    for tensor in slices:
        for number, start in enumerate(range(tensor.start, tensor.stop, chunk)):
            piece = _cut(tensor, start, min(start + chunk, tensor.stop))
            yield _djb2(str((tensor.index << 16) + number)) % num_servers, piece


def _djb2(text: str) -> int:
    value = 5381
    for character in text.encode():
        value = (value * 33 + character) % 2**64
    return value


def _cut(tensor: Slice, start: int, stop: int) -> Slice:
    if (start, stop) == (tensor.start, tensor.stop):
        return tensor
    return replace(tensor, start=start, stop=stop, shape=(stop - start,))
