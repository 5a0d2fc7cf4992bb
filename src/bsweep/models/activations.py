"""The memory that the passes (forward and backward) of a model take, counted without computing."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from bsweep import models
from bsweep.config.groups import ModelConfig
from bsweep.core.torch_private import private
from bsweep.data.info import DataInfo
from bsweep.numerics import objective
from bsweep.numerics.precision import AUTOCAST, stored


@functools.cache  # a sweep asks for every point
def bytes_of_passes(
    card: ModelConfig,
    info: DataInfo,
    local_batch: int,
    *,
    precision: str,
    channels_last: bool,
    num_passes: int,
    gradient_share: float,
) -> int:
    """Return the largest number of bytes that the passes of a step take at one time: inputs,
    activations, new gradients, the buffers of the model, and parameters that are not trained.
    Trained parameters are not counted.

    torch's fake tensors have the shapes, types and lifetimes of the passes' tensors, but no values.
    What a kernel takes for itself is not counted.

    Args:
        card: The card of the model.
        info: The facts about the data set.
        local_batch: The number of examples of a pass.
        precision: The precision of the run, such as `bf16`.
        channels_last: Whether images and weights are stored channels last.
        num_passes: The number of passes of a step; two take as much as more.
        gradient_share: The share of each new gradient that stays until the passes end; the rest is
            dropped as soon as the gradient is complete.

    Returns:
        The number of bytes.

    Raises:
        Exception: Any that the model raises if its code needs values.
    """
    model = models.outlined(card, info.num_classes, info.shape).train()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    dtype, rounded = stored(precision), AUTOCAST.get(precision)
    of_inputs = rounded if rounded and card.casts_images_first else dtype
    live = _LiveBytes()
    kept: dict[int, Tensor] = {}  # of each gradient, by the identity of its parameter

    def keep_share(tensor: Tensor) -> None:
        kept[id(tensor)] = tensor.new_empty(int(gradient_share * tensor.numel()))
        tensor.grad = None

    def placed(tensor: Tensor, kind: torch.dtype) -> Tensor:
        kind = kind if tensor.is_floating_point() else tensor.dtype
        like = torch.empty(tensor.shape, dtype=kind, device="cpu")
        return like.to(memory_format=layout) if tensor.dim() == 4 else like

    with private("fake_tensors")(allow_non_fake_inputs=True):
        tensors = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensors[name] = placed(tensor, dtype).requires_grad_(tensor.requires_grad)
            if gradient_share < 1 and tensor.requires_grad:
                tensors[name].register_post_accumulate_grad_hook(keep_share)
        live.begin(list(tensors.values()))
        with live:
            inputs, targets = models.made_up(info, local_batch)
            inputs = placed(inputs, of_inputs)
            of_model = objective.of(model, targets)
            for _ in range(num_passes):
                with torch.autocast("cpu", rounded, enabled=rounded is not None):
                    outputs = functional_call(model, tensors, (inputs,))
                of_model.loss(outputs, targets).backward()
                del outputs
    return live.peak


class _LiveBytes(private("dispatch_mode")):  # type: ignore[misc]
    """Counts the bytes of all tensors that operations in the `with` block create, for as long as
    the tensors live; tensors that share memory count once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}  # by the identity of the memory

    def begin(self, tensors: list[Tensor]) -> None:
        """Count those of the tensors that are not trained, and never count the others."""
        for tensor in tensors:
            self._add(tensor, 0 if tensor.requires_grad else tensor.nbytes)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in private("leaves")(out):
            if isinstance(tensor, Tensor):
                self._add(tensor, tensor.untyped_storage().nbytes())
        return out

    def _add(self, tensor: Tensor, num_bytes: int) -> None:
        memory = tensor.untyped_storage()
        key = id(memory)
        if key in self._known:
            return

        def freed(_: object) -> None:
            del self._known[key]
            self.now -= num_bytes

        self._known[key] = weakref.ref(memory, freed)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
