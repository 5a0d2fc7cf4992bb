"""The settings classes (cards) of the data sets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.groups import DataConfig
from bsweep.config.own import Own
from bsweep.config.point import Point
from bsweep.config.values import Count, Kind, Natural, PathName, Share, Side, Width, show

_MOST_BYTES = 2**40  # largest size of synthetic data


@dataclass(frozen=True, kw_only=True)
class ImageConfig(DataConfig):
    """The base class of the cards of image data sets and of the user's own data."""

    crop_padding: Natural | None
    """Black pixels that are added at each edge of an image before a random crop. Null gives an
    eighth of the image's shorter side, rounded, but at least 1; or 4 if only the data can tell the
    side.
    """

    flip: bool

    consists_of: ClassVar[Kind] = "images"

    def __post_init__(self) -> None:
        if self.crop_padding is None:
            object.__setattr__(self, "crop_padding", _padding_for(self.shorter_side))

    @property
    def shorter_side(self) -> int | None:
        """The pixels of an image's shorter side; None if only the data can tell."""
        return None

    def warnings(self, point: Point) -> Iterator[str]:
        yield from super().warnings(point)
        padding, side = self.crop_padding, self.shorter_side
        if padding and side and 4 * padding > side:
            yield (
                f"data.crop_padding={padding} is more than a quarter of the images' shorter "
                f"side of {side} pixels, so random crops may lose much of an image and a model may "
                f"not learn: use data.crop_padding={min(_padding_for(side), side // 4)}"
            )


def _padding_for(side: int | None) -> int:
    """Return the default of `crop_padding`: an eighth of an image's shorter side, rounded, but at
    least 1; 4 if the side is None.
    """
    return 4 if side is None else max(1, round(side / 8))


@dataclass(frozen=True, kw_only=True)
class Cifar10Config(ImageConfig):
    name: Literal["cifar10"]
    root: PathName
    download: bool

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)
    of_no_example: ClassVar[tuple[str, ...]] = (
        *DataConfig.of_no_example,
        "root",
        "download",
    )

    @property
    def shorter_side(self) -> int:
        return 32


@dataclass(frozen=True, kw_only=True)
class ImageFolderConfig(ImageConfig):
    name: Literal["imagefolder"]
    root: PathName
    side: Side
    test_share: Share | None = None
    skip_broken: bool = False

    builds: ClassVar[str] = "bsweep.data.imagefolder"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    files: ClassVar[tuple[str, ...]] = ("root",)
    of_no_example: ClassVar[tuple[str, ...]] = (
        *DataConfig.of_no_example,
        "root",
        "test_share",
        "skip_broken",
    )

    @property
    def shorter_side(self) -> int:
        return self.side


@dataclass(frozen=True, kw_only=True)
class DigitsConfig(ImageConfig):
    name: Literal["digits"]
    side: Annotated[Side, Field(ge=8)]

    builds: ClassVar[str] = "bsweep.data.digits"

    @property
    def shorter_side(self) -> int:
        return self.side


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig(ImageConfig):
    name: Literal["synthetic"]
    shape: tuple[Side, Side, Side]
    num_classes: Annotated[Width, Field(ge=2)]
    num_train: Count
    num_test: Count

    builds: ClassVar[str] = "bsweep.data.synthetic"
    of_no_example: ClassVar[tuple[str, ...]] = (
        *DataConfig.of_no_example,
        "num_train",
        "num_test",
    )

    @property
    def shorter_side(self) -> int:
        return min(self.shape[1:])

    def problems(self, point: Point) -> Iterator[str]:
        yield from super().problems(point)
        if (num_bytes := (self.num_train + self.num_test) * math.prod(self.shape)) > _MOST_BYTES:
            yield (
                f"data.num_train={self.num_train} and data.num_test={self.num_test} of "
                f"data.shape={show(self.shape)} take {num_bytes / 2**40:,.1f} TiB, and each "
                "worker holds all examples. Use fewer or smaller examples."
            )


TorchvisionDataset = Literal[
    "CIFAR10",
    "CIFAR100",
    "Country211",
    "DTD",
    "FGVCAircraft",
    "FashionMNIST",
    "Flowers102",
    "Food101",
    "GTSRB",
    "Imagenette",
    "KMNIST",
    "LFWPeople",
    "MNIST",
    "OxfordIIITPet",
    "QMNIST",
    "RenderedSST2",
    "STL10",
    "SVHN",
    "USPS",
]
"""The data sets of torchvision that bsweep offers. Each has a part to train on, a part to test on,
and one class for each image.
"""


@dataclass(frozen=True, kw_only=True)
class TextConfig(DataConfig):
    name: Literal["text"]
    path: PathName
    sequence_length: Count
    tokenizer: PathName | None
    test_share: Share

    builds: ClassVar[str] = "bsweep.data.text"
    files: ClassVar[tuple[str, ...]] = ("path",)
    consists_of: ClassVar[Kind] = "text"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("safetensors",) if self.tokenizer is None else ("safetensors", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class TorchvisionConfig(ImageConfig):
    name: Literal["torchvision"]
    dataset: TorchvisionDataset
    root: PathName
    download: bool
    side: Side | None

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)
    of_no_example: ClassVar[tuple[str, ...]] = (
        *DataConfig.of_no_example,
        "root",
        "download",
    )

    @property
    def shorter_side(self) -> int | None:
        return self.side


@dataclass(frozen=True, kw_only=True)
class OwnDataConfig(Own, ImageConfig):
    name: Literal["own"]

    builds: ClassVar[str] = "bsweep.data.own"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    consists_of: ClassVar[Kind] = "anything"


@dataclass(frozen=True, kw_only=True)
class ProgramDataConfig(DataConfig):
    """The card of data that the user's own program loads; see `bsweep.config.programs`."""

    name: Literal["program"]
    subset: Count | None = None
    num_train: Count | None
    num_test: Count | None
    num_classes: Width | None

    consists_of: ClassVar[Kind] = "anything"
    changes_no_number: ClassVar[tuple[str, ...]] = ("num_train", "num_test", "num_classes")


AnyData = Annotated[
    Cifar10Config
    | ImageFolderConfig
    | DigitsConfig
    | SyntheticConfig
    | TextConfig
    | TorchvisionConfig
    | OwnDataConfig
    | ProgramDataConfig,
    Field(discriminator="name"),
]
