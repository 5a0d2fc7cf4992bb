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
from bsweep.config.values import Count, Density, PathName, Positive


class NoCompressionConfig(CodecConfig):
    """Gradients travel as they are."""

    name: Literal["none"]

    summed_share: ClassVar[float | None] = 1.0


class FP16Config(CodecConfig):
    """Half precision on the wire."""

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
    """share of the elements that are sent"""
    warmup_densities: tuple[Density, ...] = ()
    """densities of the first epochs"""

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
        yield from super().warnings(point)


class TopKConfig(SparseConfig):
    """Top-k with error feedback (Stich et al., arXiv 1809.07599): the largest gradients travel, the
    rest is kept for later steps.
    """

    name: Literal["topk"]
    density: Density = 0.01

    builds: ClassVar[str] = "bsweep.compression.topk:TopK"


class DGCConfig(SparseConfig):
    """Deep Gradient Compression (Lin et al., arXiv 1712.01887): top-k with momentum correction; it
    applies the momentum instead of the optimizer. Weight decay, which the optimizer adds later, has
    no momentum.
    """

    name: Literal["dgc"]
    density: Density = 0.001
    """share of the gradient's elements that are sent, after the first epochs"""
    warmup_densities: tuple[Density, ...] = (0.25, 0.063, 0.015, 0.004)
    clip_norm: Positive | None = None
    """clip the global gradient norm; each worker clips its own at clip_norm / sqrt(workers)"""

    builds: ClassVar[str] = "bsweep.compression.dgc:DGC"


class QSGDConfig(CodecConfig):
    """QSGD (Alistarh et al., arXiv 1610.02132): stochastic rounding to a few levels of each
    bucket's norm; unbiased.
    """

    name: Literal["qsgd"]
    bits: Literal[2, 4, 8] = 8
    """2 | 4 | 8 per element, sign included"""
    bucket_elements: Count = 512
    """elements of the gradient that share one norm"""

    builds: ClassVar[str] = "bsweep.compression.qsgd:QSGD"

    def payload_share(self, epochs: int) -> float:
        return self.bits / 32 + 1 / self.bucket_elements  # and a norm for each bucket


class PowerSGDConfig(CodecConfig):
    """PowerSGD (Vogels et al., arXiv 1905.13727): each weight matrix's gradient as a product of two
    thin ones, summed exactly.
    """

    name: Literal["powersgd"]
    rank: Count = 2
    """columns of the two thin matrices; a larger rank is closer to the gradient and sends more"""

    builds: ClassVar[str] = "bsweep.compression.powersgd:PowerSGD"


class OwnCodecConfig(UserCode, CodecConfig):
    """A codec of your own: a callable takes (config, setting, **options) and returns a
    bsweep.compression.Codec.
    """

    name: Literal["own"]
    target: PathName
    """compression.target=mycodec.py:Codec or package.module:name"""

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
