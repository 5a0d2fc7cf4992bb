"""Local SGD (Stich, arXiv 1805.09767): workers step alone and average their parameters every few steps.

Each worker's loss counts num_workers-fold, so that its own gradient is of the size of the global mean's, and averaging
after every step is synchronous SGD exactly, momentum and uneven tails included.
"""

from __future__ import annotations

from bsweep.config import LocalSGDConfig, RunConfig
from bsweep.place import Place
from bsweep.strategies.process_group import TorchStrategy


class LocalSGD(TorchStrategy):
    in_step = False

    def __init__(self, config: RunConfig, strategy: LocalSGDConfig, place: Place) -> None:
        super().__init__(config, place)
        self.choose(strategy.algorithm)
        self._config = strategy
        self._num_steps = self._averaged_at = 0
        self.loss_scale = float(self.num_workers)

    def step(self) -> None:
        self._optimizer.step()
        self._num_steps += 1
        if self._num_steps <= self._config.warmup_steps or self._num_steps % self._config.sync_every == 0:
            self.agree()

    def agree(self) -> None:
        """Average the parameters; also where an epoch ends, for its evaluation."""
        if self.num_workers == 1 or self._averaged_at == self._num_steps:
            return
        parameters = self._vector.parameters
        with self.meter.exchange(parameters):
            self.all_reduce(parameters)
        parameters.div_(self.num_workers)
        self._averaged_at = self._num_steps
