"""Where a worker is in its run: the loop alone writes it, and a checkpoint keeps it.

It counts in examples, for batches may change; steps are counted for the numbers of records alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Scores = tuple[float | None, float | None]
"""Test loss and test accuracy; None is not finite, or not known."""


@dataclass
class Cursor:
    """The position of this worker in its run, and what the loop has summed up to there."""

    num_train: int  # examples of an epoch
    # of the epoch: sums of losses, correct answers and examples of this worker, float64 (3,)
    totals: Tensor
    recent: Tensor  # the same since the last log record
    epoch: int = 1
    position: int = 0  # of the epoch's examples, in their order: those before it are trained
    num_steps: int = 0  # of the run
    global_batch: int = 0  # of the last step
    step_seconds: list[float] = field(default_factory=list)  # of the epoch
    checkpoint_seconds: float = 0.0  # since the last epoch's record
    train_seconds: float = 0.0  # of the epochs before
    evaluated_examples: int = 0  # trained until the last evaluation, since the run began
    scores: list[Scores] = field(default_factory=list)  # of all evaluations so far
    reached: str = ""  # when its target was, in words
    # before the epoch's first evaluation, where one comes before its end
    peak_memory_bytes: int | None = None

    @classmethod
    def of(cls, device: torch.device, num_train: int, **shared: Any) -> Cursor:
        """Return the beginning of a run, or what `shared` gave there, with sums of nothing."""
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        return cls(num_train, totals, totals.clone(), **shared)

    @property
    def ends_epoch(self) -> bool:
        """Whether all examples of the epoch are trained."""
        return self.position == self.num_train

    @property
    def num_examples(self) -> int:
        """Examples trained since the run began."""
        return (self.epoch - 1) * self.num_train + self.position

    def epochs_done(self, more_examples: float = 0) -> float:
        """Return the epochs trained since the run began, with so many examples more."""
        return self.epoch - 1 + (self.position + more_examples) / self.num_train

    def add_evaluation(self, scores: Scores, reached: str) -> None:
        """Keep what an evaluation of the present model gave."""
        self.evaluated_examples, self.reached = self.num_examples, reached
        self.scores.append(scores)

    def begin_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.totals.zero_()
        self.recent.zero_()
        self.train_seconds += sum(self.step_seconds)
        self.peak_memory_bytes = None
        self.epoch, self.position, self.step_seconds = self.epoch + 1, 0, []

    def shared(self) -> dict[str, Any]:
        """Return what goes on record by the first worker, and so is for all as that one has counted
        it.
        """
        return {key: getattr(self, key) for key in _SHARED}


_SHARED = (
    *("epoch", "position", "num_steps", "global_batch", "step_seconds", "checkpoint_seconds"),
    *("train_seconds", "evaluated_examples", "scores", "reached"),
)
