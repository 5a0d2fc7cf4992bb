"""Models by name: one file and one line here for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bsweep.config import AnyModel, LlamaConfig, ResNet18Config, TinyCNNConfig, VGG16Config

if TYPE_CHECKING:
    from torch import nn


def check(config: AnyModel, num_classes: int) -> None:
    """Raises ValueError if the model was configured for another vocabulary than that of the data."""
    if isinstance(config, LlamaConfig) and config.vocabulary_size not in (None, num_classes):
        raise ValueError(
            f"model.vocabulary_size={config.vocabulary_size}, but the vocabulary of the data has {num_classes} tokens: "
            "use model.vocabulary_size=null, which takes the data's, or another data.tokenizer."
        )


def build(config: AnyModel, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A freshly initialised model.

    For examples of `shape` (C, H, W) it maps images (B, C, H, W) to logits (B, num_classes); a language model maps
    tokens (B, T) to logits (B, T, num_classes).
    """
    from bsweep.models import llama, resnet18, taps, tiny_cnn, vgg16  # here, for `check` needs no torch

    in_channels = shape[0]
    match config:
        case ResNet18Config():
            return taps.trim(resnet18.build(config.stem, num_classes=num_classes, in_channels=in_channels))
        case VGG16Config():
            return vgg16.build(config.dropout, num_classes=num_classes, in_channels=in_channels)
        case TinyCNNConfig():
            return tiny_cnn.TinyCNN(config.width, num_classes=num_classes, in_channels=in_channels)
        case LlamaConfig():
            return llama.Llama(config, vocabulary_size=num_classes)
