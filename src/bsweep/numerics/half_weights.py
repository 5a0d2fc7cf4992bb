"""The cast of a model's weights to half precision, all at once.

torch's autocast casts each weight by itself, and each gradient by itself on the way back. On a GPU,
the start of so many kernels takes longer than the computation of a small batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bsweep.core.torch_private import private
from bsweep.numerics.vector import GRADIENT_PLACE, Slice, Vector

_ALIGNED = 8  # elements, 16 bytes: the fast kernels of cuDNN and cuBLAS read so many at once
_CAST_BY_AUTOCAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class HalfWeights:
    """The weights and biases of a model's linear layers and convolutions, which autocast would cast
    one by one.

    Tensors that several modules share are left to autocast: the others may need them in fp32. So
    are tensors that would not be aligned.
    """

    def __init__(self, model: nn.Module, vector: Vector) -> None:
        slices = dict(zip(vector.tensors, vector.slices, strict=True))
        owners = Counter(
            tensor for module in model.modules() for tensor in module.parameters(recurse=False)
        )
        self._vector = vector
        self._places = [
            (module, name, tensor)
            for module in model.modules()
            if any(type(module).forward is kind.forward for kind in _CAST_BY_AUTOCAST)
            for name, tensor in module.named_parameters(recurse=False)
            if owners[tensor] == 1 and tensor in slices and not slices[tensor].start % _ALIGNED
        ]
        self._slices = [slices[tensor] for _, _, tensor in self._places]

    @contextmanager
    def cast(self, dtype: torch.dtype) -> Iterator[None]:
        """Let the model's layers see these weights in the type `dtype` while the block runs.

        The numbers are those of autocast. The gradients reach the model's own tensors only when all
        of them are computed.
        """
        tensors = [tensor for _, _, tensor in self._places]
        halves = _Cast.apply(self._vector.parameters, self._slices, dtype, *tensors)  # type: ignore[no-untyped-call]
        for (module, name, _), half in zip(self._places, halves, strict=True):
            vars(module)[name] = half  # found before the module's parameter
        try:
            yield
        finally:
            for module, name, _ in self._places:
                del vars(module)[name]


class _Cast(torch.autograd.Function):
    """An autograd function that casts parts of a vector at once, and their gradients back at once,
    into the gradient vector where that is shown.
    """

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, slices: list[Slice], dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.tensors = tensors
        ctx.set_materialize_grads(False)
        half = flat.to(dtype)
        return tuple(
            half.as_strided(tensor.shape, tensor.stride(), part.start)
            for part, tensor in zip(slices, tensors, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for tensor, gradient in zip(ctx.tensors, gradients, strict=True):
            # The place is removed so that only one backward pass overwrites it; later ones add.
            place = None if gradient is None else vars(tensor).pop(GRADIENT_PLACE, None)
            wide = torch.empty_like(tensor) if place is None else place.detach()
            found.append(None if gradient is None else wide)
        wides = [wide for wide in found if wide is not None]
        if wides:
            private("copy_each")(wides, [each for each in gradients if each is not None])
        return (None, None, None, *found)
