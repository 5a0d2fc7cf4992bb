"""The settings classes (cards) of the data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bsweep.config.card import Point
from bsweep.config.groups import DataConfig
from bsweep.config.user_code import UserCode
from bsweep.config.values import Count, Kind, Natural, PathName, Share, Side, Width


class ImageConfig(DataConfig):
    """The base class of the cards of image data sets and of the user's own data."""

    crop_padding: Natural | None = None
    """random crop of the image padded by this many black pixels; null: an eighth of the side; 0: no
    crop
    """
    flip: bool = True
    """random horizontal flip"""

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
    """CIFAR-10 by torchvision: 50,000 training and 10,000 test images of 3x32x32 in 10 classes."""

    name: Literal["cifar10"]
    root: PathName = "~/.cache/bsweep/cifar10"
    """folder of cifar-10-batches-py, also for the download; needed until its images are in the
    cache
    """
    download: bool = True
    """download it if it is not there, and check its md5"""
    subset: Count | None = None
    """train on this many examples only, balanced over classes"""
    crop_padding: Natural | None = 4
    """random crop of the image padded by this many black pixels; 0: no crop"""

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)
    shorter_side: ClassVar[int] = 32


class ImageFolderConfig(ImageConfig):
    """Images in root/train/<class>/ and root/test/<class>/, or in root/<class>/ with a test_share:
    decoded once, resized, kept as one tensor file in a cache.
    """

    name: Literal["imagefolder"]
    root: PathName
    """data.root=DIR"""
    side: Side = 32
    """images are resized to side x side"""
    test_share: Share | None = None
    """0.2: root holds <class>/ alone, and this share of each class is the test set"""
    skip_broken: bool = False
    """true: leave out files that cannot be read as images, and say how many"""

    builds: ClassVar[str] = "bsweep.data.imagefolder"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    files: ClassVar[tuple[str, ...]] = ("root",)
    of_no_example: ClassVar[tuple[str, ...]] = (*ImageConfig.of_no_example, "test_share")


class DigitsConfig(ImageConfig):
    """scikit-learn's handwritten digits: 1,797 real images, scaled to 3 x side x side. Needs no
    download.
    """

    name: Literal["digits"]
    side: Annotated[Side, Field(ge=8)] = 32
    """images are scaled to side x side; their own size is 8"""
    flip: bool = False
    """a mirrored digit is not a digit"""

    builds: ClassVar[str] = "bsweep.data.digits"


class SyntheticConfig(ImageConfig):
    """Random images with labels that can be learned: for measuring without data."""

    name: Literal["synthetic"]
    shape: tuple[Side, Side, Side] = (3, 32, 32)
    """channels, height, width"""
    num_classes: Annotated[Width, Field(ge=2)] = 10
    """classes of the labels"""
    num_train: Count = 2048
    """training examples"""
    num_test: Count = 512
    """test examples"""

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
    """A text file as sequences of tokens, each to be predicted from those before it: for
    model=llama_tiny and llama_150m.
    """

    name: Literal["text"]
    path: PathName
    """data.path=FILE"""
    sequence_length: Count = 256
    """tokens of an example; sequences do not overlap"""
    tokenizer: PathName | None = None
    """null: bytes, a vocabulary of 256 | path of a Hugging Face tokenizer.json"""
    test_share: Share = 0.1
    """the last part of the text is the test set"""
    subset: Count | None = None
    """train on this many sequences only"""

    brings: ClassVar[Mapping[str, int]] = {"local_batch": 4}
    builds: ClassVar[str] = "bsweep.data.text"
    files: ClassVar[tuple[str, ...]] = ("path",)
    consists_of: ClassVar[Kind] = "text"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("safetensors",) if self.tokenizer is None else ("safetensors", "tokenizers")


class TorchvisionConfig(ImageConfig):
    """Any of torchvision's data sets for classification, downloaded and checked by its own code."""

    name: Literal["torchvision"]
    dataset: TorchvisionDataset
    """data.dataset=CIFAR100 | FashionMNIST | MNIST | SVHN | Food101 | ...; a wrong name lists all
    """
    root: PathName = "~/.cache/bsweep/torchvision"
    """folder of its files, also for downloads; needed until its images are in the cache"""
    download: bool = True
    """download the files if they are not there"""
    side: Side | None = None
    """scale images to side x side; null: keep their size, which must be the same for all"""
    crop_padding: Natural | None = None
    """random crop of the image padded by this many black pixels; null: an eighth of the side, 4 if
    side is null; 0: no crop
    """
    flip: bool = False
    """true if mirrored images are valid examples; a mirrored digit is not"""

    builds: ClassVar[str] = "bsweep.data.torchvision"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    changes_no_number: ClassVar[tuple[str, ...]] = ("download",)


class OwnDataConfig(UserCode, ImageConfig):
    """Data of your own: your function returns (train, test), each a data set of (image, label) or a
    pair of tensors.
    """

    name: Literal["own"]
    target: PathName
    """data.target=mydata.py:build or package.module:name; bsweep calls it in the folder where you
    start it
    """
    crop_padding: Natural | None = 0
    """random crop of uint8 images (C, H, W) or Pillow images, padded by this many black pixels;
    float tensors are used as they are, without augmentation or standardisation
    """
    flip: bool = False
    """random horizontal flip, of such images only"""

    builds: ClassVar[str] = "bsweep.data.own"
    needs: ClassVar[tuple[str, ...]] = ("safetensors",)
    consists_of: ClassVar[Kind] = "anything"


class ProgramDataConfig(DataConfig):
    """Data that your own program loads, see program=own."""

    name: Literal["program"]
    num_train: Count | None = None
    """training examples; null: the program tells, see docs/programs.md"""
    num_test: Count | None = None
    """test examples"""
    num_classes: Width | None = None
    """classes of the labels; tells whether an accuracy is above guessing"""

    consists_of: ClassVar[Kind] = "anything"
    internal: ClassVar[tuple[str, ...]] = ("subset", "device", "validation_share")
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
