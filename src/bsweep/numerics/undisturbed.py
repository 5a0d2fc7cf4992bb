"""A context manager for forward and backward passes that must not change a model's buffers, given
tensors, or torch's random number generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def undisturbed(model: nn.Module, device: torch.device, *others: Tensor) -> Iterator[None]:
    """Restore a model's buffers, the given tensors, and torch's random number generators of the CPU
    and of `device` after the `with` block.

    They are restored even if the block raises an error, such as a capture that breaks off.
    """
    # A forward pass may write into a buffer, or put another tensor in its place.
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    kept = [(tensor, tensor.clone()) for tensor in others]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                buffer.copy_(value)
            for tensor, value in kept:
                tensor.copy_(value)
