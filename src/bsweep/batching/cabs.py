"""The policy CABS, whose batch follows learning rate x gradient variance / training loss: B = lr
tr(Sigma) / F.

By Balles, Romero and Hennig (arXiv 1612.05086): this batch has the greatest decrease of the loss
per example, for plain SGD on a loss whose least value is about zero.
"""

from __future__ import annotations

from bsweep.batching.base import Decision, Measuring, RoundStats
from bsweep.config.batching import CABSConfig
from bsweep.config.run import RunConfig
from bsweep.numerics.noise_scale import DECAY, GradientNoise


class CABS(Measuring):
    card: CABSConfig
    kept = (*Measuring.kept, "loss")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.loss: float | None = None  # a running mean over the steps after which it decided

    def look(self, stats: RoundStats, noise: GradientNoise) -> Decision | None:
        loss, _, labels = stats.gather(stats.sums.to("cpu")).sum(dim=0).tolist()
        latest = loss / labels
        self.loss = latest if self.loss is None else DECAY * self.loss + (1 - DECAY) * latest
        if noise.trace <= 0 or not self.loss > 0:
            return None
        rate = stats.learning_rate
        wanted = rate * noise.trace / self.loss
        inputs = {"learning_rate": rate, "trace": noise.trace, "train_loss": self.loss}
        reason = f"lr x variance / loss is {wanted:.4g} examples"
        return self.followed(wanted, self.card.hysteresis, inputs, reason)
