"""The test accuracy or loss that a run is to reach, and when its evaluations say that it has.

One rule for workers, which end a run by it, and for tables: see `bsweep.analysis.targets`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bsweep.config.values import ConfigError, show

if TYPE_CHECKING:
    from bsweep.config.run import RunConfig


@dataclass(frozen=True)
class Target:
    """A test accuracy (a fraction) to reach from below, or a test loss from above."""

    metric: str  # test_accuracy | test_loss
    value: float

    def __str__(self) -> str:
        if self.metric == "test_loss":
            return f"a test loss of {self.value:g}"
        return f"a test accuracy of {self.value:g}"

    @property
    def option(self) -> str:
        """As a command takes it."""
        return f"--{self.metric.replace('test', 'target').replace('_', '-')} {self.value:g}"

    @property
    def sign(self) -> int:
        """What to multiply values by, so that more is better."""
        return 1 if self.metric == "test_accuracy" else -1

    def is_confirmed_by(self, scores: Sequence[float]) -> bool:
        """Whether two of the last three evaluations are as good: their median is, which is the
        one's in the middle.
        """
        return sum(self.sign * score >= self.sign * self.value for score in scores[-3:]) >= 2


def target_of(accuracy: float | None = None, loss: float | None = None) -> Target:
    """The one target that is given; ValueError for both, for none and for what is no accuracy or
    loss.
    """
    if (accuracy is None) == (loss is None):
        raise ValueError("give one target: an accuracy such as 0.9, or a loss.")
    if accuracy is not None and not 0 < accuracy <= 1:
        meant = f" Is {accuracy / 100:g} meant?" if 1 < accuracy <= 100 else ""
        raise ValueError(
            f"a target accuracy of {accuracy:g} is no fraction between 0 and 1.{meant}"
        )
    if loss is not None and not math.isfinite(loss):
        raise ValueError(f"a target loss of {loss:g} is no number to reach.")
    return (
        Target("test_loss", float(loss))
        if loss is not None
        else Target("test_accuracy", float(accuracy or 0))
    )


def target_problems(config: RunConfig) -> Iterator[str]:
    """What contradicts what in the keys of a target, with the remedy."""
    given = {key: getattr(config, key) for key in ("target_accuracy", "target_loss")}
    try:
        target = config.target
    except ValueError as error:
        keys = [f"{key}={show(value)}" for key, value in given.items() if value is not None]
        yield f"{' and '.join(keys)}: {error}"
        return
    if target is None and not config.stop_at_target:
        yield (
            "stop_at_target=false without a target: give target_accuracy=0.9 or target_loss=0.5, "
            "or leave it out."
        )


def refuse_vain_evaluations(config: RunConfig, num_train: int) -> None:
    """ConfigError if no evaluation comes where it was asked for, or too few to confirm a target."""
    every = config.evaluate_every_examples
    if every and every > config.epochs * num_train:
        raise ConfigError(
            f"evaluate_every_examples={every} is more than epochs={config.epochs} of {num_train} "
            f"examples train on: "
            f"use less than {num_train}, or evaluate_every_examples=null for the ends of epochs."
        )
    per_round = sum(
        batch * steps
        for batch, steps in zip(config.worker_batches, config.local_steps, strict=True)
    )
    is_within = every is not None and every < num_train and per_round < num_train
    if config.target and config.epochs == 1 and not is_within:
        raise ConfigError(
            f"{config.target} is reached when two of three evaluations in a row are as good, but "
            f"epochs=1 has one "
            f"evaluation, at its end: use epochs=2 or more, or "
            f"evaluate_every_examples={max(1, num_train // 10)}, and "
            f"rounds of fewer than {num_train} examples."
        )
