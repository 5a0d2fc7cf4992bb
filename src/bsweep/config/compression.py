"""The settings classes (cards) of the codecs, which make gradients smaller before workers exchange
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Point, clash
from bsweep.config.groups import CodecConfig
from bsweep.config.user_code import UserCode
from bsweep.config.values import Count, Density, Positive


class NoCompressionConfig(CodecConfig):
    name: Literal["none"]


class FP16Config(CodecConfig):
    name: Literal["fp16"]

    builds: ClassVar[str] = "bsweep.compression.fp16:FP16"
    summed_share: ClassVar[float | None] = 0.5

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if point.precision == "fp64":
            yield clash(point, "precision compression", "use only one of them.")


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
                f"compression.density={self.density:g} is never reached: the densities of the "
                f"first {len(self.warmup_densities)} epochs are compression.warmup_densities, and "
                f"epochs={point.epochs}: use more epochs, or fewer warm-up densities"
            )
        else:
            yield from super().warnings(point)


class TopKConfig(SparseConfig):
    name: Literal["topk"]

    builds: ClassVar[str] = "bsweep.compression.topk:TopK"


class DGCConfig(SparseConfig):
    name: Literal["dgc"]
    clip_norm: Positive | None

    builds: ClassVar[str] = "bsweep.compression.dgc:DGC"


class QSGDConfig(CodecConfig):
    name: Literal["qsgd"]
    bits: Literal[2, 4, 8]
    bucket_elements: Count

    builds: ClassVar[str] = "bsweep.compression.qsgd:QSGD"

    def payload_share(self, epochs: int) -> float:
        return self.bits / 32


class PowerSGDConfig(CodecConfig):
    name: Literal["powersgd"]
    rank: Count

    builds: ClassVar[str] = "bsweep.compression.powersgd:PowerSGD"


class OwnCodecConfig(UserCode, CodecConfig):
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
