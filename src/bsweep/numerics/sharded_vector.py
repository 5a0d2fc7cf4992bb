"""The flat vector of a worker that holds a part of every parameter of a model (FSDP2)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bsweep.core.torch_private import fsdp_parameters, move_fsdp_parameter, private
from bsweep.numerics.vector import Slice, Vector


class ShardedVector(Vector):
    """This worker's parts of a model's parameters and of their gradients, as two flat tensors.

    The model is one that `torch.distributed.fsdp.fully_shard` has split. FSDP2 divides each
    parameter by its first dimension, and gives workers with a smaller part elements without meaning
    (padding), which stay zero. The slices include the padding.

    `tensors` are the model's parameters, DTensors of the whole parameters' shapes. Their parts on
    this worker are views of `parameters`, and those of their `grad` are views of `gradients`.
    """

    tensors: tuple[nn.Parameter, ...]

    def __init__(self, model: nn.Module) -> None:
        every = [(name, p) for name, p in fsdp_parameters(model) if p.sharded_param.requires_grad]
        every.sort(key=lambda item: item[1].sharded_param.dim() < 2)
        slices, start = [], 0
        for index, (name, one) in enumerate(every):
            size = one.padded_sharded_param_size.numel()
            shape = tuple(one.sharded_param.to_local().shape)
            is_matrix = one.sharded_param.dim() >= 2
            slices.append(Slice(name, start, start + size, shape, is_matrix, index))
            start += size
        self.tensors = tuple(one.sharded_param for _, one in every)
        super(Vector, self).__init__(slices, self.tensors[0].dtype, self.tensors[0].device)
        self.gradients.zero_()
        self._parts: dict[nn.Parameter, Tensor] = {}  # of the gradients
        for part, (_, one) in zip(self.slices, every, strict=True):
            move_fsdp_parameter(one, self.parameters[part.start : part.stop])
            self._parts[one.sharded_param] = _view(self.gradients[part.start :], part.shape)
            one.sharded_param.grad = self.whole(self.gradients, part)

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    def whole(self, flat: Tensor, part: Slice, start: int = 0) -> DTensor:
        """Return the tensor of one slice as a DTensor, whose part on this worker is a view.

        Args:
            flat: A tensor with an element for each of `parameters` from `start` on, such as a state
                of the optimizer.
            part: One of `slices`.
            start: The index in `parameters` of the first element of `flat`.

        Returns:
            A DTensor with the shape of the whole parameter.
        """
        like = self.tensors[self.slices.index(part)]
        assert isinstance(like, DTensor)
        return DTensor.from_local(
            _view(flat[part.start - start :], part.shape),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def drop_gradients(self) -> None:
        """Drop all gradients before a step; FSDP2 then stores new ones instead of adding."""
        for tensor in self.tensors:
            tensor.grad = None

    def collect_gradients(self, tensors: Iterable[nn.Parameter] | None = None) -> None:
        """Copy the gradients of `tensors` (default: all) into the gradient vector.

        Make each tensor's `grad` a view of this vector. A tensor that no pass reached gets a
        gradient of zero.
        """
        views, gradients = [], []
        for part, tensor in zip(self.slices, self.tensors, strict=True):
            view, gradient = self._parts[tensor], tensor.grad
            tensor.grad = self.whole(self.gradients, part)
            if gradient is None:
                view.zero_()
            else:
                assert isinstance(gradient, DTensor)
                views.append(view)
                gradients.append(gradient.to_local())
        if views:
            private("copy_each")(views, gradients)


def _view(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat[: math.prod(shape)].view(shape)
