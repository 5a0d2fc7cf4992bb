"""The gradient noise scale, tr(Sigma) / |G|^2, from gradients of parts of a step's examples.

Of a step's B examples, each of n gradients g_i is the mean over b_i of them, and G_B is the mean
over all. With Sigma the covariance of one example's gradient and G the true gradient, E|g_i|^2 =
|G|^2 + tr(Sigma) / b_i, so that with S = sum_i (b_i / B) |g_i|^2

    |G|^2 = (n |G_B|^2 - S) / (n - 1)        tr(Sigma) = B (S - |G_B|^2) / (n - 1)

are unbiased, for uneven b_i too (McCandlish et al., arXiv 1812.06162, appendix A, is the case of
even ones). Their ratio is not: each is averaged over steps before they are divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

DECAY = 0.9
"""By what the weights of all records so far are multiplied where another one joins a running
estimate.
"""

# of three, whose scatter is little known, one in nine seems to tell a gradient that is not there
_FEWEST_RECORDS = 8
_LIKELY = (
    1.645  # standard deviations: 95 % of a normal distribution are above the mean less so many
)
# elements that are summed in their own precision: torch 2.13 loses 1e-3 of fp32 over ten million
_BLOCK = 4096

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class GradientNoise:
    """A running estimate: an average over the records of a run that forgets, with `DECAY`.

    `squared_norm` and `trace` are differences of measured norms, and may come out as zero or less.
    """

    squared_norm: float  # |G|^2, of the gradient over all examples there could be
    trace: float  # tr(Sigma), of one example
    num_samples: int  # steps that were measured since the run began
    squared_norm_error: float = (
        0.0  # its standard deviation, by the scatter of records; infinite of too few
    )

    @property
    def noise_scale(self) -> float | None:
        """In examples; None where it is not identifiable: the true gradient may well be zero."""
        if self.squared_norm <= _LIKELY * self.squared_norm_error or self.trace <= 0:
            return None
        return self.trace / self.squared_norm if self.squared_norm else None


@dataclass(frozen=True)
class Average:
    """What is known after some records: means whose weights fall by `DECAY` with each that came
    later.
    """

    weight: float = 0.0
    squared_weight: float = 0.0  # the sum of their squares
    num_records: int = 0
    num_samples: int = 0
    squared_norm: float = 0.0
    trace: float = 0.0
    scatter: float = 0.0  # weighted sum of the squared deviations of `squared_norm` from its mean

    def joined(self, squared_norm: float, trace: float, num_samples: int) -> Average:
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
        """None before the first record."""
        if not self.num_records:
            return None
        return GradientNoise(self.squared_norm, self.trace, self.num_samples, self._error())

    def _error(self) -> float:
        """Of a weighted mean of independent values (Kish, Survey Sampling, 1965)."""
        if self.num_records < _FEWEST_RECORDS:
            return math.inf
        share = self.squared_weight / self.weight**2
        return math.sqrt(max(0.0, self.scatter / self.weight) * share / (1 - share))


def of_parts(
    whole: Number, parts: Number, num_parts: int, num_examples: int
) -> tuple[Number, Number]:
    """Estimates of |G|^2 and tr(Sigma) from a step of B = `num_examples`.

    Args:
        whole: |G_B|^2.
        parts: S, of `num_parts` gradients.
        num_parts: Two or more.
        num_examples: B.
    """
    n = num_parts
    return (n * whole - parts) / (n - 1), num_examples * (parts - whole) / (n - 1)


def squared_norm(flat: Tensor) -> Tensor:
    """Of a flat tensor, float64, on its device."""
    whole = len(flat) - len(flat) % _BLOCK
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1).double()
    total: Tensor = norms.square().sum() + torch.linalg.vector_norm(flat[whole:]).double().square()
    return total
