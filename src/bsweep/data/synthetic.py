"""Random images with labels that can be learned, for measurements without a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bsweep.config.data import SyntheticConfig
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    from torch import Tensor

    from bsweep.data.dataset import Dataset

_NOISE = 64  # grey levels; images of one class differ by up to this much in each pixel


def info(config: SyntheticConfig) -> DataInfo:
    """Return the numbers of random training and test images, their shape and their classes."""
    return DataInfo(
        config.num_train, config.num_test, tuple(config.shape), _classes(config), config.num_classes
    )


def _classes(config: SyntheticConfig) -> tuple[str, ...]:
    return tuple(str(number) for number in range(config.num_classes))


def load(config: SyntheticConfig) -> Dataset:
    """Return random images, the same ones at each call.

    Each class has one smooth random image; each example is the image of its class plus noise. The
    classes are equally frequent, give or take one example.
    """
    import torch
    from torch.nn import functional as F

    from bsweep.data.dataset import from_images

    generator = torch.Generator().manual_seed(0)
    _, height, width = config.shape
    coarse = torch.rand(
        config.num_classes, config.shape[0], min(4, height), min(4, width), generator=generator
    )
    # A smooth image remains recognisable after cropping and padding.
    smooth = F.interpolate(coarse, size=(height, width), mode="bilinear")
    prototypes = (smooth * (255 - _NOISE)).to(torch.uint8)

    def examples(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % config.num_classes
        images = torch.randint(
            0, _NOISE, (count, *config.shape), dtype=torch.uint8, generator=generator
        )
        for chunk, classes in zip(torch.split(images, 256), torch.split(labels, 256), strict=True):
            chunk += prototypes[classes]
        return images, labels

    train, test = examples(config.num_train), examples(config.num_test)
    return from_images(train, test, _classes(config))
