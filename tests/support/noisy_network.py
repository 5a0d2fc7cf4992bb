"""Small networks with BatchNorm, for runs that compare what is remembered beside the weights."""

from __future__ import annotations

from torch import nn


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
