"""The undo of trials: passes and steps that must leave no trace in a model and its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.numerics.vector import part_of


@contextmanager
def restoring(
    model: nn.Module,
    device: torch.device,
    tensors: Iterable[Tensor] = (),
    optimizer: Optimizer | None = None,
) -> Iterator[None]:
    """Restore what the `with` block changes, also if it raises an error, such as a capture that
    breaks off.

    Args:
        model: The model, whose buffers are restored.
        device: The device whose random numbers are restored, like those of the CPU.
        tensors: Other tensors to be restored in place.
        optimizer: An optimizer whose parameters and state are restored.
    """
    # A forward pass may write into a buffer, or put another tensor in its place.
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    groups = optimizer.param_groups if optimizer else []
    parameters = [part_of(tensor) for group in groups for tensor in group["params"]]
    kept = [*(buffer for _, _, buffer in buffers), *tensors, *parameters]
    before = [tensor.detach().clone() for tensor in kept]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer else {}
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        if optimizer:
            optimizer.load_state_dict(state)
