"""The policy that keeps the configured batch during the whole run."""

from __future__ import annotations

from bsweep.batching.base import Policy
from bsweep.config.run import RunConfig
from bsweep.data.plan import Share


class Fixed(Policy):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._worker_batches = config.worker_batches
        self._shares = self.of_batches(self._worker_batches)

    def shares(self, epochs_done: float) -> tuple[Share, ...]:
        return self._shares
