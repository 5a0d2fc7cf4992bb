"""Makes a model's inputs and targets of a data set's examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bsweep.config import AnyData, ImageConfig
from bsweep.data import augment
from bsweep.data.dataset import Dataset


@dataclass(frozen=True)
class Inputs:
    """The examples of a data set as a model takes them."""

    dataset: Dataset
    config: AnyData
    dtype: torch.dtype  # of numbers with a fraction
    layout: torch.memory_format  # of images

    @property
    def labels_per_example(self) -> int:
        """Losses that an example counts for: of the image, of each token, of each number."""
        return self.dataset.train_labels[0].numel()

    def first(self, number: int) -> Tensor:
        """Return the indices of so many training examples, or of all if there are fewer."""
        labels = self.dataset.train_labels
        return torch.arange(min(number, len(labels)), device=labels.device)

    def training(self, indices: Tensor, crops: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs of the model and its targets: images cropped and flipped at random, by
        `augment.crop_stream`.
        """
        examples, labels, indices = self.dataset.train.take(indices)
        if self.dataset.mean is not None and isinstance(self.config, ImageConfig):
            examples = augment.crop_and_flip(
                examples,
                indices,
                stream=crops,
                padding=self.config.crop_padding,
                flip=self.config.flip,
            )
        return self.of(examples), self.targets(labels)

    def of(self, examples: Tensor) -> Tensor:
        """Return inputs of the model: images normalised, in the model's memory format; tokens as
        int64; others as they are.
        """
        mean, std = self.dataset.mean, self.dataset.std
        if examples.is_floating_point():
            return examples.to(self.dtype)
        if mean is None or std is None:
            return examples.long()
        return augment.normalize(examples, mean, std, dtype=self.dtype, memory_format=self.layout)

    def targets(self, labels: Tensor) -> Tensor:
        """Return what the model is to answer: classes and tokens as int64, other numbers in the
        model's precision.
        """
        return labels.to(self.dtype) if labels.is_floating_point() else labels.long()
