"""A small convolutional network without BatchNorm.

Its gradient is a plain mean over examples, no matter which worker computes which examples.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.config.models import TinyCNNConfig


def build(config: TinyCNNConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
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


def pieces(model: nn.Module) -> list[tuple[str, nn.Module]]:
    tiny = cast(TinyCNN, model)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), tiny.head)
    return [
        ("conv1", nn.Sequential(tiny.conv1, nn.ReLU())),
        ("conv2", nn.Sequential(tiny.conv2, nn.ReLU())),
        ("head", pooled),
    ]
