"""The settings classes (cards) of the codecs, which make gradients smaller before workers exchange
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.groups import CodecConfig
from bsweep.config.own import Own
from bsweep.config.point import Point
from bsweep.config.values import Count, Density, Positive


@dataclass(frozen=True, kw_only=True)
class NoCompressionConfig(CodecConfig):
    name: Literal["none"]


@dataclass(frozen=True, kw_only=True)
class FP16Config(CodecConfig):
    name: Literal["fp16"]

    builds: ClassVar[str] = "bsweep.compression.fp16:FP16"
    summed_share: ClassVar[float | None] = 0.5

    def problems(self, point: Point) -> Iterator[str]:
        if point.precision == "fp64":
            yield (
                "precision=fp64 with compression=fp16: the codec would round fp64 gradients to "
                "fp16. Use only one of them."
            )


@dataclass(frozen=True, kw_only=True)
class SparseConfig(CodecConfig):
    """The base class of the cards of codecs that send only the elements with the largest absolute
    values, from the gradients that a worker has summed up and not sent yet.
    """

    density: Density
    warmup_densities: tuple[Density, ...]

    def payload_share(self, epochs: int) -> float:
        warmup = self.warmup_densities[:epochs]
        mean = (sum(warmup) + self.density * (epochs - len(warmup))) / epochs
        return 2 * mean  # a value and its index

    def warnings(self, point: Point) -> Iterator[str]:
        if len(self.warmup_densities) >= point.epochs:
            yield (
                f"compression.density={self.density:g} is never reached, because "
                "compression.warmup_densities has one density for each epoch, "
                f"{len(self.warmup_densities)} in all, and epochs={point.epochs}: use more epochs "
                "or fewer warm-up densities"
            )
        else:
            yield from super().warnings(point)


@dataclass(frozen=True, kw_only=True)
class TopKConfig(SparseConfig):
    name: Literal["topk"]

    builds: ClassVar[str] = "bsweep.compression.topk:TopK"


@dataclass(frozen=True, kw_only=True)
class DGCConfig(SparseConfig):
    name: Literal["dgc"]
    clip_norm: Positive | None

    builds: ClassVar[str] = "bsweep.compression.dgc:DGC"


@dataclass(frozen=True, kw_only=True)
class QSGDConfig(CodecConfig):
    name: Literal["qsgd"]
    bits: Literal[2, 4, 8]
    bucket_elements: Count

    builds: ClassVar[str] = "bsweep.compression.qsgd:QSGD"

    def payload_share(self, epochs: int) -> float:
        return self.bits / 32


@dataclass(frozen=True, kw_only=True)
class PowerSGDConfig(CodecConfig):
    name: Literal["powersgd"]
    rank: Count

    builds: ClassVar[str] = "bsweep.compression.powersgd:PowerSGD"


@dataclass(frozen=True, kw_only=True)
class OwnCodecConfig(Own, CodecConfig):
    name: Literal["own"]

    builds: ClassVar[str] = "bsweep.compression:from_target"
    takes: ClassVar[tuple[str, ...]] = ("config", "setting")


AnyCompression = Annotated[
    NoCompressionConfig
    | FP16Config
    | TopKConfig
    | DGCConfig
    | QSGDConfig
    | PowerSGDConfig
    | OwnCodecConfig,
    Field(discriminator="name"),
]
