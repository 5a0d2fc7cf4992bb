"""Models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count


@dataclass(frozen=True, kw_only=True)
class ResNet18Config(Card):
    name: Literal["resnet18"]
    stem: Literal["imagenet", "cifar"]


@dataclass(frozen=True, kw_only=True)
class VGG16Config(Card):
    name: Literal["vgg16"]
    dropout: Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class TinyCNNConfig(Card):
    name: Literal["tiny_cnn"]
    width: Count


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Card):
    name: Literal["llama_150m", "llama_tiny"]
    hidden_size: Count
    intermediate_size: Count
    num_layers: Count
    num_heads: Count
    vocabulary_size: Count | None


AnyModel = Annotated[ResNet18Config | VGG16Config | TinyCNNConfig | LlamaConfig, Field(discriminator="name")]
