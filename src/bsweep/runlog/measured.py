"""Records of what a run measures of its model beside training it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bsweep.runlog.values import Amount, Finite, Natural


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The model on the test set, after so many steps, examples, epochs and seconds of training
    since the run began.
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
    """Parts of the gradient noise scale, `variance` over `gradient_square`: means over the steps
    since the last record.

    They are of one example's gradient and of the true one's squared norm, see
    `bsweep.numerics.noise_scale`; either may come out as zero or less. `num_examples` were trained
    since the run began. Of `num_gradients`, each the mean over `gradient_batch` examples, they are
    estimated. `layers` has both, the square first, of each tensor by its name.
    """

    epoch: Natural
    num_steps: Natural
    num_examples: Natural | None = None
    epochs_done: Amount | None = None
    gradient_square: Finite | None = None
    variance: Finite | None = None
    num_gradients: Natural | None = None
    gradient_batch: Finite | None = None
    layers: Mapping[str, tuple[Finite, Finite]] | None = None

    type: str = "noise_scale"
