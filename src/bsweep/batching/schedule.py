"""The batch times a factor every k epochs: AdaBatch (Devarakonda et al., arXiv 1712.02029).

What the learning rate does is `optimizer.lr_rule`'s: linear goes with the batch, fixed stays. Seesaw (arXiv 2510.14717)
divides it by the root of what the batch is multiplied by: where another schedule would halve the rate, it takes
lr / sqrt(2) at 2 B.
"""

from __future__ import annotations

import math

from bsweep.batching.base import Seen
from bsweep.batching.changing import Changing, Decision
from bsweep.config import ScheduleConfig

_ROUNDING = 1e-9  # three times 0.1 epochs are 0.3


class Schedule(Changing[ScheduleConfig]):
    def rate_factor(self, epochs_done: float) -> float:
        return math.sqrt(self.configured / self.global_batch) if self.card.rate == "seesaw" else 1.0

    def decide(self, seen: Seen) -> Decision:
        times = math.floor(seen.epochs_done / self.card.every_epochs + _ROUNDING)
        wanted = self.configured * self.card.factor**times
        reason = f"the batch is multiplied by {self.card.factor:g} for the {_ordinal(times)} time"
        return Decision(wanted, {"times": times}, reason)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
