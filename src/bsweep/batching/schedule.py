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

from bsweep.batching.base import Changing, Decision, RoundStats
from bsweep.config.batching import ScheduleConfig

_ROUNDING = 1e-9  # so that three times 0.1 epochs count as 0.3


class Schedule(Changing):
    card: ScheduleConfig
    kept = (*Changing.kept, "times")
    times = 0  # how often the batch of the coming steps has been multiplied

    def rate_factor(self, epochs_done: float) -> float:
        if self.card.rate != "seesaw":
            return 1.0
        return math.sqrt(self.global_batch / self.configured) * math.exp(
            -self.times * math.log(self.card.factor)
        )

    def decide(self, stats: RoundStats) -> Decision:
        self.times = math.floor(stats.epochs_done / self.card.every_epochs + _ROUNDING)
        try:
            wanted = self.configured * self.card.factor**self.times
        except OverflowError:
            wanted = math.inf
        reason = (
            f"the batch is multiplied by {self.card.factor:g} for the {_ordinal(self.times)} time"
        )
        return Decision(wanted, {"times": self.times}, reason)


def _ordinal(number: int) -> str:
    ending = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
