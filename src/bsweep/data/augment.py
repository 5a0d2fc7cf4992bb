"""The functions that turn uint8 images into model inputs: they crop, flip and normalise.

They work on a whole batch at once, on any device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.core.randomness import random_bits, stream_of


def crop_stream(seed: int, epoch: int) -> int:
    """Return the start (an int64) of the random stream from which the crops and mirrorings of an
    epoch are drawn.
    """
    return stream_of("crop", seed, epoch)


def crop_and_flip(
    images: Tensor, indices: Tensor, *, stream: int | Tensor, padding: int, flip: bool
) -> Tensor:
    """Return images, each padded with black and cropped at random; `flip` also mirrors each with
    probability 1/2.

    For given arguments `padding` and `flip`, the crop of an example depends on (seed, epoch,
    example) alone: not on its batch, worker or device. A single gather crops and mirrors. Nothing
    here waits for a GPU, so this function can be captured in a CUDA graph.

    Args:
        images: uint8 (B, C, H, W).
        indices: The images' numbers in the training set, int64 (B,), on the images' device.
        stream: `crop_stream` of the run's seed and the epoch, or a tensor () of it on that device.
        padding: The pixels on each side; a crop has `2 * padding + 1` possible offsets in either
            direction.
        flip: True to mirror each image with probability 1/2.

    Returns:
        uint8 (B, C, H, W).
    """
    if not padding and not flip:
        return images
    _, channels, height, width = images.shape
    bits = random_bits(indices.view(-1, 1, 1), stream)
    shifts, rows, columns, mirrored = _constants(height, width, padding, images.device)
    top, left = ((bits >> shifts & 0x7FFFFFFF) % (2 * padding + 1)).unbind()  # uniform to 1 in 2^27
    columns = columns + left
    if flip:
        columns.addcmul_(bits & 1, mirrored)
    pixels = torch.add(rows, top, alpha=width + 2 * padding) + columns
    padded = F.pad(images, (padding, padding, padding, padding))
    crops = padded.flatten(2).gather(2, pixels.view(-1, 1, height * width).expand(-1, channels, -1))
    return crops.view(-1, channels, height, width)


@functools.lru_cache
def _constants(
    height: int, width: int, padding: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four int64 tensors of bit and pixel positions that `crop_and_flip` needs for images of
    one size.

    Returns:
        The position of the first random bit that the top and the left offset use, (2, 1, 1, 1).
        The index in a flat padded image at which each row begins, (H, 1).
        The index of each column within its row, (W,).
        The number of pixels to the right at which a mirrored image takes each column, (W,).
    """
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)
    # The values 1 and 32, made without a copy from the host.
    first_bits = torch.arange(1, 33, 31, device=device).view(2, 1, 1, 1)
    return first_bits, y[:, None] * (width + 2 * padding), x, width - 1 - 2 * x


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
    return torch.addcmul(shift, images.to(dtype, memory_format=memory_format), scale)


@functools.lru_cache
def _scale_and_shift(mean: Tensor, std: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (1 / (255 * std.to(dtype))).view(-1, 1, 1), (-mean / std).to(dtype).view(-1, 1, 1)
