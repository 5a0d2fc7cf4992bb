"""All parameters of a model in one contiguous tensor, all gradients in another.

Whatever travels between workers is a slice of these two. The model's tensors are views of them with their own strides
(channels_last too), so an exchange of the whole model is one call on one contiguous tensor, which Horovod insists on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slice:
    """A model tensor's place: `vector.parameters[start:stop]`, in the order of its storage, not of its indices."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    is_matrix: bool  # has two dimensions or more: a weight, not a bias or a normalisation scale


class Vector:
    """The model's parameters and gradients as two flat tensors of `num_parameters` elements.

    Matrices come first and vectors (biases, normalisation scales) last, each in the model's order, so that weight
    decay on matrices alone is one slice. Gradients accumulate in place: call `zero_gradients` before each step.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
        named.sort(key=lambda item: item[1].dim() < 2)
        count = sum(tensor.numel() for _, tensor in named)
        first = named[0][1]
        self.parameters = torch.empty(count, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.parameters)
        self.tensors: tuple[nn.Parameter, ...] = tuple(tensor for _, tensor in named)
        slices, start = [], 0
        for name, tensor in named:
            stop = start + tensor.numel()
            slices.append(Slice(name, start, stop, tuple(tensor.shape), tensor.dim() >= 2))
            view = _like(self.parameters[start:stop], tensor)
            view.copy_(tensor.detach())
            tensor.data = view
            tensor.grad = _like(self.gradients[start:stop], tensor)
            start = stop
        self.slices = tuple(slices)
        self.num_matrix_elements = sum(math.prod(part.shape) for part in slices if part.is_matrix)

    @property
    def num_bytes(self) -> int:
        return self.gradients.numel() * self.gradients.element_size()

    def zero_gradients(self) -> None:
        self.gradients.zero_()

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Borders (start, stop) of `count` equal parts; sizes differ by one element at most."""
        size = self.gradients.numel()
        borders = [size * i // count for i in range(count + 1)]
        return list(itertools.pairwise(borders))


def _like(flat: Tensor, tensor: Tensor) -> Tensor:
    """A view of `flat` with the shape and the strides of a dense `tensor`."""
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
