"""ResNet-18 (He et al., arXiv 1512.03385) as torchvision has it, with a choice of its first layers
(stem).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from bsweep.config.models import ResNet18Config
from bsweep.core.torchvision_shim import import_torchvision


def build(config: ResNet18Config, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return torchvision's ResNet-18 with one of two choices of the first layers (stem): the
    published one (7x7, stride 2, max-pool), or one that does not shrink 32x32 images (3x3, stride
    1, no pool).
    """
    import_torchvision()
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=num_classes)
    in_channels = shape[0]
    if config.stem == "cifar":
        model.conv1 = nn.Conv2d(in_channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif in_channels != 3:
        model.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    else:
        return model
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def pieces(model: nn.Module) -> list[tuple[str, nn.Module]]:
    resnet: Any = model
    stem = nn.Sequential(resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
    layers = ("layer1", "layer2", "layer3", "layer4")
    return [
        ("conv1", stem),
        *(
            (f"{layer}.{name}", block)
            for layer in layers
            for name, block in getattr(resnet, layer).named_children()
        ),
        ("fc", nn.Sequential(resnet.avgpool, nn.Flatten(), resnet.fc)),
    ]
