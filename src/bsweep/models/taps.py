"""Convolutions without those elements (taps) of their kernels that are only ever multiplied by
padding.

A kernel may be larger than its feature map. In the last stage of a ResNet-18 on 32x32 images the
maps are 1x1, so only the middle tap of a 3x3 kernel meets data. The other taps add zero, and their
gradient is zero.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.numerics.vector import GRADIENT_PLACE


def trim(model: nn.Module) -> nn.Module:
    """Make those convolutions of `model` that pad with zeros leave out the kernel elements (taps)
    that are only ever multiplied by padding, and return `model`.

    This changes plain `nn.Conv2d` modules whose padding is given in numbers.
    """
    for module in model.modules():
        if (
            type(module) is nn.Conv2d
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            # Parameters, names and initial values stay the same.
            module.__class__ = TrimmedConv2d
    return model


class TrimmedConv2d(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 (its name there)
        padding: tuple[int, ...] = self.padding  # type: ignore[assignment] # numbers, where `trim` took it
        sides = zip(
            input.shape[2:], self.kernel_size, self.stride, padding, self.dilation, strict=True
        )
        is_compiled = torch.compiler.is_compiling()
        # torch warns of caches in what it compiles, and cannot compile the backward pass below.
        taps = useful_taps.__wrapped__ if is_compiled else useful_taps
        (top, bottom, vertical), (left, right, horizontal) = (taps(*side) for side in sides)
        if (bottom - top, right - left) != self.kernel_size:
            weight = (
                weight[:, :, top:bottom, left:right]
                if is_compiled
                else _Taps.apply(weight, top, bottom, left, right)  # type: ignore[no-untyped-call]
            )
        return F.conv2d(
            input, weight, bias, self.stride, (vertical, horizontal), self.dilation, self.groups
        )


class _Taps(torch.autograd.Function):
    """An autograd function that slices a convolution's weight and has a faster backward pass than
    autograd's own slicing. The slice is `weight[:, :, top:bottom, left:right]`.

    The backward pass of autograd's slicing fills a gradient with zeros once for each dimension.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
        ctx.weight, ctx.where = (
            weight,
            (slice(None), slice(None), slice(top, bottom), slice(left, right)),
        )
        return weight[:, :, top:bottom, left:right].clone(memory_format=torch.preserve_format)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The place is removed so that only one backward pass overwrites it; later ones add to it.
        place = vars(ctx.weight).pop(GRADIENT_PLACE, None)
        whole = torch.zeros_like(ctx.weight) if place is None else place.detach().zero_()
        whole[ctx.where] = gradient
        return whole, None, None, None, None


@functools.cache
def useful_taps(
    size: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[int, int, int]:
    """Return the range of kernel elements (taps) that are multiplied by data along one side of a
    feature map, and the padding for this range.

    Args:
        size: The length of the side.
        kernel: The number of taps.
        stride: The stride of the convolution.
        padding: The padding at either end.
        dilation: The dilation of the kernel.

    Returns:
        The first tap, the tap after the last one, and the padding that these taps need. If there
        are no such taps, or no padding gives the same outputs: all taps and `padding`.
    """
    num_outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    useful = [
        tap
        for tap in range(kernel)
        if any(
            0 <= output * stride - padding + tap * dilation < size for output in range(num_outputs)
        )
    ]
    whole = 0, kernel, padding
    if not useful:
        return whole
    first, stop = useful[0], useful[-1] + 1
    rest = padding - first * dilation
    fits = (size + 2 * rest - dilation * (stop - first - 1) - 1) // stride + 1 == num_outputs
    return (first, stop, rest) if rest >= 0 and fits else whole
