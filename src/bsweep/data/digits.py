"""scikit-learn's handwritten digits (part of UCI's optdigits): 1,797 real images of 8x8 pixels.

The file `digits.csv.gz` is scikit-learn's own. `digits_licence.txt` has its licences.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bsweep.config.data import DigitsConfig
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    from torch import Tensor

    from bsweep.data.dataset import Dataset

_CLASSES = tuple("0123456789")


def info(config: DigitsConfig) -> DataInfo:
    """Return the numbers of training and test images of handwritten digits, their shape and their
    classes.
    """
    return DataInfo(1437, 360, (3, config.side, config.side), _CLASSES, len(_CLASSES))


def load(config: DigitsConfig) -> Dataset:
    """Return scikit-learn's handwritten digits as images of 3 x side x side: 1,437 to train on, 360
    to test on.

    They are scaled bilinearly, and all channels hold the same grey. scikit-learn has no split into
    training and test examples. Here, every fifth of all examples, sorted by class, is for testing.
    """
    import torch
    from torch.nn import functional as F

    from bsweep.data.dataset import from_images

    greys, labels = read_digits()
    pixels = F.interpolate(
        greys[:, None] * (255 / 16), size=(config.side, config.side), mode="bilinear"
    )
    images = pixels.round().to(torch.uint8).repeat(1, 3, 1, 1)
    tests = torch.zeros(len(labels), dtype=torch.bool)
    tests[labels.argsort(stable=True)[::5]] = True
    return from_images((images[~tests], labels[~tests]), (images[tests], labels[tests]), _CLASSES)


def read_digits() -> tuple[Tensor, Tensor]:
    """Return the images and labels that `sklearn.datasets.load_digits` returns.

    Returns:
        Grey levels 0 to 16, float32 (1797, 8, 8), and labels, int64 (1797,).
    """
    import torch

    table = torch.from_numpy(np.loadtxt(_FILE, delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].long()


_FILE = Path(__file__).with_name("digits.csv.gz")
