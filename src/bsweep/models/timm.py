"""The models of the library timm, built with newly initialised weights."""

from __future__ import annotations

from torch import nn

from bsweep.config.models import TimmConfig
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.models import libraries


def build(config: TimmConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    import_torchvision()  # timm imports it
    import timm

    libraries.refuse_unknown(config, timm.list_models())
    with libraries.refused(config, shape):
        return libraries.tried(
            timm.create_model(
                config.architecture,
                pretrained=False,
                num_classes=num_classes,
                in_chans=shape[0],
                **config.options,
            ),
            num_classes,
            shape,
        )
