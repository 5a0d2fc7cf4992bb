"""The conversion of a data set's examples to a model's inputs and targets.

Images are cropped, flipped and normalised, a whole batch at once, on any device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.config.data import AnyData, ImageConfig
from bsweep.core.randomness import random_bits, stream_of
from bsweep.data.dataset import Dataset


@dataclass(frozen=True)
class Inputs:
    """The conversion of a data set's examples and labels to the tensors that a model takes."""

    dataset: Dataset
    config: AnyData
    dtype: torch.dtype  # of inputs and targets that are not integers
    layout: torch.memory_format  # of images
    may_round: bool = False  # images to half precision, as autocast does before a convolution

    @property
    def labels_per_example(self) -> int:
        """The number of labels of one example: 1 for a class, and in general the number of elements
        in the example's label tensor.
        """
        return self.dataset.train.labels[0].numel()

    def first(self, number: int) -> Tensor:
        """Return the indices of the first `number` training examples, or of all if fewer exist."""
        labels = self.dataset.train.labels
        return torch.arange(min(number, len(labels)), device=labels.device)

    def sample(self, number: int) -> Tensor:
        """Return the model's inputs for the first `number` training examples, which are not
        cropped.
        """
        examples, *_ = self.dataset.train.take(self.first(number))
        return self.convert(examples)

    def crops(self, epoch: int, seed: int) -> Tensor:
        """Return the random crops and mirrorings of all training images in an epoch, as
        `draw` does; an empty tensor for other data.

        They are drawn at once, and kept until another epoch is asked for. So a step does not draw.
        """
        padding, flip = self._padding_and_flip
        train = self.dataset.train
        number = len(train) if padding or flip else 0
        return draw(number, seed, epoch, padding=padding, flip=flip, device=train.device)

    def training(self, indices: Tensor, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's inputs and targets for the training examples `indices`; crop and flip
        images at random if `data.crop_padding` and `data.flip` say so.

        Args:
            indices: The indices of the training examples, int64 (B,).
            crops: The `crops` of the epoch.

        Returns:
            The inputs (B, ...) and the targets (B,) or (B, ...).
        """
        examples, labels, indices = self.dataset.train.take(indices)
        padding, flip = self._padding_and_flip
        if padding or flip:
            examples = crop_and_flip(examples, indices, draws=crops, padding=padding)
        return self.convert(examples), self.targets(labels)

    @property
    def _padding_and_flip(self) -> tuple[int, bool]:
        """The pixels around an image from which training steps crop it at random, and True if they
        mirror images at random; 0 and False for other data.
        """
        if self.dataset.mean is None or not isinstance(self.config, ImageConfig):
            return 0, False
        return self.config.crop_padding or 0, self.config.flip

    def convert(self, examples: Tensor) -> Tensor:
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
        return normalize(
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


@functools.lru_cache(maxsize=1)
def draw(
    num_examples: int, seed: int, epoch: int, *, padding: int, flip: bool, device: torch.device
) -> Tensor:
    """Return the random crop and the mirroring of each training example in an epoch.

    They depend on (seed, epoch, example) alone: not on a batch, a worker or a device.

    Args:
        num_examples: The number of training examples.
        seed: The run's seed.
        epoch: The epoch.
        padding: The pixels on each side; a crop has `2 * padding + 1` possible offsets in either
            direction.
        flip: True to mirror each image with probability 1/2.
        device: The device of the result.

    Returns:
        int64 (num_examples, 2): the line of the table `_sides` with the crop's rows, and the line
        with its columns.
    """
    numbers, stream = torch.arange(num_examples, device=device), stream_of("crop", seed, epoch)
    bits, number = random_bits(numbers, stream), 2 * padding + 1
    # uniform to 1 in 2^27
    top, left = ((bits >> first & 0x7FFFFFFF) % number for first in (1, 32))
    mirrored = bits & 1 if flip else 0
    return torch.stack([top, number * (1 + mirrored) + left], dim=1)


def crop_and_flip(images: Tensor, indices: Tensor, *, draws: Tensor, padding: int) -> Tensor:
    """Return images cropped at random, black where a crop leaves its image, and some mirrored.

    Nothing here waits for a GPU, so this function can be captured in a CUDA graph.

    Args:
        images: uint8 (B, C, H, W).
        indices: The images' numbers in the training set, int64 (B,), on the images' device.
        draws: The epoch's crops as `draw` returns them, on the images' device.
        padding: The pixels on each side, as given to `draw`.

    Returns:
        uint8 (B, C, H, W).
    """
    channels, height, width = images.shape[1:]
    sides = _sides(height, width, padding, images.device)[draws[indices]]
    rows, columns = sides[:, 0, :height, None], sides[:, 1, None, :width]
    pixels = torch.add(columns, rows, alpha=width + 1).view(-1, 1, height * width)
    padded = F.pad(images, (0, 1, 0, 1)).flatten(2)
    return padded.gather(2, pixels.expand(-1, channels, -1)).view(-1, channels, height, width)


@functools.cache
def _sides(height: int, width: int, padding: int, device: torch.device) -> Tensor:
    """Return a table of the image's rows and columns that each possible crop shows.

    Returns:
        int64 (3 * (2 * padding + 1), max(H, W)). A line of the first third lists the image rows
        that a crop with one vertical offset shows. A line of the second third lists the image
        columns for one horizontal offset. The last third has the lines of the second in reverse
        order, for mirrored crops. Where a crop leaves the image, its rows and columns are H and W,
        the black border.
    """
    offsets, longer = torch.arange(2 * padding + 1, device=device), max(height, width)

    def crops(size: int) -> Tensor:
        places = offsets[:, None] + torch.arange(size, device=device) - padding
        return places.where((places >= 0) & (places < size), size)

    columns = crops(width)
    return torch.cat(
        [
            F.pad(side, (0, longer - side.shape[1]))
            for side in (crops(height), columns, columns.flip(1))
        ]
    )


def normalize(
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    rounded: torch.dtype | None = None,
) -> Tensor:
    """Return uint8 images (B, C, H, W) as `(images / 255 - mean) / std`.

    The scale and the shift are computed once for a mean and a std, which are the same tensors at
    each step.

    Args:
        images: uint8 (B, C, H, W).
        mean: (C,), the mean of images in [0, 1].
        std: (C,), the standard deviation of images in [0, 1].
        dtype: The type in which they are computed.
        memory_format: The memory format of the result.
        rounded: The type of the result, to which the same kernel rounds it; None for `dtype`.
    """
    scale, shift = _scale_and_shift(mean, std, dtype)
    inputs = torch.empty_like(images, dtype=rounded or dtype, memory_format=memory_format)
    return torch.addcmul(shift, images, scale, out=inputs)


@functools.lru_cache
def _scale_and_shift(mean: Tensor, std: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (1 / (255 * std.to(dtype))).view(-1, 1, 1), (-mean / std).to(dtype).view(-1, 1, 1)
