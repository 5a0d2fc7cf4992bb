"""The base class of the strategies that sum one vector of gradients over workers, with or without a
codec.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from bsweep import compression
from bsweep.compression.base import Codec, Setting
from bsweep.numerics.vector import Flat
from bsweep.strategies.base import Strategy


class Summing(Strategy):
    """A strategy that sums one vector, such as the gradients, over workers at each step.

    DiLoCo uses such a strategy to sum its workers' parameter changes, and makes its own steps.
    """

    _codec: Codec | None
    _vector: Flat
    _optimizer: Optimizer

    def build_codec(self) -> None:
        """Build the run's codec, when vector, optimizer, rank and number of workers are known."""
        setting = Setting(
            vector=self._vector,
            optimizer=self._optimizer,
            seed=self.config.seed,
            rank=self.rank,
            num_workers=self.num_workers,
        )
        self._codec = compression.build(self.config.compression, setting)

    @property
    def has_codec(self) -> bool:
        return self._codec is not None

    def begin_epoch(self, epoch: int) -> None:
        if self._codec:
            self._codec.begin_epoch(epoch)

    def step(self) -> None:
        self.exchange()
        self._optimizer.step()

    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "codec": self._codec.saved() if self._codec else None}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        if self._codec and state["codec"]:
            self._codec.load_saved(state["codec"])

    def exchange(self) -> None:
        """Replace this worker's gradients by the sum of all workers' gradients, as the codec
        decodes them if there is one.

        Horovod's Adasum takes the place of the sum if it is configured.

        Raises:
            WorkerLost: If another worker ended; the gradients are then undefined.
        """
        if self.num_workers == 1:
            return
        gradients = self._vector.gradients
        if self._codec:
            scale, codec = self._vector.scale, self._codec
            with (
                self.meter.codec(gradients),
                scale.removed(codec.state) if scale else nullcontext(),
            ):
                codec.exchange(gradients, _Metered(self))
        else:
            with self.meter.exchange(gradients):
                self.sum_gradients()

    @abstractmethod
    def sum_gradients(self) -> None:
        """Replace this worker's gradients by the sum of all workers' gradients, without a codec."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the element-wise sum of all workers' tensors, for a codec; see
        `bsweep.compression.base.Group`.
        """

    @abstractmethod
    def all_gather(self, payload: Tensor) -> list[Tensor]:
        """Return the `payload` tensors of all workers, in the order of their ranks, for a codec."""


class _Metered:
    """The connection by which a codec sums and gathers tensors over workers; it times each
    exchange.
    """

    def __init__(self, strategy: Summing) -> None:
        self.rank, self.num_workers = strategy.rank, strategy.num_workers
        self._strategy = strategy

    def all_reduce(self, tensor: Tensor) -> None:
        with self._strategy.meter.exchange(tensor):
            self._strategy.all_reduce(tensor)

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        with self._strategy.meter.exchange(payload):
            return self._strategy.all_gather(payload)
