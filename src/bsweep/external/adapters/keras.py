"""An adapter for Keras 3, with torch or JAX below: a callback that times the steps of `Model.fit`
and reports its scores.

    run = bsweep.join()
    model.fit(x, y, batch_size=run.local_batch, epochs=run.num_epochs, validation_data=test,
              callbacks=[BsweepCallback(run, num_examples=len(x))])

Scores are `val_loss` and `val_accuracy` of `fit`, which a model has after
`compile(metrics=["accuracy"])`. Seen to work with Keras 3.15.1, and with tf_keras 2.21 under
TensorFlow's `MultiWorkerMirroredStrategy`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from bsweep.external.adapters.calls import Calls
from bsweep.external.client import Run

_NAMES = {"train_loss": "loss", "train_accuracy": "accuracy"}
_keras = import_module("tf_keras" if "tf_keras" in sys.modules else "keras")


class BsweepCallback(_keras.callbacks.Callback):  # type: ignore[name-defined]
    """The callback of a run, for models of tf_keras if the program has imported it before."""

    def __init__(
        self, run: Run, *, num_examples: int, names: Mapping[str, str] | None = None
    ) -> None:
        """Create it.

        Args:
            run: What `bsweep.join()` returned.
            num_examples: The training examples of this worker, by which the callback knows how many
                the last step of an epoch has.
            names: The names of values in Keras's logs, see `Calls`.
        """
        super().__init__()
        self._calls = Calls(run, {**_NAMES, **(names or {})})
        self._local_batch, self._num_examples, self._left = run.local_batch, num_examples, 0

    def set_model(self, model: Any) -> None:
        if not isinstance(model, _keras.Model):
            raise TypeError(
                f"bsweep: BsweepCallback is one of {_keras.__name__}, but the model is not: import "
                "tf_keras before bsweep.external.adapters.keras for its models alone."
            )
        super().set_model(model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._left = self._num_examples
        self.model.stop_training |= self._calls.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for value in (logs or {}).values():
            float(value)  # waits until the step is computed
        size = min(self._local_batch, self._left)
        self._left -= size
        self._calls.add(size)
        self.model.stop_training |= self._calls.end_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._calls.log(logs or {})
        self._calls.evaluated(logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        self._calls.end()
