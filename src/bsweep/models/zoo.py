"""The models that bsweep ships for images: ResNet-18 (He et al., arXiv 1512.03385) and VGG-16
(Simonyan and Zisserman, arXiv 1409.1556) as torchvision has them, and a small convolutional network
without BatchNorm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.config.models import ResNet18Config, TinyCNNConfig, VGG16Config
from bsweep.core.torchvision_shim import import_torchvision

if TYPE_CHECKING:
    from bsweep.models.plans import Plan


def build_resnet18(
    config: ResNet18Config, *, num_classes: int, shape: tuple[int, ...]
) -> nn.Module:
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


def pieces_of_resnet18(model: nn.Module) -> list[tuple[str, nn.Module]]:
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


def build_vgg16(config: VGG16Config, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
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


def tensor_plan_of_vgg16(model: nn.Module) -> Plan:
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


def pieces_of_vgg16(model: nn.Module) -> list[tuple[str, nn.Module]]:
    vgg: Any = model
    return [
        *((f"features.{name}", layer) for name, layer in vgg.features.named_children()),
        ("avgpool", nn.Sequential(vgg.avgpool, nn.Flatten())),
        *((f"classifier.{name}", layer) for name, layer in vgg.classifier.named_children()),
    ]


def build_tiny_cnn(config: TinyCNNConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    return TinyCNN(config.width, num_classes=num_classes, in_channels=shape[0])


class TinyCNN(nn.Module):
    def __init__(self, width: int, *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, num_classes)."""
        x = F.relu(self.conv1(images))
        x = F.relu(self.conv2(x))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def pieces_of_tiny_cnn(model: nn.Module) -> list[tuple[str, nn.Module]]:
    tiny = cast(TinyCNN, model)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), tiny.head)
    return [
        ("conv1", nn.Sequential(tiny.conv1, nn.ReLU())),
        ("conv2", nn.Sequential(tiny.conv2, nn.ReLU())),
        ("head", pooled),
    ]
