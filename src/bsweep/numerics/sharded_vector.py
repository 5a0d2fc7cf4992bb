"""The flat vector of a worker that holds a part of the parameters of a model, as DTensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from bsweep.core.torch_private import fsdp_parameters, move_fsdp_parameter, private
from bsweep.numerics.vector import Flat, Slice


@dataclass(frozen=True, eq=False)
class OwnPart:
    """This worker's part of one parameter of a model.

    `move` moves it into a 1-D tensor of `num_elements`, of which the last may be padding. It
    returns the parameter that the model has from then on, and the same as a DTensor, which may be
    one object.
    """

    name: str
    of: nn.Parameter
    num_elements: int
    move: Callable[[Tensor], tuple[nn.Parameter, nn.Parameter]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple((self.of.to_local() if isinstance(self.of, DTensor) else self.of).shape)


def of_fsdp(model: nn.Module) -> Iterator[OwnPart]:
    """Yield this worker's parts of a model that `torch.distributed.fsdp.fully_shard` has split.

    FSDP2 divides each parameter by its first dimension, and gives workers with a smaller part
    elements without meaning (padding), which stay zero.

    Args:
        model: The model, some of whose parameters may not be trained.
    """
    for name, kept in fsdp_parameters(model):
        parameter = kept.sharded_param
        if parameter.requires_grad:

            def move(
                place: Tensor, kept: object = kept, parameter: nn.Parameter = parameter
            ) -> tuple[nn.Parameter, nn.Parameter]:
                move_fsdp_parameter(kept, place)
                return parameter, parameter

            yield OwnPart(name, parameter, kept.padded_sharded_param_size.numel(), move)


def of_layers(model: nn.Module, mesh: DeviceMesh) -> Iterator[OwnPart]:
    """Yield this worker's parts of a model of which `parallelize_module` has divided some layers.
    Other parameters are whole and equal on all workers of the mesh.

    Args:
        model: The model, some of whose parameters may not be trained.
        mesh: The workers that hold one model together.
    """
    holders: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            holders.setdefault(parameter, []).append((module, name))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:

            def move(
                place: Tensor, parameter: nn.Parameter = parameter
            ) -> tuple[nn.Parameter, nn.Parameter]:
                if not isinstance(parameter, DTensor):
                    parameter.data = place.view(parameter.shape).copy_(parameter.data)
                    same = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
                    return parameter, nn.Parameter(same)
                local = parameter.to_local().detach()
                moved = nn.Parameter(_with_part(parameter, place.view(local.shape).copy_(local)))
                for module, own_name in holders[parameter]:
                    setattr(module, own_name, moved)
                return moved, moved

            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            yield OwnPart(name, parameter, local.numel(), move)


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


class ShardedVector(Flat):
    """This worker's parts of a model's parameters and of their gradients, as two flat tensors.

    The slices include padding. `tensors` are DTensors of the whole parameters. Their parts on this
    worker are views of `parameters`, and those of their `grad` are views of `gradients`.
    """

    tensors: tuple[nn.Parameter, ...]

    def __init__(self, parts: Iterable[OwnPart]) -> None:
        every = sorted(enumerate(parts), key=lambda item: item[1].of.dim() < 2)
        slices, start = [], 0
        for index, own in every:
            stop = start + own.num_elements
            slices.append(Slice(own.name, start, stop, own.shape, own.of.dim() >= 2, index))
            start = stop
        first = every[0][1].of
        super().__init__(slices, first.dtype, first.device)
        self.gradients.zero_()
        moved = [
            own.move(self.parameters[part.start : part.stop])
            for part, (_, own) in zip(self.slices, every, strict=True)
        ]
        self._trained = tuple(trained for trained, _ in moved)  # the model's own
        self.tensors = tuple(tensor for _, tensor in moved)
        self._wholes: list[DTensor] = []  # of the gradients
        for part, tensor in zip(self.slices, self.tensors, strict=True):
            tensor.grad = self.whole(self.gradients, part)
            self._wholes.append(tensor.grad)

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    def whole(self, flat: Tensor, part: Slice) -> DTensor:
        """Return the tensor of one slice as a DTensor, whose part on this worker is a view.

        Args:
            flat: A tensor as long as `parameters`, such as a state of the optimizer.
            part: One of `slices`.

        Returns:
            A DTensor with the shape of the whole parameter.
        """
        like = self.tensors[self.slices.index(part)]
        assert isinstance(like, DTensor)
        return _with_part(like, self._view(flat, part))

    def drop_gradients(self) -> None:
        """Drop all gradients before a step, so that the first pass stores new ones instead of
        adding.
        """
        for tensor in (*self._trained, *self.tensors):
            tensor.grad = None

    def collect_gradients(self, tensors: Iterable[nn.Parameter] | None = None) -> None:
        """Copy the gradients of all tensors into the gradient vector.

        Make each tensor's `grad` a view of this vector. A tensor that no pass reached gets a
        gradient of zero.
        """
        views, gradients = [], []
        for part, trained, tensor, whole in zip(
            self.slices, self._trained, self.tensors, self._wholes, strict=True
        ):
            view, gradient = self._view(self.gradients, part), trained.grad
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

    def _view(self, flat: Tensor, part: Slice) -> Tensor:
        return flat[part.start : part.start + math.prod(part.shape)].view(part.shape)
