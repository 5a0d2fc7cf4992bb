"""Which server holds what: every element once, and the shares that are known for VGG-16."""

from __future__ import annotations

import functools
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.numerics.vector import Slice, layout, ranges
from bsweep.strategies import sharding
from tests.support.running import compose

SHARDINGS = get_args(get_type_hints(ParameterServerConfig)["sharding"])


def strategy(*overrides: str) -> ParameterServerConfig:
    config = compose("local_batch=8", "strategy=parameter_server", *overrides).strategy
    assert isinstance(config, ParameterServerConfig)
    return config


@functools.cache
def vgg16() -> tuple[Slice, ...]:
    import_torchvision()
    from torchvision.models import vgg16

    with torch.device("meta"):
        return layout(vgg16())


def small_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 7, 3), nn.Flatten(), nn.Linear(28, 10)
    )


def sizes(shards: tuple[tuple[Slice, ...], ...]) -> list[int]:
    return [sum(part.num_elements for part in shard) for shard in shards]


@pytest.mark.parametrize(
    ("name", "percents"),
    [
        ("layer", (74.3, 74.3, 74.3)),
        ("layer_round_robin", (82.1, 76.4, 74.7)),
        ("memory", (50.0, 25.0, 12.5)),
        ("hashed_chunks", (50.1, 26.5, 14.0)),
    ],
)
def test_largest_share_of_vgg16(name: str, percents: tuple[float, ...]) -> None:
    """notes/methods.md, for 2, 4 and 8 servers."""
    found = []
    for num_servers in (2, 4, 8):
        held = sizes(sharding.shards(vgg16(), num_servers, strategy(f"strategy.sharding={name}")))
        assert sum(held) == 138_357_544
        found.append(round(100 * max(held) / sum(held), 1))
    assert tuple(found) == percents


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("num_servers", [1, 2, 3, 4])
def test_every_element_has_one_server(name: str, num_servers: int) -> None:
    slices = layout(small_model())
    how = strategy(f"strategy.sharding={name}", "strategy.chunk_bytes=64")
    shards = sharding.shards(slices, num_servers, how)
    assert len(shards) == num_servers
    owners = torch.zeros(slices[-1].stop, dtype=torch.int64)
    for shard in shards:
        for start, stop in ranges(shard):
            owners[start:stop] += 1
        num_elements = sum(part.num_elements for part in shard)
        assert sum(stop - start for start, stop in ranges(shard)) == num_elements
        is_matrix = [part.is_matrix for part in shard]
        assert is_matrix == sorted(is_matrix, reverse=True)
    assert bool((owners == 1).all())


def test_layers_stay_whole_and_keep_their_shapes() -> None:
    slices = layout(small_model())
    for name in ("layer", "layer_round_robin"):
        shards = sharding.shards(slices, 3, strategy(f"strategy.sharding={name}"))
        parts = [part for shard in shards for part in shard]
        assert sorted(parts, key=lambda part: part.start) == list(slices)
        layers = [{part.name.rpartition(".")[0] for part in shard} for shard in shards]
        assert sum(map(len, layers)) == len(set().union(*layers)), "no layer has two servers"


def test_round_robin_follows_the_models_order() -> None:
    """Not the vector's, in which a BatchNorm's two vectors come after all matrices."""
    servers = strategy("strategy.sharding=layer_round_robin")
    shards = sharding.shards(layout(small_model()), 4, servers)
    layers = [{part.name.partition(".")[0] for part in shard} for shard in shards]
    assert layers == [{"0"}, {"1"}, {"2"}, {"4"}]


@pytest.mark.parametrize(
    ("name", "num_servers", "said"),
    [
        ("layer", 5, r"num_servers=5 .*only 4 servers .*sharding=memory"),
        ("layer_round_robin", 5, r"num_servers=5 .*only 4 servers .*sharding=memory"),
        ("hashed_chunks", 64, r"num_servers=64 .*fewer servers, or strategy\.sharding=memory"),
    ],
)
def test_a_server_without_parameters_is_an_error_with_a_remedy(
    name: str, num_servers: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        sharding.shards(layout(small_model()), num_servers, strategy(f"strategy.sharding={name}"))
