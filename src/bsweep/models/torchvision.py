"""Torchvision's classifiers, built with newly initialised weights."""

from __future__ import annotations

from torch import nn

from bsweep.config.models import TorchvisionModelConfig
from bsweep.config.values import ConfigError
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.models import libraries


def build(config: TorchvisionModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    import_torchvision()
    from torchvision import models

    libraries.refuse_unknown(config, models.list_models(module=models))
    if shape[0] != 3:
        raise ConfigError(
            f"model=torchvision takes images of 3 channels, but these have {shape[0]}: use "
            "model=timm, most of whose models take other numbers, or other data."
        )
    with libraries.refused(config, shape):
        return libraries.tried(
            models.get_model(
                config.architecture, weights=None, num_classes=num_classes, **config.options
            ),
            num_classes,
            shape,
        )
