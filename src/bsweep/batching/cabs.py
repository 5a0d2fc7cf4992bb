"""The policy CABS, whose batch follows learning rate x gradient variance / training loss: B = lr
tr(Sigma) / F.

By Balles, Romero and Hennig (arXiv 1612.05086): this batch has the greatest decrease of the loss
per example, for plain SGD on a loss whose least value is about zero.
"""

from __future__ import annotations

from typing import Any

from bsweep.batching.base import RoundStats
from bsweep.batching.changing import Decision, Measuring
from bsweep.config.batching import CABSConfig
from bsweep.config.run import RunConfig
from bsweep.numerics.noise_scale import DECAY, GradientNoise


class CABS(Measuring[CABSConfig]):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._loss: float | None = None  # a running mean over the steps after which it decided

    def look(self, seen: RoundStats, noise: GradientNoise) -> Decision | None:
        loss, _, labels = seen.gather(seen.sums.to("cpu")).sum(dim=0).tolist()
        latest = loss / labels
        self._loss = latest if self._loss is None else DECAY * self._loss + (1 - DECAY) * latest
        if noise.trace <= 0 or not self._loss > 0:
            return None
        wanted = seen.learning_rate * noise.trace / self._loss
        inputs = {
            "learning_rate": seen.learning_rate,
            "trace": noise.trace,
            "train_loss": self._loss,
        }
        reason = f"lr x variance / loss is {wanted:.4g} examples"
        return self.followed(wanted, self.card.hysteresis, inputs, reason)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "loss": self._loss}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._loss = state["loss"]
