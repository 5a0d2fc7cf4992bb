"""The cards of the models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from bsweep.config.card import Point, clash
from bsweep.config.groups import ModelConfig
from bsweep.config.user_code import Options, UserCode
from bsweep.config.values import (
    ConfigError,
    Count,
    Fraction,
    Kind,
    PathName,
    Width,
    show,
    unreadable,
)
from bsweep.core.checksums import sha256_of


class ResNet18Config(ModelConfig):
    name: Literal["resnet18"]
    stem: Literal["imagenet", "cifar"]

    builds: ClassVar[str] = "bsweep.models.zoo:build_resnet18"
    block_names: ClassVar[tuple[str, ...]] = ("layer*",)
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_resnet18"
    has_batchnorm: ClassVar[bool] = True
    casts_images_first: ClassVar[bool] = True


class VGG16Config(ModelConfig):
    name: Literal["vgg16"]
    dropout: Fraction

    builds: ClassVar[str] = "bsweep.models.zoo:build_vgg16"
    block_names: ClassVar[tuple[str, ...]] = ("features", "classifier.*")
    tensor_plan: ClassVar[str] = "bsweep.models.zoo:tensor_plan_of_vgg16"
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_vgg16"
    casts_images_first: ClassVar[bool] = True
    divided: ClassVar[tuple[int, ...]] = (4096,)


class TinyCNNConfig(ModelConfig):
    """A network that looks at 7 x 7 pixels at a time and then takes a mean over the image.

    With images whose parts are larger, such as digits of 32 x 32 pixels, it stays at chance.
    """

    name: Literal["tiny_cnn"]
    width: Width

    builds: ClassVar[str] = "bsweep.models.zoo:build_tiny_cnn"
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_tiny_cnn"
    casts_images_first: ClassVar[bool] = True


class LlamaConfig(ModelConfig):
    name: Literal["llama_150m", "llama_tiny"]
    hidden_size: Width
    intermediate_size: Width
    num_layers: Width
    num_heads: Width
    vocabulary_size: Count | None

    builds: ClassVar[str] = "bsweep.models.llama:build"
    block_names: ClassVar[tuple[str, ...]] = ("blocks.*",)
    tensor_plan: ClassVar[str] = "bsweep.models.llama:tensor_plan"
    pieces: ClassVar[str] = "bsweep.models.llama:pieces"
    learns_from: ClassVar[Kind] = "text"

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if self.hidden_size % (2 * self.num_heads):
            remedy = "use a multiple of twice the number of heads, whose size must be even."
            yield clash(point, "model.hidden_size model.num_heads", remedy)

    @property
    def divided(self) -> tuple[int, ...]:
        return self.intermediate_size, self.num_heads

    def check_num_classes(self, num_classes: int) -> None:
        if self.vocabulary_size not in (None, num_classes):
            raise ValueError(
                f"model.vocabulary_size={self.vocabulary_size}, but the data have {num_classes} "
                "tokens: use model.vocabulary_size=null, or another data.tokenizer."
            )


class LibraryConfig(ModelConfig):
    """The base class of the cards of models that come from a library such as timm."""

    architecture: str
    options: Options
    weights: PathName | None = None
    """A file with pretrained weights; None for random ones."""

    weights_sha256: str | None = None  # identifies the file; `resolved` sets it

    changes_no_number: ClassVar[tuple[str, ...]] = ("weights",)  # its hash tells files apart

    has_batchnorm: ClassVar[bool | None] = None

    given: ClassVar[tuple[str, ...]]
    """Keyword arguments that users may not give as options, because bsweep sets them or another key
    stands for them.
    """

    def resolved(self) -> Self:
        if self.weights is None:
            return self
        path = Path(self.weights).expanduser().absolute()
        return replace(self, weights=str(path), weights_sha256=_sha256_of_weights(path))

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        for key in self.given:
            if key in self.options:
                yield (
                    f"model.options.{key}={show(self.options[key])}: leave it out. The data and "
                    "model.weights=FILE say it."
                )


@functools.cache  # a sweep trains with the file that was there when it began
def _sha256_of_weights(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise ConfigError(f"model.weights={unreadable(path, error)} Name a local file.") from None


class TimmConfig(LibraryConfig):
    name: Literal["timm"]

    builds: ClassVar[str] = "bsweep.models.library:build_timm"
    needs: ClassVar[tuple[str, ...]] = ("timm",)
    given: ClassVar[tuple[str, ...]] = ("pretrained", "num_classes", "in_chans", "checkpoint_path")


class TorchvisionModelConfig(LibraryConfig):
    name: Literal["torchvision"]

    builds: ClassVar[str] = "bsweep.models.library:build_torchvision"
    given: ClassVar[tuple[str, ...]] = ("weights", "num_classes", "weights_backbone")


class OwnModelConfig(UserCode, ModelConfig):
    name: Literal["own"]
    blocks: tuple[str, ...]

    builds: ClassVar[str] = "bsweep.models.own:build"
    tensor_plan: ClassVar[str] = "bsweep.models.own:tensor_plan"
    takes: ClassVar[tuple[str, ...]] = ("num_classes", "shape")
    learns_from: ClassVar[Kind | None] = None
    has_batchnorm: ClassVar[bool | None] = None

    @property
    def names_of_blocks(self) -> tuple[str, ...]:
        return self.blocks


class ProgramModelConfig(ModelConfig):
    """The card of the model of the user's own program; see `bsweep.config.programs`."""

    name: Literal["program"]

    learns_from: ClassVar[Kind | None] = None


AnyModel = Annotated[
    ResNet18Config
    | VGG16Config
    | TinyCNNConfig
    | LlamaConfig
    | TimmConfig
    | TorchvisionModelConfig
    | OwnModelConfig
    | ProgramModelConfig,
    Field(discriminator="name"),
]
