"""Crops and flips against a slow reference, and that they depend on (seed, epoch, example)
alone.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from bsweep.data.inputs import crop_and_flip, draw, normalize

MASK = (1 << 64) - 1


def reference_bits(counter: int, *key: int | str) -> int:
    """splitmix64 as published, in unsigned Python integers."""
    start = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    x = (start + counter * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference_crop(
    image: Tensor, example: int, *, seed: int, epoch: int, padding: int, flip: bool
) -> Tensor:
    """One pixel after the other, black wherever the image has none."""
    bits = reference_bits(example, "crop", seed, epoch)
    top = (bits >> 1 & 0x7FFFFFFF) % (2 * padding + 1)
    left = (bits >> 32 & 0x7FFFFFFF) % (2 * padding + 1)
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            from_x = width - 1 - x if flip and bits & 1 else x
            row, column = top + y - padding, left + from_x - padding
            if 0 <= row < height and 0 <= column < width:
                out[:, y, x] = image[:, row, column]
    return out


def some_images(shape: tuple[int, int, int] = (3, 8, 8)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (20, *shape), dtype=torch.uint8, generator=generator)


def cropped(images: Tensor, indices: Tensor, *, padding: int, flip: bool) -> Tensor:
    """Crops in an epoch of 20 examples."""
    draws = draw(20, 5, 2, padding=padding, flip=flip, device=images.device)
    return crop_and_flip(images, indices, draws=draws, padding=padding)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9)])
def test_crops_are_those_of_the_reference(
    padding: int, flip: bool, shape: tuple[int, int, int]
) -> None:
    images = some_images(shape)
    indices = torch.tensor([3, 0, 19, 7, 3])
    crops = cropped(images[indices], indices, padding=padding, flip=flip)
    expected = [
        reference_crop(images[i], i, seed=5, epoch=2, padding=padding, flip=flip)
        for i in indices.tolist()
    ]
    assert torch.equal(crops, torch.stack(expected))
    assert crops.dtype == torch.uint8


def test_an_empty_part_is_an_empty_batch() -> None:
    images, none = some_images(), torch.tensor([], dtype=torch.int64)
    crops = cropped(images[:0], none, padding=4, flip=True)
    assert crops.shape == (0, 3, 8, 8)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalize_is_the_formula(memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    images, mean, std = some_images(), torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 0.4])
    inputs = normalize(images, mean, std, dtype=dtype, memory_format=memory_format)
    expected = (images.double() / 255 - mean.double().view(3, 1, 1)) / std.double().view(3, 1, 1)
    torch.testing.assert_close(inputs.double(), expected, rtol=1e-6, atol=1e-6)
    assert inputs.dtype == dtype
    assert inputs.is_contiguous(memory_format=memory_format)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_crops_the_same_without_waiting_for_the_host() -> None:
    images, indices = some_images(), torch.tensor([3, 0, 19, 7])
    expected = cropped(images[indices], indices, padding=4, flip=True)
    mean, std = torch.full((3,), 0.5).cuda(), torch.full((3,), 0.25).cuda()
    indices = indices.cuda()
    some = images.cuda()[indices]
    draws = draw(len(images), 5, 2, padding=4, flip=True, device=torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        crops = crop_and_flip(some, indices, draws=draws, padding=4)
        normalize(crops, mean, std, dtype=torch.float32, memory_format=torch.channels_last)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(crops.cpu(), expected)
