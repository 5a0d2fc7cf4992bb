"""Flat vectors of a model: all trained parameters in one contiguous tensor, their gradients in
another.

The model's tensors are views of these two with their own strides (also channels_last). So a
strategy can exchange the whole model in one call on one contiguous tensor; Horovod requires
contiguous tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bsweep.numerics.precision import LossScale


@dataclass(frozen=True)
class Slice:
    """The position of one tensor of a model in the model's flat vector:
    `vector.parameters[start:stop]`.

    The elements are in the order of the tensor's storage, not of its indices. A parameter server
    may hold a part of a tensor; `shape` is then one-dimensional.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    is_matrix: bool  # has two dimensions or more: a weight, not a bias or a normalisation scale
    index: int  # of the tensor in the model's own order, which differs from the vector's

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


def ranges(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of the flat vector that some of its slices cover.

    Adjacent slices are joined to one range.
    """
    joined: list[tuple[int, int]] = []
    for piece in slices:
        start = joined.pop()[0] if joined and joined[-1][1] == piece.start else piece.start
        joined.append((start, piece.stop))
    return joined


def part_of(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: the whole tensor, unless it is a DTensor
    of torch, whose parts lie on several workers.
    """
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


class Flat:
    """A flat tensor of parameters and a flat tensor of their gradients, both divided into the same
    slices.

    Slices of matrices come first.

    `tensors` are views of the parameters, and their `grad` are views of the gradients. In most
    cases there is one tensor for each slice.
    """

    tensors: tuple[nn.Parameter, ...]
    by_tensor = False
    """True if every optimizer takes the tensors themselves, because they are no views of one."""

    scale: LossScale | None = None
    """The loss scale of fp16, or None. Gradients are multiplied by it until a codec takes them, or
    else until the optimizer's step.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slices = tuple(slices)
        count = sum(piece.num_elements for piece in slices)
        self.parameters = torch.empty(count, dtype=dtype, device=device)
        self.gradients = torch.zeros_like(self.parameters)
        self.num_parameters = count
        """The number of parameters of the whole model or shard."""

    @property
    def num_bytes(self) -> int:
        return self.gradients.nbytes

    def zero_gradients(self) -> None:
        """Set all gradients to zero before the passes of a step, which add to them."""
        self.gradients.zero_()

    @property
    def held(self) -> Sequence[Tensor]:
        """The tensors in whose memory this worker holds its parameters, or its parts of them."""
        return [self.parameters]

    def num_copies(self, piece: Slice) -> int:
        """Return how many workers that hold one model together have equal copies of a slice."""
        return 1


class Vector(Flat):
    """A model's trained parameters and their gradients, as two flat tensors of equal length.

    The model's own tensors are views of them.

    Matrices come first and vectors (biases, normalisation scales) last, each in the model's order,
    so that weight decay on matrices alone is one slice. Each tensor's `grad` stays a view of
    `gradients`: a step sets them to zero, and its backward passes add to them in place.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors = tuple(tensor for _, _, tensor in _matrices_first(model))
        super().__init__(layout(model), self.tensors[0].dtype, self.tensors[0].device)
        for piece, tensor in zip(self.slices, self.tensors, strict=True):
            view = _like(self.parameters[piece.start : piece.stop], tensor)
            view.copy_(tensor.detach())
            tensor.data = view
            tensor.grad = _like(self.gradients[piece.start : piece.stop], tensor)

    @contextmanager
    def reading(self, parameters: Tensor) -> Iterator[None]:
        """Let the model's tensors be views of `parameters` within the `with` block, so that passes
        in it compute with other weights. Gradients stay where they are.

        Args:
            parameters: A flat tensor like that of this vector.
        """
        self._be_views_of(parameters)
        try:
            yield
        finally:
            self._be_views_of(self.parameters)

    def _be_views_of(self, parameters: Tensor) -> None:
        for piece, tensor in zip(self.slices, self.tensors, strict=True):
            tensor.data = _like(parameters[piece.start : piece.stop], tensor)


class Anchor(Flat):
    """A copy of a model's parameters that stays fixed during a round, while each worker trains its
    own model.

    `tensors` holds one parameter of its own. The gradients use the vector's memory, which is free
    between two steps.
    """

    def __init__(self, vector: Flat) -> None:
        self.slices = vector.slices
        self.parameters = vector.parameters.clone()
        self.gradients = vector.gradients
        self.tensors = (nn.Parameter(self.parameters),)
        self.tensors[0].grad = self.gradients


class Shard(Flat):
    """The part of a model's parameters that one parameter server holds, packed into one flat
    tensor.

    Its `tensors` are its own, not a model's.
    """

    def __init__(self, slices: Sequence[Slice], dtype: torch.dtype) -> None:
        packed, start = [], 0
        for piece in slices:
            packed.append(replace(piece, start=start, stop=start + piece.num_elements))
            start += piece.num_elements
        super().__init__(packed, dtype, torch.device("cpu"))
        self.tensors = tuple(nn.Parameter(view) for view in self._views(self.parameters))
        for tensor, view in zip(self.tensors, self._views(self.gradients), strict=True):
            tensor.grad = view

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat[piece.start : piece.stop].view(piece.shape) for piece in self.slices]


def layout(model: nn.Module) -> tuple[Slice, ...]:
    """Return the position of each trained tensor of a model in the model's flat vector.

    The model may be on the meta device.
    """
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
    """Return a view of `flat` with the shape and the strides of a dense `tensor`."""
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
