"""The records of a run's evaluations and of its measured gradient noise scale."""

from __future__ import annotations

from dataclasses import dataclass

from bsweep.config.values import Finite
from bsweep.runlog.values import Amount, Natural


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The record of an evaluation: the model's loss and accuracy on the test set, or on the
    validation examples if the run has some (`data.validation_share`).

    `num_steps`, `num_examples`, `epochs_done` and `train_seconds` count the training since the run
    began.
    """

    epoch: Natural
    num_steps: Natural
    num_examples: Natural | None = None
    epochs_done: Amount | None = None
    train_seconds: Amount | None = None
    test_loss: Finite | None = None
    test_accuracy: Amount | None = None

    type: str = "evaluation"


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The record of the two parts of the gradient noise scale, which is `variance` divided by
    `gradient_square`.

    `variance` is that of one example's gradient; `gradient_square` is the squared norm of the true
    gradient. Both are means over the measured steps since the last record, see
    `bsweep.numerics.noise_scale`. Both are estimates, so either may be zero or negative.

    The estimates come from `num_gradients` gradients, each the mean over `gradient_batch` examples.
    `num_examples` counts the training examples since the run began.
    """

    epoch: Natural
    num_steps: Natural
    num_examples: Natural | None = None
    epochs_done: Amount | None = None
    gradient_square: Finite | None = None
    variance: Finite | None = None
    num_gradients: Natural | None = None
    gradient_batch: Finite | None = None

    type: str = "noise_scale"
