"""The accuracy or loss that a run is to reach, and the rule by which evaluations confirm that the
run has reached it.

Workers, which may end a run at its target, and tables use the same rule; see
`bsweep.analysis.study.targets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SETTINGS = {"test_accuracy": "target_accuracy", "test_loss": "target_loss"}
"""By metric of a target: the key of a configuration that names such a target."""


def score_name(metric: str, part: str) -> str:
    """Return a metric of a target in words, such as `validation accuracy`."""
    return f"{part} {metric.removeprefix('test_')}"


@dataclass(frozen=True)
class Target:
    """An accuracy (a fraction) to reach from below, or a loss to reach from above, on the test or
    the validation examples.
    """

    metric: str  # test_accuracy | test_loss
    value: float
    part: str = "test"  # or `validation`: the examples of the evaluations

    def __str__(self) -> str:
        """Return the target in words, such as `a test accuracy of 0.9`."""
        return f"a {self.score} of {self.value:g}"

    @property
    def score(self) -> str:
        """The metric in words, such as `validation accuracy`."""
        return score_name(self.metric, self.part)

    @property
    def option(self) -> str:
        """The target as a command-line option, such as `--target-accuracy 0.9`."""
        return f"--{SETTINGS[self.metric].replace('_', '-')} {self.value:.12g}"

    @property
    def sign(self) -> int:
        """The factor that makes a larger score a better one: 1 for an accuracy, -1 for a loss."""
        return 1 if self.metric == "test_accuracy" else -1

    def is_confirmed_by(self, scores: Sequence[float]) -> bool:
        """Return True if at least two of the last three evaluations reach the target. With three
        evaluations this means that their median reaches it.

        Args:
            scores: The accuracies or losses of all evaluations so far, the oldest first.

        Returns:
            False if there are fewer than two evaluations.
        """
        return sum(self.sign * score >= self.sign * self.value for score in scores[-3:]) >= 2

    def best_median(self, scores: Sequence[float]) -> float:
        """Return the best median of three successive evaluations, which decides whether a run
        reaches its target.

        Args:
            scores: The accuracies or losses of all evaluations, the oldest first.

        Returns:
            The median; NaN if there are fewer than two evaluations, which confirm no target.
        """
        return self.sign * best_of(smoothed([self.sign * score for score in scores]))


def smoothed(values: Sequence[float]) -> list[float]:
    """Return a sequence of values smoothed by the median of each value and its two neighbours; a
    missing neighbour counts as the worst value.

    Args:
        values: Values of which more is better.
    """
    padded = [-math.inf, *values, -math.inf]
    return [sorted(triple)[1] for triple in zip(padded, padded[1:], padded[2:], strict=False)]


def best_of(curve: Sequence[float]) -> float:
    """Return the best value of a smoothed curve; NaN for a single evaluation."""
    return max(curve) if len(curve) > 1 else math.nan


def target_of(accuracy: float | None = None, loss: float | None = None) -> Target:
    """Return a target for the test examples: an accuracy or a loss, whichever of the two is given.

    Args:
        accuracy: An accuracy, a fraction above 0 and up to 1; None: not given.
        loss: A finite loss; None: not given.

    Returns:
        The target.

    Raises:
        ValueError: If both or neither are given, or the value is no valid accuracy or loss.
    """
    if (accuracy is None) == (loss is None):
        raise ValueError("give one target: an accuracy such as 0.9, or a loss.")
    if accuracy is not None and not 0 < accuracy <= 1:
        raise ValueError(
            f"a target accuracy of {accuracy!r} is not a fraction above 0 and up to 1, such as 0.9."
        )
    if loss is not None and not math.isfinite(loss):
        raise ValueError(f"a target loss of {loss:g} is not a finite number.")
    metric, value = ("test_loss", loss) if accuracy is None else ("test_accuracy", accuracy)
    return Target(metric, float(value or 0))
