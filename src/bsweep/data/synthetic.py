"""Random images with labels that can be learned: for measuring without data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.config import SyntheticConfig
from bsweep.data.dataset import Dataset, from_images

_NOISE = 64  # grey levels; images of one class differ by up to this much in each pixel


def load(config: SyntheticConfig) -> Dataset:
    """One smooth random image per class, plus noise; the classes equally frequent; the same at each call."""
    generator = torch.Generator().manual_seed(0)
    _, height, width = config.shape
    coarse = torch.rand(config.num_classes, config.shape[0], min(4, height), min(4, width), generator=generator)
    smooth = F.interpolate(coarse, size=(height, width), mode="bilinear")  # survives cropping and padding
    prototypes = (smooth * (255 - _NOISE)).to(torch.uint8)

    def examples(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % config.num_classes
        images = torch.randint(0, _NOISE, (count, *config.shape), dtype=torch.uint8, generator=generator)
        for chunk, of in zip(torch.split(images, 256), torch.split(labels, 256), strict=True):
            chunk += prototypes[of]
        return images, labels

    train, test = examples(config.num_train), examples(config.num_test)
    return from_images(train, test, classes=[str(number) for number in range(config.num_classes)])
