"""The flat vector of a worker that holds a part of the parameters of a model, as DTensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from bsweep.core.torch_private import fsdp_parameters, move_fsdp_parameter, private
from bsweep.numerics.vector import Slice, Vector


class OwnPart(ABC):
    """This worker's part of one parameter of a model."""

    def __init__(self, name: str, of: nn.Parameter, is_matrix: bool) -> None:
        self.name, self.of, self.is_matrix = name, of, is_matrix
        self.shape = tuple((of.to_local() if isinstance(of, DTensor) else of).shape)

    @property
    def num_elements(self) -> int:
        """The number of elements, with padding."""
        return math.prod(self.shape)

    @abstractmethod
    def move(self, place: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        """Move the part to another place in memory.

        Args:
            place: A 1-D tensor of `num_elements`.

        Returns:
            The parameter that the model has from then on, and the same as a DTensor, which may be
            one object.
        """


class _OfFSDP(OwnPart):
    def __init__(self, name: str, kept: Any) -> None:
        super().__init__(name, kept.sharded_param, kept.sharded_param.dim() >= 2)
        self._kept = kept

    @property
    def num_elements(self) -> int:
        return cast(int, self._kept.padded_sharded_param_size.numel())

    def move(self, place: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        move_fsdp_parameter(self._kept, place)
        return self.of, self.of


class _OfLayers(OwnPart):
    def __init__(
        self, name: str, of: nn.Parameter, is_matrix: bool, model: nn.Module, mesh: DeviceMesh
    ) -> None:
        super().__init__(name, of, is_matrix)
        self._model, self._mesh = model, mesh

    def move(self, place: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        whole, view = self.of, place.view(self.shape)
        if isinstance(whole, DTensor):
            view.copy_(whole.to_local().detach())
            moved = nn.Parameter(_with_part(whole, view))
            module, _, name = self.name.rpartition(".")
            setattr(self._model.get_submodule(module), name, moved)
            return moved, moved
        whole.data = view.copy_(whole.data)
        same = DTensor.from_local(view, self._mesh, [Replicate()], run_check=False)
        return whole, nn.Parameter(same)


def of_fsdp(model: nn.Module) -> list[OwnPart]:
    """Return this worker's parts of a model that `torch.distributed.fsdp.fully_shard` has split.

    FSDP2 divides each parameter by its first dimension, and gives workers with a smaller part
    elements without meaning (padding), which stay zero.

    Args:
        model: The model.

    Returns:
        The parts of parameters that are trained, in the model's order.
    """
    every = fsdp_parameters(model)
    return [_OfFSDP(name, kept) for name, kept in every if kept.sharded_param.requires_grad]


def of_layers(
    model: nn.Module, mesh: DeviceMesh, shapes: Mapping[str, Sequence[int]]
) -> list[OwnPart]:
    """Return this worker's parts of a model of which `parallelize_module` has divided some layers.
    Other parameters are whole and equal on all workers of the mesh.

    Args:
        model: The model. Modules share no parameter that is divided.
        mesh: The workers that hold one model together.
        shapes: The shape of each parameter before its layer was divided, which may have added a
            dimension.

    Returns:
        The parts of parameters that are trained, in the model's order.
    """
    return [
        _OfLayers(name, one, len(shapes[name]) >= 2, model, mesh)
        for name, one in model.named_parameters()
        if one.requires_grad
    ]


def _with_part(like: DTensor, part: Tensor) -> DTensor:
    """Return a DTensor of the shape of `like` with another part on this worker."""
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


class ShardedVector(Vector):
    """This worker's parts of a model's parameters and of their gradients, as two flat tensors.

    The slices include padding. `tensors` are DTensors of the whole parameters. Their parts on this
    worker are views of `parameters`, and those of their `grad` are views of `gradients`.
    """

    tensors: tuple[nn.Parameter, ...]

    def __init__(self, parts: Iterable[OwnPart]) -> None:
        every = sorted(enumerate(parts), key=lambda item: not item[1].is_matrix)
        slices, start = [], 0
        for index, own in every:
            stop = start + own.num_elements
            slices.append(Slice(own.name, start, stop, own.shape, own.is_matrix, index))
            start = stop
        first = every[0][1].of
        super(Vector, self).__init__(slices, first.dtype, first.device)
        self.gradients.zero_()
        moved = [
            own.move(self.parameters[part.start : part.stop])
            for part, (_, own) in zip(self.slices, every, strict=True)
        ]
        self._trained = tuple(trained for trained, _ in moved)  # the model's own
        self.tensors = tuple(tensor for _, tensor in moved)
        self.num_parameters = sum(tensor.numel() for tensor in self.tensors)
        self._wholes: list[DTensor] = []  # of the gradients
        for part, tensor in zip(self.slices, self.tensors, strict=True):
            tensor.grad = self.whole(self.gradients, part)
            self._wholes.append(tensor.grad)

    def num_copies(self, part: Slice) -> int:
        like = self.tensors[self.slices.index(part)]
        assert isinstance(like, DTensor)
        sizes = zip(like.device_mesh.shape, like.placements, strict=True)
        return math.prod(size for size, placed in sizes if placed.is_replicate())

    def whole(self, flat: Tensor, part: Slice, start: int = 0) -> DTensor:
        """Return the tensor of one slice as `Vector.whole` does: a DTensor with the shape of the
        whole parameter, whose part on this worker is a view.
        """
        like = self.tensors[self.slices.index(part)]
        assert isinstance(like, DTensor)
        return _with_part(like, _view(flat[part.start - start :], part.shape))

    def zero_gradients(self) -> None:
        """Drop all gradients before a step, so that the first pass stores new ones instead of
        adding. `collect_gradients` follows after its last pass.
        """
        for tensor in (*self._trained, *self.tensors):
            tensor.grad = None

    def collect_gradients(self) -> None:
        """Copy the gradients of all tensors into the gradient vector.

        Make each tensor's `grad` a view of this vector. A tensor that no pass reached gets a
        gradient of zero.
        """
        views, gradients = [], []
        for part, trained, tensor, whole in zip(
            self.slices, self._trained, self.tensors, self._wholes, strict=True
        ):
            view, gradient = _view(self.gradients[part.start :], part.shape), trained.grad
            trained.grad, tensor.grad = None, whole
            if gradient is None:
                view.zero_()
                continue
            views.append(view)
            if isinstance(gradient, DTensor):
                gradient = gradient.redistribute(placements=whole.placements).to_local()
            gradients.append(gradient)
        if views:
            private("copy_each")(views, gradients)


def _view(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat[: math.prod(shape)].view(shape)
