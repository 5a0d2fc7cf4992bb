"""The functions that turn uint8 images into model inputs: they crop, flip and normalise.

They work on a whole batch at once, on any device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.core.randomness import random_bits, stream_of


def crop_stream(seed: int, epoch: int) -> int:
    """Return the start (an int64) of the random stream from which the crops and mirrorings of an
    epoch are drawn.
    """
    return stream_of("crop", seed, epoch)


def draw(num_examples: int, stream: int, *, width: int, padding: int, device: Any) -> Tensor:
    """Return the random crop and the mirroring of each training example in an epoch.

    They depend on (seed, epoch, example) alone: not on a batch, a worker or a device.

    Args:
        num_examples: The number of training examples.
        stream: `crop_stream` of the run's seed and the epoch.
        width: The width of an image in pixels.
        padding: The pixels on each side; a crop has `2 * padding + 1` possible offsets in either
            direction.
        device: The device of the result.

    Returns:
        int64 (num_examples, 2): the index of each crop's first pixel in the flat padded image, and
        1 for images to be mirrored, 0 for others.
    """
    bits = random_bits(torch.arange(num_examples, device=device), stream)
    # uniform to 1 in 2^27
    top, left = ((bits >> first & 0x7FFFFFFF) % (2 * padding + 1) for first in (1, 32))
    return torch.stack([top * (width + 2 * padding) + left, bits & 1], dim=1)


def crop_and_flip(
    images: Tensor, indices: Tensor, *, draws: Tensor, padding: int, flip: bool
) -> Tensor:
    """Return images, each padded with black and cropped at random; `flip` also mirrors each with
    probability 1/2.

    A single gather crops and mirrors. Nothing here waits for a GPU, so this function can be
    captured in a CUDA graph.

    Args:
        images: uint8 (B, C, H, W).
        indices: The images' numbers in the training set, int64 (B,), on the images' device.
        draws: The epoch's crops as `draw` returns them, on the images' device.
        padding: The pixels on each side, as given to `draw`.
        flip: True to mirror the images that `draws` says.

    Returns:
        uint8 (B, C, H, W).
    """
    if not padding and not flip:
        return images
    _, channels, height, width = images.shape
    first, mirrored = draws[indices].view(-1, 2, 1, 1).unbind(dim=1)
    plain, to_the_right = _pixels(height, width, padding, images.device)
    pixels = plain + (torch.addcmul(first, mirrored, to_the_right) if flip else first)
    padded = F.pad(images, (padding, padding, padding, padding))
    crops = padded.flatten(2).gather(2, pixels.view(-1, 1, height * width).expand(-1, channels, -1))
    return crops.view(-1, channels, height, width)


@functools.lru_cache
def _pixels(height: int, width: int, padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two int64 tensors of pixel positions that `crop_and_flip` needs for images of one
    size.

    Returns:
        The index in a flat padded image of each pixel of the first crop, (H, W).
        The number of pixels to the right at which a mirrored image takes each column, (W,).
    """
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)
    return y[:, None] * (width + 2 * padding) + x, width - 1 - 2 * x


def normalize(
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> Tensor:
    """Return uint8 images (B, C, H, W) as `(images / 255 - mean) / std`.

    The scale and the shift are computed once for a mean and a std, which are the same tensors at
    each step.

    Args:
        images: uint8 (B, C, H, W).
        mean: (C,), the mean of images in [0, 1].
        std: (C,), the standard deviation of images in [0, 1].
        dtype: The type of the result.
        memory_format: The memory format of the result.
    """
    scale, shift = _scale_and_shift(mean, std, dtype)
    inputs = torch.empty_like(images, dtype=dtype, memory_format=memory_format)
    return torch.addcmul(shift, images, scale, out=inputs)


@functools.lru_cache
def _scale_and_shift(mean: Tensor, std: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (1 / (255 * std.to(dtype))).view(-1, 1, 1), (-mean / std).to(dtype).view(-1, 1, 1)
