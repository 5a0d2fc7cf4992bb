"""The seam between the training loop and the ways in which workers agree on one model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from bsweep.vector import Vector


class WorkerLost(RuntimeError):
    """Another worker ended while this one waited for it: a consequence, not the cause of a failure."""


@dataclass(frozen=True)
class Traffic:
    """What one worker's exchanges cost since the last report; None is not measured.

    `exchange_seconds`: while the slowest worker's data travelled. `wait_seconds`: before that, mean over workers.
    """

    sent_bytes: int | None
    received_bytes: int | None
    exchange_seconds: float | None
    wait_seconds: float | None


class Strategy(ABC):
    """How workers agree on one model.

    The loop scales each worker's loss by its share of the global batch, so the plain sum of the workers' gradients is
    the gradient of the global mean, also for uneven shares.
    """

    @abstractmethod
    def prepare(self, vector: Vector, optimizer: Optimizer) -> None:
        """Make all workers start from the same parameters."""

    def before_last_backward(self) -> None:  # noqa: B027 (most strategies need nothing here)
        """The coming backward pass completes this step's gradient: parts of it may travel as they become ready."""

    @abstractmethod
    def step(self) -> None:
        """Take this worker's gradient and leave all workers with the updated model."""

    @abstractmethod
    def mean(self, values: Tensor) -> Tensor:
        """The element-wise mean over workers of a small float64 CPU tensor. All workers call it together."""

    @abstractmethod
    def traffic(self) -> Traffic:
        """The cost of the exchanges since the last call. All workers call it together."""

    def close(self) -> None:  # noqa: B027
        """Give back what `prepare` took."""
