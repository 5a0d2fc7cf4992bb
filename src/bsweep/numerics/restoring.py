"""The undo of trials: passes and steps that must leave no trace in a model and its optimizer; and
the mode of BatchNorm in passes on one example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.core.torch_private import private
from bsweep.numerics.vector import part_of


@contextmanager
def restoring(
    model: nn.Module,
    device: torch.device,
    tensors: Iterable[Tensor] = (),
    optimizer: Optimizer | None = None,
    *,
    attributes: bool = False,
) -> Iterator[None]:
    """Restore what the `with` block changes, also if it raises an error, such as a capture that
    breaks off.

    Args:
        model: The model, whose buffers are restored.
        device: The device whose random numbers are restored, like those of the CPU.
        tensors: Other tensors to be restored in place.
        optimizer: An optimizer whose parameters and state are restored.
        attributes: True if the model's attributes are restored, such as a mask that a pass has
            made and the model keeps.
    """
    modules = model.modules() if attributes else ()
    attributes_before = [(vars(module), dict(vars(module))) for module in modules]
    # A forward pass may write into a buffer, or put another tensor in its place.
    buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    state = optimizer.state if optimizer else {}
    states = [(held, dict(held)) for held in state.values()]
    state_before = dict(state)
    groups = [(group, dict(group)) for group in (optimizer.param_groups if optimizer else ())]
    parameters = [tensor for group, _ in groups for tensor in group["params"]]
    values = [value for _, named in (*buffers, *states) for value in named.values()]
    restored = [part_of(t) for t in (*values, *parameters, *tensors) if isinstance(t, Tensor)]
    before = [tensor.detach().clone() for tensor in restored]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        before_block = (*attributes_before, *buffers, *states, *groups, (state, state_before))
        for held, named in before_block:
            held.clear()
            held.update(named)
        with torch.no_grad():
            for tensor, value in zip(restored, before, strict=True):
                tensor.copy_(value)


@contextmanager
def batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """Make BatchNorm use its running statistics in the `with` block if a batch has one example.

    An epoch's last batch may be that small. Where feature maps are 1x1, one example has no
    statistics of its own.
    """
    if num_examples > 1:
        yield
        return
    norms = [m for m in model.modules() if isinstance(m, private("batchnorm")) and m.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
