"""Data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bsweep.config.card import Card, Count, Natural


@dataclass(frozen=True, kw_only=True)
class DataConfig(Card):
    """What all data sets share; see `conf/data/`."""

    subset: Count | None


@dataclass(frozen=True, kw_only=True)
class ImageConfig(DataConfig):
    """What all data sets of images share."""

    crop_padding: Natural
    flip: bool


@dataclass(frozen=True, kw_only=True)
class Cifar10Config(ImageConfig):
    name: Literal["cifar10"]
    root: str
    download: bool


@dataclass(frozen=True, kw_only=True)
class ImageFolderConfig(ImageConfig):
    name: Literal["imagefolder"]
    root: str
    side: Count


@dataclass(frozen=True, kw_only=True)
class DigitsConfig(ImageConfig):
    name: Literal["digits"]
    side: Annotated[int, Field(ge=8)]


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig(ImageConfig):
    name: Literal["synthetic"]
    shape: tuple[Count, Count, Count]
    num_classes: Annotated[int, Field(ge=2)]
    num_train: Count
    num_test: Count


@dataclass(frozen=True, kw_only=True)
class TextConfig(DataConfig):
    name: Literal["text"]
    path: str
    sequence_length: Count
    tokenizer: str | None
    test_share: Annotated[float, Field(gt=0, lt=1)]


AnyData = Annotated[
    Cifar10Config | ImageFolderConfig | DigitsConfig | SyntheticConfig | TextConfig, Field(discriminator="name")
]
