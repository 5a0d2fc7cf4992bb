"""An adapter for Hugging Face's `Trainer`: a callback that times steps and reports scores.

    run = bsweep.join()
    trainer = Trainer(model, TrainingArguments(**arguments(run)), callbacks=[BsweepCallback(run)])
    trainer.train(resume_from_checkpoint=run.resumed_from is not None)

Scores are `eval_loss`, and `eval_accuracy` of `compute_metrics`. The training loss is an epoch's
mean, with `logging_strategy="epoch"`. Seen to work with Transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from bsweep.external.adapters.calls import Calls
from bsweep.external.client import Run
from bsweep.external.loop import size_of

_NAMES = {"train_loss": "loss", "test_loss": "eval_loss", "test_accuracy": "eval_accuracy"}


def arguments(run: Run) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments` that a point decides: batch, epochs, seed and
    learning rate, an evaluation after each epoch, and checkpoints from which the run can resume.
    """
    return {
        "per_device_train_batch_size": run.local_batch,
        "num_train_epochs": run.num_epochs,
        "seed": run.seed,
        "eval_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "output_dir": str(run.checkpoint_folder),
        **({} if run.lr is None else {"learning_rate": run.lr}),
    }


class BsweepCallback(TrainerCallback):
    """The callback of a run."""

    def __init__(self, run: Run, names: Mapping[str, str] | None = None) -> None:
        """Create it.

        Args:
            run: What `bsweep.join()` returned.
            names: The names of `Trainer`'s metrics, see `Calls`.
        """
        self._calls = Calls(run, {**_NAMES, **(names or {})})

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        def count(module: Any, args: Any, kwargs: Any) -> None:
            if module.training:
                self._calls.add(size_of([*args, *kwargs.values()]))

        self._hook = kwargs["model"].register_forward_pre_hook(count, with_kwargs=True)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= self._calls.begin_epoch(kwargs["train_dataloader"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= self._calls.end_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save &= not self._calls.run.should_stop  # a resumed run repeats this epoch

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.logging_strategy == "epoch":  # otherwise a mean of the last steps alone
            self._calls.log(kwargs["logs"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._calls.evaluated(kwargs["metrics"])
        self._calls.begin_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._hook.remove()
        self._calls.end()
