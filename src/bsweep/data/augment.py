"""From uint8 images in memory to model inputs: crop, flip and normalise a whole batch at once, on
any device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.core.randomness import random_bits, stream_of


def crop_stream(seed: int, epoch: int) -> int:
    """The random bits that say how an epoch's examples are cropped and mirrored."""
    return stream_of("crop", seed, epoch)


def crop_and_flip(
    images: Tensor, indices: Tensor, *, stream: int | Tensor, padding: int, flip: bool
) -> Tensor:
    """Images, each cropped at random from its black-padded self and, if `flip`, mirrored half the
    time.

    What happens to an example depends on (seed, epoch, example) alone: not on its batch, worker or
    device. One gather does it all; nothing here waits for a GPU, so it can be captured in a CUDA
    graph.

    Args:
        images: uint8 (B, C, H, W).
        indices: their numbers in the training set, int64 (B,), on the device of the images.
        stream: `crop_stream` of the run's seed and the epoch, or a tensor () of it on that device.
        padding: pixels on each side; a crop's offset is one of `2 * padding + 1` in either
            direction.
        flip: whether to mirror at all.

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
    """Of all crops alike, int64: the offsets' first bits, top's and left's (2, 1, 1, 1); what rows
    (H, 1) and columns (W,) add to a pixel's place in a padded image; and how much further right a
    column is taken from in a mirrored one.
    """
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)
    # 1 and 32, without a copy from the host.
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
    """uint8 images (B, C, H, W) as `(images / 255 - mean) / std`; mean and std (C,) are those of
    images in [0, 1].

    What follows from a mean and a std, the same tensors at each step, is computed once.
    """
    scale, shift = _scale_and_shift(mean, std, dtype)
    return torch.addcmul(shift, images.to(dtype, memory_format=memory_format), scale)


@functools.lru_cache
def _scale_and_shift(mean: Tensor, std: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (1 / (255 * std.to(dtype))).view(-1, 1, 1), (-mean / std).to(dtype).view(-1, 1, 1)
