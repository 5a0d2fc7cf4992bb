"""Codecs: what of a gradient travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, Density, Positive


@dataclass(frozen=True, kw_only=True)
class NoCompressionConfig(Card):
    name: Literal["none"]


@dataclass(frozen=True, kw_only=True)
class FP16Config(Card):
    name: Literal["fp16"]


@dataclass(frozen=True, kw_only=True)
class TopKConfig(Card):
    name: Literal["topk"]
    density: Density
    warmup_densities: tuple[Density, ...]


@dataclass(frozen=True, kw_only=True)
class DGCConfig(Card):
    name: Literal["dgc"]
    density: Density
    warmup_densities: tuple[Density, ...]
    clip_norm: Positive | None


@dataclass(frozen=True, kw_only=True)
class QSGDConfig(Card):
    name: Literal["qsgd"]
    bits: Literal[2, 4, 8]
    bucket_elements: Count


@dataclass(frozen=True, kw_only=True)
class TernGradConfig(Card):
    name: Literal["terngrad"]
    clip_sigmas: Positive | None


@dataclass(frozen=True, kw_only=True)
class SignSGDConfig(Card):
    name: Literal["signsgd"]


@dataclass(frozen=True, kw_only=True)
class PowerSGDConfig(Card):
    name: Literal["powersgd"]
    rank: Count


AnyCompression = Annotated[
    NoCompressionConfig
    | FP16Config
    | TopKConfig
    | DGCConfig
    | QSGDConfig
    | TernGradConfig
    | SignSGDConfig
    | PowerSGDConfig,
    Field(discriminator="name"),
]
