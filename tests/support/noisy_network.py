"""Small networks with BatchNorm, for runs that compare what is remembered beside the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network that remembers statistics of batches, and drops outputs at random."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, kernel_size=3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * (shape[1] - 2) * (shape[2] - 2), num_classes),
    )


def layered(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network of five pieces, two of which have no matrices, that drops nothing."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, kernel_size=3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, kernel_size=3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * (shape[1] - 4) * (shape[2] - 4), num_classes),
    )


class Widths(nn.Module):
    """The layered network, which remembers the bytes of an element of its first two layers."""

    widths: Tensor

    def __init__(self, num_classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layered(num_classes, shape).children())
        self.register_buffer("widths", torch.zeros(2, dtype=torch.int64))
        for layer in (self.layers[0], self.layers[1]):
            layer.register_forward_hook(self._see)

    def _see(self, layer: nn.Module, given: object, outputs: Tensor) -> None:
        self.widths[int(isinstance(layer, nn.BatchNorm2d))] = next(
            layer.parameters()
        ).element_size()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits
