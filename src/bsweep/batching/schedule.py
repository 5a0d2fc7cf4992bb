"""A policy that multiplies the batch by a factor every k epochs: AdaBatch (Devarakonda et al.,
arXiv 1712.02029).

With `batching.rate=by_rule`, `optimizer.lr_rule` decides the learning rate: linear scales it with
the batch, and fixed keeps it. `batching.rate=seesaw` (arXiv 2510.14717) replaces a schedule that
divides the rate by a factor. It divides the rate by the square root of the factor, and multiplies
the batch by the factor. If a bound keeps the batch from growing, the rate is divided by the whole
factor.
"""

from __future__ import annotations

import math
from typing import Any

from bsweep.batching.base import RoundStats
from bsweep.batching.changing import Changing, Decision
from bsweep.config.batching import ScheduleConfig
from bsweep.config.run import RunConfig

_ROUNDING = 1e-9  # so that three times 0.1 epochs count as 0.3


class Schedule(Changing[ScheduleConfig]):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._times = 0  # how often the batch of the coming steps has been multiplied

    def rate_factor(self, epochs_done: float) -> float:
        if self.card.rate != "seesaw":
            return 1.0
        return math.sqrt(self.global_batch / self.configured) * math.exp(
            -self._times * math.log(self.card.factor)
        )

    def decide(self, seen: RoundStats) -> Decision:
        self._times = math.floor(seen.epochs_done / self.card.every_epochs + _ROUNDING)
        try:
            wanted = self.configured * self.card.factor**self._times
        except OverflowError:
            wanted = math.inf
        reason = (
            f"the batch is multiplied by {self.card.factor:g} for the {_ordinal(self._times)} time"
        )
        return Decision(wanted, {"times": self._times}, reason)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "times": self._times}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._times = state["times"]


def _ordinal(number: int) -> str:
    ending = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
