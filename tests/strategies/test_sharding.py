"""Which server holds what: every element once, and the shares that are known for VGG-16."""

from __future__ import annotations

import functools
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.numerics import optim
from bsweep.numerics.vector import Shard, Slice, Vector, layout, ranges
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
    shards = sharding.shards(
        slices, num_servers, strategy(f"strategy.sharding={name}", "strategy.chunk_bytes=64")
    )
    assert len(shards) == num_servers
    owners = torch.zeros(slices[-1].stop, dtype=torch.int64)
    for shard in shards:
        for start, stop in ranges(shard):
            owners[start:stop] += 1
        assert sum(stop - start for start, stop in ranges(shard)) == sum(
            p.num_elements for p in shard
        )
        assert [part.is_matrix for part in shard] == sorted(
            (part.is_matrix for part in shard), reverse=True
        )
    assert bool((owners == 1).all())


def test_layers_stay_whole_and_keep_their_shapes() -> None:
    slices = layout(small_model())
    for name in ("layer", "layer_round_robin"):
        shards = sharding.shards(slices, 3, strategy(f"strategy.sharding={name}"))
        assert sorted(
            (part for shard in shards for part in shard), key=lambda part: part.start
        ) == list(slices)
        for shard in shards:
            layers = {part.name.rpartition(".")[0] for part in shard}
            assert {part.name for part in shard} == {
                part.name for part in slices if part.name.rpartition(".")[0] in layers
            }


def test_round_robin_follows_the_models_order() -> None:
    """Not the vector's, in which a BatchNorm's two vectors come after all matrices."""
    shards = sharding.shards(
        layout(small_model()), 4, strategy("strategy.sharding=layer_round_robin")
    )
    assert [{part.name.partition(".")[0] for part in shard} for shard in shards] == [
        {"0"},
        {"1"},
        {"2"},
        {"4"},
    ]


def test_equal_parts_differ_by_one_element_at_most() -> None:
    held = sizes(sharding.shards(layout(small_model()), 7, strategy()))
    assert max(held) - min(held) <= 1


@pytest.mark.parametrize("name", ["layer", "layer_round_robin"])
def test_more_servers_than_layers_is_an_error_with_a_remedy(name: str) -> None:
    with pytest.raises(ValueError, match=r"num_servers=5 .*only 4 servers .*sharding=memory"):
        sharding.shards(layout(small_model()), 5, strategy(f"strategy.sharding={name}"))


def test_a_server_without_a_chunk_is_an_error_with_a_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"num_servers=64 .*Use fewer servers, or strategy\.sharding=memory"
    ):
        sharding.shards(layout(small_model()), 64, strategy("strategy.sharding=hashed_chunks"))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lars"])
@pytest.mark.parametrize("name", SHARDINGS)
def test_shards_are_updated_like_their_parts_of_the_whole(name: str, optimizer: str) -> None:
    """Also those without matrices, or without vectors, where only matrices decay."""
    if optimizer == "lars" and name in ("memory", "hashed_chunks"):
        return  # needs whole layers
    config = compose(
        "local_batch=8",
        f"optimizer={optimizer}",
        "optimizer.weight_decay=0.1",
        "optimizer.lr=0.1",
        "optimizer.decay_norm_and_bias=false",
    )
    vector = Vector(small_model().double())
    servers = strategy(f"strategy.sharding={name}", "strategy.chunk_bytes=64")
    held = sharding.shards(vector.slices, 4, servers)
    shards = [Shard(slices, torch.float64) for slices in held]
    vector.gradients.copy_(torch.randn(vector.gradients.shape, dtype=torch.float64))
    for shard, slices in zip(shards, held, strict=True):
        shard.parameters.copy_(torch.cat([vector.parameters[p.start : p.stop] for p in slices]))
        shard.gradients.copy_(torch.cat([vector.gradients[p.start : p.stop] for p in slices]))
    optimizers = [optim.build(config.optimizer, flat) for flat in (vector, *shards)]
    before = vector.parameters.clone()
    for _ in range(3):
        for each in optimizers:
            each.step()
    assert float((vector.parameters - before).abs().max()) > 1e-3, "the weights must have moved"
    for shard, slices in zip(shards, held, strict=True):
        expected = torch.cat([vector.parameters[p.start : p.stop] for p in slices])
        torch.testing.assert_close(shard.parameters, expected, rtol=1e-12, atol=1e-14)


def test_a_run_is_checked_without_its_weights() -> None:
    def run(num_servers: int) -> RunConfig:
        servers = (
            "strategy=parameter_server",
            "strategy.sharding=layer",
            f"strategy.num_servers={num_servers}",
        )
        return compose("local_batch=8", "model=tiny_cnn", *servers)

    sharding.check_sharding(run(2), num_classes=10, shape=(3, 32, 32))
    with pytest.raises(ValueError, match="only 3 servers would hold"):
        sharding.check_sharding(run(100), num_classes=10, shape=(3, 32, 32))
