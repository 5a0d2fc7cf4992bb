"""Models by name: one file and one line here for each."""

from __future__ import annotations

from torch import nn

from bsweep.config import AnyModel, ResNet18Config, TinyCNNConfig, VGG16Config
from bsweep.models import resnet18, tiny_cnn, vgg16


def build(config: AnyModel, *, num_classes: int, in_channels: int) -> nn.Module:
    """A freshly initialised model that maps images (N, in_channels, H, W) to logits (N, num_classes)."""
    match config:
        case ResNet18Config():
            return resnet18.build(config.stem, num_classes=num_classes, in_channels=in_channels)
        case VGG16Config():
            return vgg16.build(config.dropout, num_classes=num_classes, in_channels=in_channels)
        case TinyCNNConfig():
            return tiny_cnn.TinyCNN(config.width, num_classes=num_classes, in_channels=in_channels)
