"""The interface between strategies and codecs, which reduce the bytes that an exchange sends."""

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
    """The facts from which a codec is built: one worker's gradients, optimizer and rank, and the
    run's seed and number of workers.
    """

    vector: Flat
    optimizer: Optimizer
    seed: int  # of the run
    rank: int
    num_workers: int

    def generator(self, *key: int | str) -> torch.Generator:
        """Return a new random generator, seeded with the run's seed and `key`.

        So its numbers are the same in a repeated run, whatever else draws random numbers.

        Args:
            *key: Numbers and texts that tell this generator from others of the run.

        Returns:
            A generator on the device of the gradients.
        """
        return torch.Generator(self.vector.gradients.device).manual_seed(seed_of(self.seed, *key))


class Group(Protocol):
    """The connection by which a codec sums tensors over all workers, or gathers their tensors."""

    rank: int
    num_workers: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the element-wise sum of all workers' tensors.

        Args:
            tensor: This worker's values, of the same shape and type on all workers.
        """

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        """Return the `payload` tensors of all workers, in the order of their ranks.

        Args:
            payload: This worker's values, 1-D, of the same size and type on all workers.

        Returns:
            One tensor for each worker, by rank, each of the shape of `payload`.
        """


class Codec(ABC):
    """A codec, which sums gradients over workers and sends less than the whole gradients."""

    memory: Tensor | None = None
    """The part of this worker's earlier gradients that is not sent yet, a tensor (n,), or None.

    It is added to the next gradient (error feedback). So what was sent and what waits sum to the
    gradients so far, with DGC to gradients with momentum. If None, what was not sent is lost.
    """

    generator: torch.Generator | None = None
    """The codec's random generator, or None. A resumed run continues the generator's sequence."""

    @property
    def state(self) -> list[Tensor]:
        """The codec's tensors that each exchange changes in place, such as the gradients not sent
        yet.

        They are restored after an exchange of gradients that overflowed, and when a run is resumed.
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
        """Restore the codec's state from a checkpoint.

        Args:
            saved: The state from a checkpoint.
        """
        for tensor, value in zip(self.state, saved["state"], strict=True):
            tensor.copy_(value)
        if self.generator:
            self.generator.set_state(saved["random"])

    def __init__(self, config: CodecConfig, setting: Setting) -> None:  # noqa: B027 (some need nothing here)
        """Create the codec before the first step of training.

        Args:
            config: The codec's card.
            setting: The gradients, the optimizer and the rank of this worker.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (most codecs need nothing here)
        """Prepare the codec for the epoch that is trained next.

        A codec may, say, change the fraction of elements that it sends.

        Args:
            epoch: The epoch, counted from 1.
        """

    @abstractmethod
    def exchange(self, gradients: Tensor, group: Group) -> None:
        """Replace this worker's gradients by the sum over all workers of what each worker's codec
        sends.

        Args:
            gradients: This worker's gradients, a 1-D floating-point tensor as long as
                `Setting.vector.gradients`. It is changed in place.
            group: The connection to the other workers.
        """


class GatherCodec(Codec):
    """A codec whose encoded gradients cannot be summed by an all-reduce, so that all workers gather
    them.

    Every worker receives all payloads, decodes them and sums the results.
    """

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return the values encoded as bytes, which this worker sends to all other workers.

        The length must be the same on all workers, whatever the values are.

        Args:
            values: The values to send, a 1-D float tensor of n elements.

        Returns:
            The payload, a 1-D uint8 tensor of as many elements as bytes are sent.
        """

    @abstractmethod
    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        """Decode the bytes of a worker's gradients, multiply the result by `scale`, and add it to
        `into`.

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


def join(numbers: Tensor, rest: Tensor) -> Tensor:
    """Return the bytes of two tensors as one uint8 tensor.

    The bytes of `numbers` come first, so that wide types are aligned.
    """
    return torch.cat([numbers.reshape(-1).view(torch.uint8), rest.view(torch.uint8)])


def split(payload: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split the bytes that `join` made into two parts: `count` numbers, and the other bytes."""
    border = count * dtype.itemsize
    payload = payload.clone()  # a row of a gathered matrix may not be aligned for its numbers
    return payload[:border].view(dtype), payload[border:]
