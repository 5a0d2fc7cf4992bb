"""Local SGD (Stich, arXiv 1805.09767): workers step alone and average their parameters every
`sync_every` steps.

Each worker's loss is multiplied by num_workers, so that its own gradient is as large as that of the
global mean. With the optimizer `sgd`, averaging after every step is then synchronous SGD up to
rounding, also with momentum and uneven tails.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from bsweep.config.strategies import LocalSGDConfig
from bsweep.numerics.vector import Flat
from bsweep.strategies.base import Rounds
from bsweep.strategies.groups import TorchStrategy


class LocalSGD(TorchStrategy, Rounds):
    """The strategy local SGD: a round is one step of each worker, and after some or all rounds the
    workers average their parameters.
    """

    card: LocalSGDConfig
    averages = True
    _num_steps = 0

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self.algorithm = self.card.algorithm

    def step(self) -> None:
        self._optimizer.step()
        self._num_steps += 1

    def rehearse(self) -> None:
        self.step()
        self.all_reduce(self._vector.gradients)

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        if (self.synchronised_now or ends_epoch) and self.num_workers > 1:
            parameters = self._vector.parameters
            with self.meter.exchange(parameters):
                self.all_reduce(parameters)
            parameters.div_(self.num_workers)

    @property
    def synchronised_now(self) -> bool:
        warms_up = self._num_steps <= self.card.warmup_steps
        return warms_up or self._num_steps % self.card.sync_every == 0

    def state(self) -> dict[str, Any]:
        return {"num_steps": self._num_steps}

    def load_state(self, state: dict[str, Any]) -> None:
        self._num_steps = state["num_steps"]
