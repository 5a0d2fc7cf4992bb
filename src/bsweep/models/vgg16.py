"""VGG-16 (Simonyan and Zisserman, arXiv 1409.1556) as torchvision has it, for images of any number
of channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import nn

from bsweep.config.models import VGG16Config
from bsweep.core.torchvision_shim import import_torchvision

if TYPE_CHECKING:
    from bsweep.models.plans import Plan


def build(config: VGG16Config, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a VGG-16 for images of 32x32 or more.

    The last maps are pooled to 7x7, so the parameters do not depend on the size of the images.
    """
    import_torchvision()
    from torchvision.models import vgg16

    model: Any = vgg16(num_classes=num_classes, dropout=config.dropout)
    if shape[0] != 3:
        first = model.features[0] = nn.Conv2d(shape[0], 64, kernel_size=3, padding=1)
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(model.features[0].bias)
    return cast(nn.Module, model)


def tensor_plan(model: nn.Module) -> Plan:
    """Return the plan by which workers share the two large linear layers, which have 87 % of the
    parameters.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    from bsweep.models.plans import ShareOfDropout

    return {
        "classifier.0": ColwiseParallel(),
        "classifier.2": ShareOfDropout(),
        "classifier.3": RowwiseParallel(),
    }


def pieces(model: nn.Module) -> list[tuple[str, nn.Module]]:
    vgg: Any = model
    return [
        *((f"features.{name}", layer) for name, layer in vgg.features.named_children()),
        ("avgpool", nn.Sequential(vgg.avgpool, nn.Flatten())),
        *((f"classifier.{name}", layer) for name, layer in vgg.classifier.named_children()),
    ]
