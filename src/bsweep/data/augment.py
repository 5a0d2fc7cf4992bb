"""From uint8 images in memory to model inputs: crop, flip and normalise a whole batch at once, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bsweep.randomness import random_bits, stream_of


def crop_stream(seed: int, epoch: int) -> int:
    """The random bits that say how an epoch's examples are cropped and mirrored."""
    return stream_of("crop", seed, epoch)


def crop_and_flip(images: Tensor, indices: Tensor, *, stream: int | Tensor, padding: int, flip: bool) -> Tensor:
    """Images, each cropped at random from its black-padded self and, if `flip`, mirrored half the time.

    What happens to an example depends on (seed, epoch, example) alone: not on its batch, worker or device. One gather
    does it all; nothing here waits for a GPU, so it can be captured in a CUDA graph.

    Args:
        images: uint8 (B, C, H, W).
        indices: their numbers in the training set, int64 (B,), on the device of the images.
        stream: `crop_stream` of the run's seed and the epoch, or a tensor () of it on that device.
        padding: pixels on each side; a crop's offset is one of `2 * padding + 1` in either direction.
        flip: whether to mirror at all.

    Returns:
        uint8 (B, C, H, W).
    """
    if not padding and not flip:
        return images
    _, channels, height, width = images.shape
    padded = F.pad(images, (padding, padding, padding, padding))
    top, left, mirrored = _draw(indices, stream, padding, flip)
    x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - x, x)
    rows = top[:, None] + y
    pixels = (rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]).flatten(1)
    crops = padded.flatten(2).gather(2, pixels[:, None, :].expand(-1, channels, -1))
    return crops.view(-1, channels, height, width)


def _draw(indices: Tensor, stream: int | Tensor, padding: int, flip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Top and left offset, int64 (B,), and whether to mirror, bool (B,). The modulo is uniform to 1 in 2^27."""
    bits = random_bits(indices, stream)
    offsets = 2 * padding + 1
    top, left = (bits >> 1 & 0x7FFFFFFF) % offsets, (bits >> 32 & 0x7FFFFFFF) % offsets
    return top, left, (bits & int(flip)).bool()


def normalize(
    images: Tensor, mean: Tensor, std: Tensor, *, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """uint8 images (B, C, H, W) as `(images / 255 - mean) / std`; mean and std (C,) are those of images in [0, 1]."""
    scale = (1 / (255 * std.to(dtype))).view(-1, 1, 1)
    shift = (-mean / std).to(dtype).view(-1, 1, 1)
    return torch.addcmul(shift, images.to(dtype, memory_format=memory_format), scale)
