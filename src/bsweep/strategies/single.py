"""The strategy `single`, in which one worker trains without any exchange, as a baseline for the
other strategies.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from bsweep.numerics.vector import Flat
from bsweep.strategies.base import Strategy


class Single(Strategy):
    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0)
