"""Models have the published size; VGG-16 on the meta device, where its weights take no memory."""

from __future__ import annotations

import pytest
import torch

from bsweep import models
from bsweep.analysis.sharding import VGG16_LAYERS
from bsweep.config import VGG16Config


def vgg16(num_classes: int = 1000, in_channels: int = 3) -> torch.nn.Module:
    with torch.device("meta"):
        return models.build(VGG16Config("vgg16", dropout=0.25), num_classes=num_classes, shape=(in_channels, 32, 32))


@pytest.mark.parametrize("side", [32, 64, 224])
def test_vgg16_has_its_published_parameters_whatever_the_side(side: int) -> None:
    model = vgg16()
    assert sum(parameter.numel() for parameter in model.parameters()) == 138_357_544
    assert model(torch.empty(2, 3, side, side, device="meta")).shape == (2, 1000)
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [0.25, 0.25]


def test_vgg16_takes_other_channels_and_classes() -> None:
    model = vgg16(num_classes=10, in_channels=1)
    assert model(torch.empty(2, 1, 32, 32, device="meta")).shape == (2, 10)


def test_the_layer_table_of_the_sharding_model_is_vgg16s() -> None:
    layers: dict[str, int] = {}
    for name, parameter in vgg16().named_parameters():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + parameter.numel()
    assert tuple(layers.values()) == VGG16_LAYERS
