"""A policy that raises the batch when a step's gradient is mostly noise, by the norm test of Byrd
et al. (Math. Program. 134, 2012).

The test passes as long as tr(Sigma) / B <= theta^2 |G_B|^2, where G_B is the gradient over the
batch. Here both norms are running means. If the test fails, the batch grows to the least one that
would have passed, tr(Sigma) / (theta^2 |G_B|^2), in whole passes. Bollapragada et al. (arXiv
1710.11258) named the test. They test inner products instead, which needs the gradient of each
example.
"""

from __future__ import annotations

import math

from bsweep.batching.base import Decision, Measuring, RoundStats
from bsweep.config.batching import NormTestConfig
from bsweep.numerics.noise_scale import GradientNoise


class NormTest(Measuring):
    card: NormTestConfig

    def look(self, stats: RoundStats, noise: GradientNoise) -> Decision | None:
        if noise.trace <= 0:
            return None
        # E|G_B|^2 = |G|^2 + tr(Sigma) / B, from running means: the norm of one step would decide by
        # chance.
        square = max(0.0, noise.squared_norm) + noise.trace / self.global_batch
        wanted = noise.trace / (self.card.theta**2 * square)
        if wanted <= self.global_batch:
            return None
        ratio = noise.trace / self.global_batch / square
        inputs = {"ratio": ratio, "squared_norm": noise.squared_norm, "trace": noise.trace}
        reason = f"the norm test fails ({ratio:.3g} > {self.card.theta**2:.3g})"
        return Decision(self.in_whole_passes(wanted, math.ceil), inputs, reason)
