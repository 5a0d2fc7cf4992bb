"""A network of one's own, swept over batch sizes.

bsweep run model=own model.target=examples/small_network.py:build
model.options.width=16,32 local_batch=32,64
"""

from __future__ import annotations

from torch import nn


def build(num_classes: int, shape: tuple[int, ...], width: int = 32) -> nn.Module:
    """For images of `shape` (channels, height, width), logits of `num_classes`."""
    channels = shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 4 * 4, num_classes),
    )
