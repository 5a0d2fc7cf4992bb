"""An adapter for Lightning: a callback that times the steps of a `Trainer` and reports its scores.

    callback = BsweepCallback(bsweep.join(), saves=True)
    trainer = Trainer(max_epochs=callback.run.num_epochs, callbacks=[callback])
    trainer.fit(module, loader, val_loader, ckpt_path=callback.checkpoint)

A step is one of the optimizer. Scores are what the module logs as `val_loss` and `val_accuracy`,
and with `on_epoch=True` as `train_loss` and `train_accuracy`. Seen to work with Lightning 2.6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from bsweep.external.adapters.calls import Calls
from bsweep.external.client import Run
from bsweep.external.loop import size_of


class BsweepCallback(Callback):
    """The callback of a run."""

    def __init__(
        self, run: Run, *, saves: bool = False, names: Mapping[str, str] | None = None
    ) -> None:
        """Create it.

        Args:
            run: What `bsweep.join()` returned.
            saves: True saves a checkpoint after each epoch, from which the run can resume.
            names: The logged names of values, see `Calls`.
        """
        self.run = run
        self._saves = saves
        self._calls, self._num_steps = Calls(run, names), 0

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint from which the run resumes; None at a new start."""
        return self.run.resumed_from and self.run.resumed_from / "last.ckpt"

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._num_steps = trainer.global_step
        trainer.should_stop |= self._calls.begin_epoch(trainer.train_dataloader)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._calls.add(size_of(batch))
        if trainer.global_step > self._num_steps:
            self._num_steps = trainer.global_step
            trainer.should_stop |= self._calls.end_step()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._calls.evaluated(trainer.callback_metrics)
            self._calls.begin_step()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._calls.log(trainer.callback_metrics)  # complete only now
        if self._saves and not self.run.should_stop:  # a resumed run repeats an epoch cut short
            trainer.save_checkpoint(self.run.checkpoint_folder / "last.ckpt")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._calls.end()
