"""The conversion of a data set's examples to a model's inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bsweep import data
from bsweep.config.data import AnyData, ImageConfig
from bsweep.data import augment
from bsweep.data.dataset import Dataset


@dataclass(frozen=True)
class Inputs:
    """The conversion of a data set's examples and labels to the tensors that a model takes."""

    dataset: Dataset
    config: AnyData
    dtype: torch.dtype  # of inputs and targets that are not integers
    layout: torch.memory_format  # of images
    may_round: bool = False  # images to half precision, as autocast does before a convolution
    # The crops of one epoch, by seed and epoch.
    _drawn: dict[tuple[int, int], Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def labels_per_example(self) -> int:
        """The number of labels of one example: 1 for a class, and in general the number of elements
        in the example's label tensor.
        """
        return self.dataset.train_labels[0].numel()

    def first(self, number: int) -> Tensor:
        """Return the indices of the first `number` training examples, or of all if fewer exist."""
        labels = self.dataset.train_labels
        return torch.arange(min(number, len(labels)), device=labels.device)

    def sample(self, number: int) -> Tensor:
        """Return the model's inputs for the first `number` training examples, which are not
        cropped.
        """
        examples, *_ = self.dataset.train.take(self.first(number))
        return self.of(examples)

    def crops(self, epoch: int, seed: int) -> Tensor:
        """Return the random crops and mirrorings of all training images in an epoch, as
        `augment.draw` does; an empty tensor for other data.

        They are drawn at once, and kept until another epoch is asked for. So a step does not draw.
        """
        if (epoch, seed) not in self._drawn:
            self._drawn.clear()
            inputs, config = self.dataset.train_inputs, self.config
            self._drawn[epoch, seed] = augment.draw(
                len(inputs) if data.is_cropped(self.dataset, config) else 0,
                augment.crop_stream(seed, epoch),
                padding=self._padding,
                flip=isinstance(config, ImageConfig) and config.flip,
                device=self.dataset.device or inputs.device,
            )
        return self._drawn[epoch, seed]

    def training(self, indices: Tensor, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's inputs and targets for the training examples `indices`; crop and flip
        images at random if `data.crop_padding` and `data.flip` say so.

        Args:
            indices: The indices of the training examples, int64 (B,).
            crops: The `crops` of the epoch.

        Returns:
            The inputs (B, ...) and the targets (B,) or (B, ...).
        """
        all_images = self.dataset.bordered
        if all_images is None:
            examples, labels, indices = self.dataset.train.take(indices)
        else:
            examples, labels = all_images, self.dataset.train_labels[indices]
        if data.is_cropped(self.dataset, self.config):
            examples = augment.crop_and_flip(
                examples,
                indices,
                draws=crops,
                padding=self._padding,
                are_all=all_images is not None,
            )
        return self.of(examples), self.targets(labels)

    @property
    def _padding(self) -> int:
        return (isinstance(self.config, ImageConfig) and self.config.crop_padding) or 0

    def of(self, examples: Tensor) -> Tensor:
        """Return examples of the data set converted to the model's inputs.

        Images of whole numbers are normalised and in the model's memory format, within autocast
        also in its precision if the model rounds them before anything else. Other whole
        numbers, such as tokens, become int64. Floating-point numbers are only converted to the
        model's type.
        """
        mean, std = self.dataset.mean, self.dataset.std
        if examples.is_floating_point():
            return examples.to(self.dtype)
        if mean is None or std is None:
            return examples.long()
        kind = examples.device.type
        may_round = self.may_round and torch.amp.is_autocast_available(kind)
        is_rounded = may_round and torch.is_autocast_enabled(kind)
        return augment.normalize(
            examples,
            mean,
            std,
            dtype=self.dtype,
            memory_format=self.layout,
            rounded=torch.get_autocast_dtype(kind) if is_rounded else None,
        )

    def targets(self, labels: Tensor) -> Tensor:
        """Return `labels` as training targets: whole numbers as int64, floating-point numbers in
        the type of the model's parameters.
        """
        return labels.to(self.dtype) if labels.is_floating_point() else labels.long()
