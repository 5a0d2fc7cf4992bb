"""The cards of the models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from bsweep.config.card import Point, clash
from bsweep.config.groups import ModelConfig
from bsweep.config.user_code import Keywords, Options, UserCode
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
    """ResNet-18 (He et al., arXiv 1512.03385) from torchvision."""

    name: Literal["resnet18"]
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """imagenet: 7x7 stride 2 and max-pool, as published | cifar: 3x3, no max-pool"""

    builds: ClassVar[str] = "bsweep.models.zoo:build_resnet18"
    block_names: ClassVar[tuple[str, ...]] = ("layer*",)
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_resnet18"
    has_batchnorm: ClassVar[bool] = True
    casts_images_first: ClassVar[bool] = True


class VGG16Config(ModelConfig):
    """VGG-16 (Simonyan and Zisserman, arXiv 1409.1556) from torchvision: one layer has 74 % of its
    parameters.
    """

    name: Literal["vgg16"]
    dropout: Fraction = 0.5
    """probability with which training sets a value of the classifier to 0"""

    builds: ClassVar[str] = "bsweep.models.zoo:build_vgg16"
    block_names: ClassVar[tuple[str, ...]] = ("features", "classifier.*")
    tensor_plan: ClassVar[str] = "bsweep.models.zoo:tensor_plan_of_vgg16"
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_vgg16"
    casts_images_first: ClassVar[bool] = True
    divided: ClassVar[tuple[int, ...]] = (4096,)


class TinyCNNConfig(ModelConfig):
    """Two convolutions and a linear layer without BatchNorm, for equal results of all worker
    counts: learns the digits only in their own size, with data.side=8 data.crop_padding=0
    optimizer.lr=0.05. It looks at 7 x 7 pixels at a time and then takes a mean.
    """

    name: Literal["tiny_cnn"]
    width: Width = 8
    """channels"""

    builds: ClassVar[str] = "bsweep.models.zoo:build_tiny_cnn"
    pieces: ClassVar[str] = "bsweep.models.zoo:pieces_of_tiny_cnn"
    casts_images_first: ClassVar[bool] = True


class LlamaConfig(ModelConfig):
    """The base class of the cards of models with the layers of Llama (arXiv 2302.13971)."""

    hidden_size: Width
    """values that represent a token between layers"""
    intermediate_size: Width
    """of the SwiGLU MLP"""
    num_layers: Width
    """transformer layers"""
    num_heads: Width
    """attention heads of each layer"""
    vocabulary_size: Count | None = None
    """null: that of the data; bsweep refuses any other number"""

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


class Llama150MConfig(LlamaConfig):
    """The 150M language model of OpenDiLoCo (arXiv 2407.07852), built like Llama (arXiv
    2302.13971); for data=text.
    """

    name: Literal["llama_150m"]
    hidden_size: Width = 1024
    intermediate_size: Width = 2688
    num_layers: Width = 12
    num_heads: Width = 16


class LlamaTinyConfig(LlamaConfig):
    """A language model with the same layers as llama_150m that trains in seconds on a CPU; for
    data=text.
    """

    name: Literal["llama_tiny"]
    hidden_size: Width = 64
    intermediate_size: Width = 176
    num_layers: Width = 2
    num_heads: Width = 4


class LibraryConfig(ModelConfig):
    """The base class of the cards of models that come from a library such as timm."""

    architecture: str
    """model.architecture=resnet50"""
    options: Options = field(default_factory=Keywords)
    """its keyword arguments: 'model.options={dropout: 0.3}'"""
    weights: PathName | None = None
    """file with pretrained weights (a state dict); another number of classes gets a new classifier
    """
    weights_sha256: str | None = None  # of the file, by `with_fingerprints`

    internal: ClassVar[tuple[str, ...]] = ("weights_sha256",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("weights",)  # its hash tells files apart

    has_batchnorm: ClassVar[bool | None] = None

    given: ClassVar[tuple[str, ...]]
    """Keyword arguments that users may not give as options, because bsweep sets them or another key
    stands for them.
    """

    def with_fingerprints(self) -> Self:
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
    """Any of timm's models (https://huggingface.co/docs/timm)."""

    name: Literal["timm"]

    builds: ClassVar[str] = "bsweep.models.library:build_timm"
    needs: ClassVar[tuple[str, ...]] = ("timm",)
    given: ClassVar[tuple[str, ...]] = ("pretrained", "num_classes", "in_chans", "checkpoint_path")


class TorchvisionModelConfig(LibraryConfig):
    """Any of torchvision's classifiers, for images of three channels."""

    name: Literal["torchvision"]

    builds: ClassVar[str] = "bsweep.models.library:build_torchvision"
    given: ClassVar[tuple[str, ...]] = ("weights", "num_classes", "weights_backbone")


class OwnModelConfig(UserCode, ModelConfig):
    """A network of your own: your callable takes (num_classes, shape, **options) and returns a
    torch.nn.Module.
    """

    name: Literal["own"]
    target: PathName
    """model.target=mymodel.py:build or package.module:name; a changed file gives another run"""
    blocks: tuple[str, ...] = ()
    """[layers.*]: modules that strategies which split the model treat as one each; [] chooses by
    size
    """

    builds: ClassVar[str] = "bsweep.models.own:build"
    tensor_plan: ClassVar[str] = "bsweep.models.own:tensor_plan"
    takes: ClassVar[tuple[str, ...]] = ("num_classes", "shape")
    learns_from: ClassVar[Kind | None] = None
    has_batchnorm: ClassVar[bool | None] = None

    @property
    def names_of_blocks(self) -> tuple[str, ...]:
        return self.blocks


class ProgramModelConfig(ModelConfig):
    """The model of your own program, see program=own."""

    name: Literal["program"]

    learns_from: ClassVar[Kind | None] = None


AnyModel = Annotated[
    ResNet18Config
    | VGG16Config
    | TinyCNNConfig
    | Llama150MConfig
    | LlamaTinyConfig
    | TimmConfig
    | TorchvisionModelConfig
    | OwnModelConfig
    | ProgramModelConfig,
    Field(discriminator="name"),
]
