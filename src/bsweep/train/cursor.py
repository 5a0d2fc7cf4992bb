"""The progress of a worker's training: how many epochs, examples and steps are done.

Only the training loop changes it, and a checkpoint stores it. It counts examples, because batches
may change. It counts steps to number the records, and to choose the steps in which the gradient
noise is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Scores = tuple[float | None, float | None]
"""The loss and the accuracy of an evaluation, each None if it is not finite or not known."""


@dataclass
class Cursor:
    """The progress of a worker's training, with its sums of losses, step times and scores."""

    num_train: int  # examples of an epoch
    # This worker's sums in the epoch up to the last log record: losses, correct answers and labels,
    # float64 (3,).
    totals: Tensor
    recent: Tensor  # the same sums since the last log record
    epoch: int = 1
    position: int = 0  # the number of the epoch's examples that are trained, in their order
    num_steps: int = 0  # of the run
    global_batch: int = 0  # of the last step
    step_seconds: list[float] = field(default_factory=list)  # of the epoch
    checkpoint_seconds: float = 0.0  # since the last epoch's record
    train_seconds: float = 0.0  # of the earlier epochs
    evaluated_examples: int = 0  # examples trained from the run's start to the last evaluation
    scores: list[Scores] = field(default_factory=list)  # of all evaluations so far
    reached: str = ""  # a sentence that says when the target was reached; "" before that
    # The peak before the epoch's first evaluation, if there is one before the epoch's end.
    peak_memory_bytes: int | None = None

    @classmethod
    def create(cls, device: torch.device, num_train: int, **shared: Any) -> Cursor:
        """Return a cursor, which has the progress of a worker's training, with all sums of losses
        at zero.

        The keyword arguments are the values of a saved cursor. Without them, the cursor is at the
        start of the run.
        """
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        return cls(num_train, totals, totals.clone(), **shared)

    @property
    def ends_epoch(self) -> bool:
        """True if the workers have trained on every example of the current epoch."""
        return self.position == self.num_train

    @property
    def num_examples(self) -> int:
        """The number of examples from the beginning of epoch 1 to this position, of all workers."""
        return (self.epoch - 1) * self.num_train + self.position

    def epochs_done(self, more_examples: float = 0) -> float:
        """Return, as a float, how many epochs the run will have trained after `more_examples`
        further examples.
        """
        return self.epoch - 1 + (self.position + more_examples) / self.num_train

    def begin_epoch(self) -> None:
        """Move this cursor to the beginning of the next epoch, and set its sums of losses to
        zero.
        """
        self.totals.zero_()
        self.recent.zero_()
        self.train_seconds += sum(self.step_seconds)
        self.peak_memory_bytes = None
        self.epoch, self.position, self.step_seconds = self.epoch + 1, 0, []

    def shared(self) -> dict[str, Any]:
        """Return the values of this cursor that one worker saves in a checkpoint and all workers
        restore.
        """
        return {key: getattr(self, key) for key in _SHARED}


_SHARED = (
    *("epoch", "position", "num_steps", "global_batch", "step_seconds", "checkpoint_seconds"),
    *("train_seconds", "evaluated_examples", "scores", "reached"),
)
