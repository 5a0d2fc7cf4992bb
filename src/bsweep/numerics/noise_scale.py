"""Estimates of the gradient noise scale, tr(Sigma) / |G|^2, from gradients of parts of a step's
examples.

A step has B examples. Each of its n gradients g_i is the mean over b_i of these examples, and G_B
is the mean over all. Let Sigma be the covariance of one example's gradient and G the true gradient.
Then E|g_i|^2 = |G|^2 + tr(Sigma) / b_i, so that with S = sum_i (b_i / B) |g_i|^2

    |G|^2 = (n |G_B|^2 - S) / (n - 1)        tr(Sigma) = B (S - |G_B|^2) / (n - 1)

are unbiased, also for unequal b_i (McCandlish et al., arXiv 1812.06162, appendix A, treat equal
ones). Their ratio is biased, so each is averaged over steps before one is divided by the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

DECAY = 0.9
"""The factor by which a noise record's weight in a running mean falls with each later record."""

# The fewest records for an error estimate. With three, the scatter is so uncertain that one in nine
# estimates seems to show a gradient where there is none.
_FEWEST_RECORDS = 8
_LIKELY = (
    1.645  # standard deviations: 95 % of a normal distribution lie above the mean minus so many
)
# The number of elements summed in their own precision. Over ten million elements of fp32, torch
# 2.13 has an error of 1e-3.
_BLOCK = 4096

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class GradientNoise:
    """A running estimate of the gradient noise: the squared norm of the true gradient, and the
    variance of one example's gradient.

    Both are means over noise records, with weights that decay by `DECAY`. They are differences of
    measured norms, so they may be zero or negative.
    """

    squared_norm: float  # |G|^2, of the true gradient
    trace: float  # tr(Sigma), of one example's gradient
    num_samples: int  # the number of steps measured
    squared_norm_error: float = (
        0.0  # standard deviation of `squared_norm` by the records' scatter; inf if too few
    )

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in examples, or None if the true gradient may be zero within its
        error.

        It is also None if the estimated trace is not positive.
        """
        if self.squared_norm <= _LIKELY * self.squared_norm_error or self.trace <= 0:
            return None
        return self.trace / self.squared_norm if self.squared_norm else None


@dataclass(frozen=True)
class Average:
    """The running means over noise records of |G|^2 and tr(Sigma), the two parts of the gradient
    noise scale.

    A record's weight falls by the factor `DECAY` with each later record.
    """

    weight: float = 0.0  # the sum of the records' weights
    squared_weight: float = 0.0  # the sum of the squares of the records' weights
    num_records: int = 0
    num_samples: int = 0
    squared_norm: float = 0.0
    trace: float = 0.0
    scatter: float = 0.0  # weighted sum of the squared deviations of `squared_norm` from its mean

    def joined(self, squared_norm: float, trace: float, num_samples: int) -> Average:
        """Return the running means of |G|^2 and tr(Sigma) after one more noise record, which
        averages `num_samples` steps.
        """
        weight = DECAY * self.weight + 1
        deviation = squared_norm - self.squared_norm
        mean = self.squared_norm + deviation / weight
        return Average(
            weight,
            DECAY**2 * self.squared_weight + 1,
            self.num_records + 1,
            self.num_samples + num_samples,
            mean,
            self.trace + (trace - self.trace) / weight,
            DECAY * self.scatter + deviation * (squared_norm - mean),
        )

    def estimate(self) -> GradientNoise | None:
        """Return the estimate of the gradient noise so far, or None if there is no noise record
        yet.
        """
        if not self.num_records:
            return None
        return GradientNoise(self.squared_norm, self.trace, self.num_samples, self._error())

    def _error(self) -> float:
        """Return the standard error of the running mean of |G|^2; infinity if there are too few
        noise records.

        It is that of a weighted mean of independent values (Kish, Survey Sampling, 1965).
        """
        if self.num_records < _FEWEST_RECORDS:
            return math.inf
        share = self.squared_weight / self.weight**2
        return math.sqrt(max(0.0, self.scatter / self.weight) * share / (1 - share))


def of_parts(
    whole: Number, parts: Number, num_parts: int, num_examples: int
) -> tuple[Number, Number]:
    """Return one step's estimates of |G|^2 and tr(Sigma), the two parts of the gradient noise
    scale.

    Args:
        whole: |G_B|^2, the squared norm of the step's gradient.
        parts: S, the weighted sum of the squared norms of the `num_parts` gradients.
        num_parts: n, the number of gradients, two or more.
        num_examples: B, the examples of the step.
    """
    n = num_parts
    return (n * whole - parts) / (n - 1), num_examples * (parts - whole) / (n - 1)


def squared_norm(flat: Tensor) -> Tensor:
    """Return the squared norm of a flat tensor, as a float64 scalar on its device."""
    whole = len(flat) - len(flat) % _BLOCK
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1).double()
    total: Tensor = norms.square().sum() + torch.linalg.vector_norm(flat[whole:]).double().square()
    return total
