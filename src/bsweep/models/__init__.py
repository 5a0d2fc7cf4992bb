"""Models: one file for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bsweep.config import ModelConfig, resolve

if TYPE_CHECKING:
    from torch import nn


def build(config: ModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A freshly initialised model.

    For examples of `shape` (C, H, W) it maps images (B, C, H, W) to logits (B, num_classes); a language model maps
    tokens (B, T) to logits (B, T, num_classes).
    """
    model: nn.Module = resolve(config.builds)(config, num_classes=num_classes, shape=shape)
    return model
