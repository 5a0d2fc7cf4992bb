"""Epochs and steps of a `Run` for a framework that owns the training loop and calls back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bsweep.external.client import Run
from bsweep.external.loop import now

NAMES = {
    "train_loss": "train_loss",
    "train_accuracy": "train_accuracy",
    "test_loss": "val_loss",
    "test_accuracy": "val_accuracy",
}
"""The framework's usual name of each value that bsweep records."""


class Calls:
    """The epochs and steps of a run, which callbacks move on. All workers make the same calls."""

    def __init__(self, run: Run, names: Mapping[str, str] | None = None) -> None:
        """Create it.

        Args:
            run: What `bsweep.join()` returned.
            names: The framework's names of `train_loss`, `train_accuracy`, `test_loss` and
                `test_accuracy`, where they differ from `NAMES`.
        """
        self.run = run
        self._names = {**NAMES, **(names or {})}
        self._epochs = run.epochs()
        self._examples, self._begun = 0, now()
        self._is_over = False

    def begin_epoch(self, batches: object = None) -> bool:
        """Begin an epoch and its first step, after the end of the one before and of all that
        belongs to it, such as its evaluation. Return True if the program should stop.

        Args:
            batches: The loader, for the number of training examples.
        """
        self.run.loop.see_data(batches)
        self._is_over = next(self._epochs, None) is None
        self._examples = 0
        self.begin_step()
        return self._is_over

    def begin_step(self) -> None:
        """Begin to time a step, and forget the time of a step that was begun."""
        self._begun = now()
        if not self._is_over:
            self.run.loop.begin_step()

    def add(self, examples: int | None) -> None:
        """Count examples of this worker into the step that was begun; None: the local batch."""
        self._examples += self.run.local_batch if examples is None else examples

    def end_step(self) -> bool:
        """End a step and begin the next, so that its time has the loading of its batch. Return
        True if the program should stop.
        """
        if not self._is_over and not self.run.should_stop:
            self.run.loop.end_step(self._begun, self._examples)
        self._examples = 0
        self.begin_step()
        return self.run.should_stop

    def log(self, values: Mapping[str, Any]) -> None:
        """Report the training loss and accuracy of the epoch, as far as the framework has them."""
        if losses := self._named("train", values):
            self.run.log(**losses)

    def evaluated(self, values: Mapping[str, Any]) -> None:
        """Report the loss and accuracy on the test set, as far as the framework has them."""
        if scores := self._named("test", values):
            self.run.evaluated(**scores)

    def end(self) -> None:
        """End the last epoch, at the end of the training."""
        next(self._epochs, None)
        self._is_over = True

    def _named(self, part: str, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_over:  # what comes after the last epoch belongs to none
            return {}
        names = {field: name for field, name in self._names.items() if field.startswith(part)}
        return {field: float(values[name]) for field, name in names.items() if name in values}
