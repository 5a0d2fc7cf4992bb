"""The interface between an exchange and the codecs that reduce what it sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.groups import CodecConfig
from bsweep.core.randomness import seed_of
from bsweep.numerics.vector import Flat


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting of a codec: a worker's gradients, the optimizer that takes their sum, and the
    worker's rank.
    """

    vector: Flat
    optimizer: Optimizer
    seed: int  # of the run
    rank: int
    num_workers: int

    def generator(self, *key: int | str) -> torch.Generator:
        """Return a new random generator, seeded with the run's seed and `key`.

        So a run repeats, whatever else draws random numbers.

        Args:
            *key: Numbers and texts that tell this generator from others of the run.

        Returns:
            A generator on the device of the gradients.
        """
        return torch.Generator(self.vector.gradients.device).manual_seed(seed_of(self.seed, *key))


class Group(Protocol):
    """The operations that a codec may ask of the workers' connection: sums and copies over all
    workers.
    """

    rank: int
    num_workers: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over workers, in place.

        Args:
            tensor: This worker's values, of the same shape and type on all workers.
        """

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        """Return every worker's `payload` (1-d, of the same size and type on all workers), by
        rank.

        Args:
            payload: This worker's values, 1-D, of the same size and type on all workers.

        Returns:
            One tensor for each worker, by rank, each of the shape of `payload`.
        """


class Codec(ABC):
    """A codec, which replaces a sum over workers by one that sends less."""

    memory: Tensor | None = None
    """The part of this worker's gradients that has not been sent yet, (n,), or None.

    It is added to the next gradient (error feedback). So what was sent and what waits always sum to
    all gradients so far. If None, what was not sent is lost.
    """

    generator: torch.Generator | None = None
    """The codec's random generator, if it has one; a resumed run continues its sequence."""

    @property
    def state(self) -> list[Tensor]:
        """The tensors that an exchange changes in place.

        The loop restores these tensors after gradients overflowed, and when a run is
        resumed.
        """
        return [] if self.memory is None else [self.memory]

    def saved(self) -> dict[str, Any]:
        """Return the codec's state for a checkpoint.

        Returns:
            Tensors and lists of tensors, by name.
        """
        return {
            "state": self.state,
            "random": self.generator.get_state() if self.generator else None,
        }

    def load_saved(self, saved: dict[str, Any]) -> None:
        """Restore what `saved` returned.

        Args:
            saved: The state from a checkpoint.
        """
        for tensor, value in zip(self.state, saved["state"], strict=True):
            tensor.copy_(value)
        if self.generator:
            self.generator.set_state(saved["random"])

    def __init__(self, config: CodecConfig, setting: Setting) -> None:  # noqa: B027 (some need nothing here)
        """Create the codec, before the first step.

        Args:
            config: The codec's card.
            setting: The gradients, the optimizer and the rank of this worker.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most codecs need nothing here)
        """Note that epoch `epoch` (counted from 1) is about to be trained; a density may change
        now.

        Args:
            epoch: The epoch, counted from 1.
        """

    @abstractmethod
    def exchange(self, gradients: Tensor, group: Group) -> None:
        """Replace `gradients`, this worker's flat vector, by the sum over workers of what each
        worker's codec sends.

        Args:
            gradients: This worker's gradients, a 1-D floating-point tensor as long as
                `Setting.vector.gradients`. It is changed in place.
            group: The connection to the other workers.
        """


class GatherCodec(Codec):
    """A codec whose encoded gradients cannot be summed by an all-reduce.

    Every worker receives all payloads, decodes them and sums the results.
    """

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return `values` (n,) encoded as uint8 (bytes,).

        The length must be the same on all workers, whatever the values are.

        Args:
            values: The values to send, a 1-D float tensor of n elements.

        Returns:
            The payload, a 1-D uint8 tensor of as many elements as bytes are sent.
        """

    @abstractmethod
    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        """Add `scale` times the decoded `payload` to `into` (n,).

        Args:
            payload: A worker's payload, a 1-D uint8 tensor as `encode` returns it.
            into: The sum, a 1-D float tensor of n elements; changed in place.
            scale: The factor of the decoded values.
        """

    def exchange(self, gradients: Tensor, group: Group) -> None:
        if self.memory is None:
            payload = self.encode(gradients)
        else:
            payload = self.encode(self.memory.add_(gradients))
            self.add_decoded(payload, self.memory, -1.0)
        gradients.zero_()
        # in rank order, so that all workers get the same bits
        for received in group.all_gather(payload):
            self.add_decoded(received, gradients)
