"""The settings classes (cards) of the data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Point
from bsweep.config.groups import DataConfig
from bsweep.config.user_code import UserCode
from bsweep.config.values import Count, Kind, Natural, PathName, Share, Side, Width


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
        """The pixels of an image's shorter side; None if only the data can tell. Most cards have a
        key for it.
        """
        side: int | None = getattr(self, "side", None)
        return side

    def warnings(self, point: Point) -> Iterator[str]:
        yield from super().warnings(point)
        padding, side = self.crop_padding, self.shorter_side
        if padding and side and 4 * padding > side:
            yield (
                f"data.crop_padding={padding} is more than a quarter of the images' shorter side "
                f"of {side} pixels, so that random crops lose much: use data.crop_padding="
                f"{min(_padding_for(side), side // 4)}"
            )


def _padding_for(side: int | None) -> int:
    """Return the default of `crop_padding`: an eighth of an image's shorter side, rounded, but at
    least 1; 4 if the side is None.
    """
    return 4 if side is None else max(1, round(side / 8))


class Cifar10Config(ImageConfig):
    name: Literal["cifar10"]
    root: PathName
    download: bool

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)
    shorter_side: ClassVar[int] = 32


class ImageFolderConfig(ImageConfig):
    name: Literal["imagefolder"]
    root: PathName
    side: Side
    test_share: Share | None = None
    skip_broken: bool = False

    builds: ClassVar[str] = "bsweep.data.imagefolder"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    files: ClassVar[tuple[str, ...]] = ("root",)
    of_no_example: ClassVar[tuple[str, ...]] = (*ImageConfig.of_no_example, "test_share")


class DigitsConfig(ImageConfig):
    name: Literal["digits"]
    side: Annotated[Side, Field(ge=8)]

    builds: ClassVar[str] = "bsweep.data.digits"


class SyntheticConfig(ImageConfig):
    name: Literal["synthetic"]
    shape: tuple[Side, Side, Side]
    num_classes: Annotated[Width, Field(ge=2)]
    num_train: Count
    num_test: Count

    builds: ClassVar[str] = "bsweep.data.synthetic"

    @property
    def shorter_side(self) -> int:
        return min(self.shape[1:])


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


class TorchvisionConfig(ImageConfig):
    name: Literal["torchvision"]
    dataset: TorchvisionDataset
    root: PathName
    download: bool
    side: Side | None

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)


class OwnDataConfig(UserCode, ImageConfig):
    name: Literal["own"]

    builds: ClassVar[str] = "bsweep.data.own"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    consists_of: ClassVar[Kind] = "anything"


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
