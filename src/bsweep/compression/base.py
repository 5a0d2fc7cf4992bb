"""The seam between an exchange and the codecs that make what it sends smaller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config import CodecConfig
from bsweep.core.randomness import seed_of
from bsweep.numerics.vector import Flat


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a codec is for: a worker's gradients, the optimizer that takes their sum, and its place
    among the others.
    """

    vector: Flat
    optimizer: Optimizer
    seed: int  # of the run
    rank: int
    num_workers: int

    def generator(self, *key: int | str) -> torch.Generator:
        """Random numbers of their own by `key`, so that a run repeats whatever else draws some."""
        return torch.Generator(self.vector.gradients.device).manual_seed(seed_of(self.seed, *key))


class Group(Protocol):
    """What a codec may ask of the workers' connection: sums and copies of what all of them have."""

    rank: int
    num_workers: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over workers, in place."""

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        """Every worker's `payload` (1-d, of the same size and type on all), by rank."""


class Codec(ABC):
    """Replaces a sum over workers by a smaller one."""

    memory: Tensor | None = None
    """What of this worker's gradients has not travelled yet, (n,), and joins the next ones (error
    feedback): what travelled and what waits always sum to all gradients there were. None: what did
    not travel is lost.
    """

    generator: torch.Generator | None = None
    """What it draws from, if it does; a run that is taken up again draws on."""

    @property
    def state(self) -> list[Tensor]:
        """What an exchange changes in place, to be put back where gradients overflowed, and where a
        run goes on.
        """
        return [] if self.memory is None else [self.memory]

    def saved(self) -> dict[str, Any]:
        """What to go on from."""
        return {
            "state": self.state,
            "random": self.generator.get_state() if self.generator else None,
        }

    def load_saved(self, saved: dict[str, Any]) -> None:
        """Take up what `saved` gave."""
        for tensor, value in zip(self.state, saved["state"], strict=True):
            tensor.copy_(value)
        if self.generator:
            self.generator.set_state(saved["random"])

    def __init__(self, config: CodecConfig, setting: Setting) -> None:  # noqa: B027 (some need nothing here)
        """Called before the first step."""

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most codecs need nothing here)
        """Epoch `epoch`, from 1, is about to be trained: the time to change a density."""

    @abstractmethod
    def exchange(self, gradients: Tensor, group: Group) -> None:
        """Replace `gradients`, the flat vector of this worker, by the sum of what all workers'
        codecs let through.
        """


class GatherCodec(Codec):
    """A codec whose payloads cannot be summed on the way: every worker gets all of them and sums
    what they say.
    """

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """`values` (n,) as uint8 (bytes,), of a length that is the same on all workers whatever the
        values are.
        """

    @abstractmethod
    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        """Add `scale` times what `payload` says to `into` (n,)."""

    def exchange(self, gradients: Tensor, group: Group) -> None:
        if self.memory is None:
            payload = self.encode(gradients)
        else:
            payload = self.encode(self.memory.add_(gradients))
            self.add_decoded(payload, self.memory, -1.0)
        gradients.zero_()
        for received in group.all_gather(payload):  # by rank, so that all workers get the same bits
            self.add_decoded(received, gradients)
