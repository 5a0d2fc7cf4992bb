"""The seam between an exchange and the codecs that make what it sends smaller."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bsweep.strategies.base import Group


class Codec(ABC):
    """Replaces a sum over workers by a smaller one; may keep what it left out and add it next time."""

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most codecs need nothing here)
        """Epoch `epoch`, from 1, is about to be trained: the time to change a density."""

    @abstractmethod
    def exchange(self, gradients: Tensor, group: Group) -> None:
        """Replace `gradients`, the flat vector of this worker, by the sum of what all workers' codecs let through."""


class GatherCodec(Codec):
    """A codec whose payloads cannot be summed on the way: every worker gets all of them and sums what they say.

    With `has_memory`, what a payload leaves out of the gradient is added to the next one (error feedback), so that
    what travelled and what waits always sum to all gradients there were.
    """

    has_memory = True

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """A flat gradient (n,) as uint8 (bytes,), of the same length on all workers."""

    @abstractmethod
    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        """Add `scale` times what `payload` says to `into` (n,)."""

    def exchange(self, gradients: Tensor, group: Group) -> None:
        if self.has_memory:
            if self.memory is None:
                self.memory = torch.zeros_like(gradients)
            gradients.add_(self.memory)
        payload = self.encode(gradients)
        if self.has_memory and self.memory is not None:
            self.memory.copy_(gradients)
            self.add_decoded(payload, self.memory, -1.0)
        gradients.zero_()
        for received in group.all_gather(payload):
            self.add_decoded(received, gradients)
