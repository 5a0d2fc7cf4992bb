"""A policy whose batch follows the gradient noise scale B = tr(Sigma) / |G|^2, which usually grows
as the loss falls.

By the model of McCandlish et al. (arXiv 1812.06162), a run at that batch takes twice the least
possible number of steps and twice the least possible number of examples.
"""

from __future__ import annotations

from bsweep.batching.base import Decision, Measuring, RoundStats
from bsweep.config.batching import NoiseScaleConfig
from bsweep.numerics.noise_scale import GradientNoise


class NoiseScale(Measuring):
    card: NoiseScaleConfig

    def look(self, stats: RoundStats, noise: GradientNoise) -> Decision | None:
        scale = noise.noise_scale
        if scale is None:
            return None
        inputs = {"noise_scale": scale, "squared_norm": noise.squared_norm, "trace": noise.trace}
        return self.followed(
            scale, self.card.hysteresis, inputs, f"the noise scale is {scale:.4g} examples"
        )
