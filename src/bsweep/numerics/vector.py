"""All parameters of a model in one contiguous tensor, all gradients in another.

Whatever travels between workers is a slice of these two. The model's tensors are views of them with
their own strides (channels_last too), so an exchange of the whole model is one call on one
contiguous tensor, which Horovod insists on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bsweep.numerics.precision import LossScale


@dataclass(frozen=True)
class Slice:
    """A model tensor's place: `vector.parameters[start:stop]`, in the order of its storage, not of
    its indices.

    A parameter server may hold a part of one: then `shape` is flat.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    is_matrix: bool  # has two dimensions or more: a weight, not a bias or a normalisation scale
    index: int  # of the tensor in the model's own order, which is not the vector's

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


GRADIENT_PLACE = "gradient_place"
"""Attribute of a tensor in a pass: where its gradient may be written, instead of being copied there
after the pass.

Whoever writes there takes the attribute away first: of a second pass, the gradient is added to what
is there.
"""

Zeros = Callable[[Tensor], Tensor]
"""Makes zeros like a tensor, in memory of its choice."""


class Flat:
    """Slices that follow one another in a tensor of parameters and in another of gradients,
    matrices first.

    `tensors` are views of the parameters, whose `grad` is a view of the gradients; most often one
    for each slice.
    """

    tensors: tuple[nn.Parameter, ...]
    scale: LossScale | None = None
    """What the gradients are times until the optimizer steps, in fp16."""

    def __init__(
        self,
        slices: Sequence[Slice],
        dtype: torch.dtype,
        device: torch.device,
        new_gradients: Zeros = torch.zeros_like,
    ) -> None:
        self.slices = tuple(slices)
        count = sum(part.num_elements for part in slices)
        self.num_matrix_elements = sum(part.num_elements for part in slices if part.is_matrix)
        self.parameters = torch.empty(count, dtype=dtype, device=device)
        self.gradients = new_gradients(self.parameters)

    @property
    def num_bytes(self) -> int:
        return self.gradients.numel() * self.gradients.element_size()

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Borders (start, stop) of `count` equal parts; sizes differ by one element at most."""
        size = self.gradients.numel()
        borders = [size * i // count for i in range(count + 1)]
        return list(itertools.pairwise(borders))


class Vector(Flat):
    """The model's parameters and gradients as two flat tensors of `num_parameters` elements.

    Matrices come first and vectors (biases, normalisation scales) last, each in the model's order,
    so that weight decay on matrices alone is one slice. A step begins with `drop_gradients`, and
    after its backward passes `collect_gradients` brings them into the vector: one copy of those
    that were not written there at once, where accumulating there would take zeroing and adding.
    """

    def __init__(self, model: nn.Module, new_gradients: Zeros = torch.zeros_like) -> None:
        self.tensors = tuple(tensor for _, _, tensor in _matrices_first(model))
        super().__init__(
            layout(model), self.tensors[0].dtype, self.tensors[0].device, new_gradients
        )
        self._gradient_views: dict[nn.Parameter, Tensor] = {}
        for part, tensor in zip(self.slices, self.tensors, strict=True):
            view = _like(self.parameters[part.start : part.stop], tensor)
            view.copy_(tensor.detach())
            tensor.data = view
            self._gradient_views[tensor] = tensor.grad = _like(
                self.gradients[part.start : part.stop], tensor
            )

    def drop_gradients(self) -> None:
        """Have no gradients, and let whoever computes one write it into the vector at once."""
        for tensor, view in self._gradient_views.items():
            tensor.grad = None
            vars(tensor)[GRADIENT_PLACE] = view

    def collect_gradients(self, tensors: Iterable[nn.Parameter] | None = None) -> None:
        """Copy what backward passes left at `tensors` (by default at all) into the vector; `grad`
        is its view again.

        A tensor that no pass reached has a gradient of zero. One whose gradient is in the vector
        already keeps it.
        """
        views, gradients = [], []
        for tensor in self.tensors if tensors is None else tensors:
            view, gradient = self._gradient_views[tensor], tensor.grad
            tensor.grad = view
            vars(tensor).pop(GRADIENT_PLACE, None)
            if gradient is None:
                view.zero_()
            elif gradient.data_ptr() != view.data_ptr():
                views.append(view)
                gradients.append(gradient)
        if views:
            torch._foreach_copy_(views, gradients)


class Anchor(Flat):
    """A copy of a vector's parameters, from which models move away; `tensors` are its own.

    Its gradients are the vector's own memory, which is free between two steps, or memory of their
    own.
    """

    def __init__(self, vector: Flat, own_gradients: bool) -> None:
        self.slices, self.num_matrix_elements = vector.slices, vector.num_matrix_elements
        self.parameters = vector.parameters.clone()
        self.gradients = torch.zeros_like(vector.gradients) if own_gradients else vector.gradients
        self.tensors = (nn.Parameter(self.parameters),)
        self.tensors[0].grad = self.gradients


class Shard(Flat):
    """What a parameter server holds: some slices of a vector, packed, and tensors of its own
    instead of a model's.
    """

    def __init__(self, slices: Sequence[Slice], dtype: torch.dtype) -> None:
        stops = list(itertools.accumulate(part.num_elements for part in slices))
        packed = [
            replace(part, start=stop - part.num_elements, stop=stop)
            for part, stop in zip(slices, stops, strict=True)
        ]
        super().__init__(packed, dtype, torch.device("cpu"))
        self.tensors = tuple(
            nn.Parameter(self.parameters[p.start : p.stop].view(p.shape)) for p in packed
        )
        for part, tensor in zip(packed, self.tensors, strict=True):
            tensor.grad = self.gradients[part.start : part.stop].view(part.shape)


def layout(model: nn.Module) -> tuple[Slice, ...]:
    """Where a vector of this model holds its tensors; the model may be on the meta device."""
    slices, start = [], 0
    for index, name, tensor in _matrices_first(model):
        stop = start + tensor.numel()
        slices.append(Slice(name, start, stop, tuple(tensor.shape), tensor.dim() >= 2, index))
        start = stop
    return tuple(slices)


def _matrices_first(model: nn.Module) -> list[tuple[int, str, nn.Parameter]]:
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    numbered = [(index, name, tensor) for index, (name, tensor) in enumerate(trained)]
    return sorted(numbered, key=lambda item: item[2].dim() < 2)


def _like(flat: Tensor, tensor: Tensor) -> Tensor:
    """A view of `flat` with the shape and the strides of a dense `tensor`."""
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
