"""scikit-learn's handwritten digits (a part of UCI's optdigits): 1,797 real images of 8x8 pixels."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.config import DigitsConfig
from bsweep.data.dataset import Dataset, from_images


def load(config: DigitsConfig) -> Dataset:
    """The digits as 3 x side x side (bilinear, grey in all channels): 1,437 to train on, 360 to test.

    scikit-learn brings no split. Here, of all examples sorted by class, every fifth is for testing.
    """
    greys, labels = read_digits()
    pixels = F.interpolate(greys[:, None] * (255 / 16), size=(config.side, config.side), mode="bilinear")
    images = pixels.round().to(torch.uint8).repeat(1, 3, 1, 1)
    tests = torch.zeros(len(labels), dtype=torch.bool)
    tests[labels.argsort(stable=True)[::5]] = True
    return from_images(
        (images[~tests], labels[~tests]), (images[tests], labels[tests]), classes=[str(digit) for digit in range(10)]
    )


def read_digits() -> tuple[Tensor, Tensor]:
    """Grey levels 0 to 16, float32 (1797, 8, 8), and labels, int64 (1797,): what `sklearn.datasets.load_digits` gives.

    Read from the file inside the package, for importing scikit-learn takes longer than a second.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("data=digits is read from scikit-learn, which is not installed: run scripts/setup.sh")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].long()
