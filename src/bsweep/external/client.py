"""The object that `bsweep.join()` returns in a training program of the user's own: it knows the
point, times the steps and reports scores.

It needs nothing but Python's standard library, so that it works beside any framework.

An epoch is one turn of `Run.epochs()`. A program by steps does not use it: there an epoch is a pass
over the training examples, which ends with the step that takes the last of them.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bsweep.external.loop import CUT_SHORT, Batch, Examples, Facts, Finish, Loop, now

POINT = "BSWEEP_POINT"
"""The environment variable with the path of the JSON file that describes the point and worker. It
lies in the worker's log folder.
"""

_WAIT_SECONDS = 60.0  # until all workers have begun
TRAINED = ("train_loss", "train_accuracy")
SCORES = ("test_loss", "test_accuracy")
MEASURED = ("exchange_seconds", "wait_seconds", "energy_joules")
WHOLE = ("sent_bytes", "received_bytes", "peak_memory_bytes")
"""The values of an epoch, of which the last ones are whole numbers."""

Mean = Callable[[float], float]


class Noise(Protocol):
    """The part of a `bsweep.NoiseScale` that `Run.noise` calls."""

    def unreported(self) -> Any: ...


class Run:
    """This process's part in a run: the values of the point, and the methods that report.

    `bsweep.join()` returns it. On other ranks than 0 the methods that report do nothing.
    """

    def __init__(self, point: Mapping[str, Any], facts: Facts, folder: Path) -> None:
        """Create the object.

        Args:
            point: The point and this worker's place in it, as `worker` writes them.
            facts: What the program says about its data and model.
            folder: The worker's log folder.
        """
        self.local_batch: int = point["local_batch"]
        """Examples of one step of one worker."""
        self.global_batch: int = point["global_batch"]
        """Examples of one step of all workers."""
        self.num_workers: int = point["num_workers"]
        self.rank: int = point["rank"]
        """The worker's number, from 0."""
        self.local_rank: int = point["local_rank"]
        """The worker's number on its host, from 0."""
        self.seed: int = point["seed"]
        self.num_epochs: int = point["epochs"]
        self.options: dict[str, Any] = dict(point["options"])
        """The values of `program.options`."""
        self._folder = Path(point["checkpoint_folder"])
        self.resumed_from: Path | None = self._folder if point["first_epoch"] > 1 else None
        """The checkpoint folder, if the run resumes from what is in it; None at a new start."""
        self._lr: float | None = point["lr"]
        self._reads_lr = False
        self.loop = Loop(point, facts, folder)
        """The epochs and steps, for adapters: see `bsweep.external.loop`."""

    @property
    def lr(self) -> float | None:
        """The learning rate of the point, after the learning-rate rule; None if none was given."""
        if self._lr is not None and not self._reads_lr:
            self._reads_lr = True
            self.loop.report("reads_lr")
        return self._lr

    @property
    def checkpoint_folder(self) -> Path:
        """A folder that outlives an interrupted run. Save there at the end of an epoch, on rank 0.

        In an epoch that was cut short it is another folder, which a resumed run does not have.
        """
        if not self.loop.is_cut:
            return self._folder
        cut = self._folder / CUT_SHORT
        cut.mkdir(exist_ok=True)
        return cut

    @property
    def should_stop(self) -> bool:
        """True if the program should end now: the target is reached, somebody asked the run to
        stop, enough steps were timed, or a program by steps has trained its passes.

        It becomes True on all ranks at the same step, if all of them use `steps` or `step`.
        """
        return bool(self.loop.stops)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 1, and report when each ends.

        A resumed run begins after the epochs that its checkpoint has.
        """
        return self.loop.epochs()

    def steps(
        self, batches: Iterable[Batch], examples: Examples = None, finish: Finish = None
    ) -> Iterator[Batch]:
        """Yield the batches of an iterable, and time each step: loading the batch, and the body of
        the loop. The iteration ends early if the program should stop.

        Outside of `epochs`, the iteration ends after as many passes over the training examples as
        the point has epochs, if the iterable does not end before.

        Args:
            batches: A data loader, or any other iterable.
            examples: The number of examples of a batch, or a function that returns it for a batch.
                None: the length of the batch's first tensor or list.
            finish: A function that waits until the step is computed, for a framework that computes
                later than it returns: `lambda: jax.block_until_ready(params)`. torch needs none.

        Raises:
            ValueError: Outside of `epochs`, if there is no batch, or the number of training
                examples is not known.
        """
        return self.loop.steps(batches, examples=examples, finish=finish)

    @contextmanager
    def step(self, examples: int | None = None, finish: Finish = None) -> Iterator[None]:
        """Time one training step, the `with` block, for loops that `steps` does not fit.

        Args:
            examples: This worker's examples of the step; None: the local batch.
            finish: As for `steps`.

        Raises:
            ValueError: As for `steps`.
        """
        begun = now()
        self.loop.begin_step(is_open=True)
        yield
        self.loop.end_step(begun, self.local_batch if examples is None else examples, finish)

    def log(self, *, reduce: str | None = None, mean: Mean | None = None, **values: float) -> None:
        """Report measurements of the current epoch; the last value of each name counts.

        Args:
            reduce: `mean` averages each value over the workers by the function `mean`, which all
                ranks call. None: rank 0's value counts.
            mean: A function that returns the mean of a number over all workers, such as
                `lambda x: hvd.allreduce(torch.tensor(x)).item()`.
            **values: `train_loss`, `train_accuracy` (a fraction), `exchange_seconds`,
                `wait_seconds`, `sent_bytes`, `received_bytes`, `peak_memory_bytes`,
                `energy_joules`.

        Raises:
            ValueError: If a name is unknown, a value is impossible, or `reduce` has no function.
        """
        known = {*TRAINED, *MEASURED, *WHOLE}
        if unknown := set(values) - known:
            raise ValueError(
                f"log({min(unknown)}=...) is unknown: bsweep knows {', '.join(sorted(known))}."
            )
        _check_fraction("log", "train_accuracy", values.get("train_accuracy"))
        for name in (*MEASURED, *WHOLE):
            value = float(values.get(name, 0.0))
            if value < 0 or math.isinf(value):  # NaN was not measured
                raise ValueError(f"log({name}={value:g}) is impossible: give a number from 0 on.")
        self.loop.report("log", values=self._reduced(values, reduce, mean))

    def evaluated(
        self,
        *,
        test_loss: float | None = None,
        test_accuracy: float | None = None,
        reduce: str | None = None,
        mean: Mean | None = None,
    ) -> None:
        """Report an evaluation on the test set, within an epoch or at its end.

        Within a step, it is an evaluation after the step, which then counts with the usual time.

        Args:
            test_loss: The mean loss.
            test_accuracy: The share of right answers, from 0 to 1.
            reduce: As for `log`.
            mean: As for `log`.

        Raises:
            ValueError: If an accuracy is not a fraction.
        """
        _check_fraction("evaluated", "test_accuracy", test_accuracy)
        scores = {"test_loss": test_loss, "test_accuracy": test_accuracy}
        values = {name: score for name, score in scores.items() if score is not None}
        self.loop.evaluated(self._reduced(values, reduce, mean))

    def noise(self, monitor: Noise) -> None:
        """Report the gradient noise that a `bsweep.NoiseScale` measured since the last report."""
        noise = monitor.unreported()
        if noise is not None:
            self.loop.flush()
            self.loop.report(
                "noise",
                gradient_square=float(noise.squared_norm),
                variance=float(noise.trace),
                num_samples=int(noise.num_samples),
            )

    def _reduced(
        self, values: Mapping[str, float], reduce: str | None, mean: Mean | None
    ) -> dict[str, float]:
        if reduce not in (None, "mean") or (reduce and mean is None):
            raise ValueError(
                f'reduce={reduce!r}: use reduce="mean" with a function mean=..., which returns the '
                "mean of a number over all workers, such as mean=lambda x: "
                "hvd.allreduce(torch.tensor(x)).item()."
            )
        return {name: float(mean(value) if mean else value) for name, value in values.items()}


def _check_fraction(method: str, name: str, value: float | None) -> None:
    if value is not None and not (0 <= value <= 1 or math.isnan(value)):
        raise ValueError(
            f"{method}({name}={value:g}) is not a fraction between 0 and 1: divide a percentage by "
            "100."
        )


def join(
    *,
    num_train: int | None = None,
    num_test: int | None = None,
    num_classes: int | None = None,
    num_parameters: int | None = None,
    precision: str | None = None,
    accumulation_steps: int = 1,
) -> Run:
    """Return this process's part in the run that `bsweep run program=own` started.

    Where TensorFlow is installed, it also sets TF_CONFIG, by which TensorFlow's
    `MultiWorkerMirroredStrategy` knows the workers.

    Args:
        num_train: The number of training examples; None: that of the data loader's data set.
        num_test: The number of test examples.
        num_classes: The number of classes, by which bsweep tells an accuracy from guessing.
        num_parameters: The number of the model's parameters.
        precision: The precision of the computation, such as `bf16`.
        accumulation_steps: The number of batches of `Run.steps` from which the program accumulates
            the gradient of one step. The examples of all of them are the local batch.

    Returns:
        The object that knows the point and takes what the program reports.

    Raises:
        RuntimeError: If bsweep did not start the program.
    """
    facts = Facts(num_train, num_test, num_classes, num_parameters, precision, accumulation_steps)
    path = Path(os.environ.get(POINT, ""))
    if not path.name:
        raise RuntimeError(
            "bsweep.join() found no point: start the program by `bsweep run program=own "
            "program.command='python train.py'`."
        )
    point = json.loads(path.read_text())
    if find_spec("tensorflow") and "TF_CONFIG" not in os.environ:
        _set_tf_config(point, path.parents[1])
    return Run(point, facts, path.parent)


def _set_tf_config(point: Mapping[str, Any], logs: Path) -> None:
    """Tell TensorFlow the addresses of all workers, and this one's rank."""
    ends = time.monotonic() + _WAIT_SECONDS
    addresses: list[str] = []
    for rank in range(point["num_workers"]):
        path = logs / f"rank.{rank}/point.json"
        other: dict[str, Any] = {}
        while other.get("launched_at") != point["launched_at"]:  # of an earlier attempt
            with suppress(OSError, ValueError):
                other = json.loads(path.read_text())
            if time.monotonic() > ends:
                warnings.warn(f"bsweep: {path} is not there, so TF_CONFIG is not set", stacklevel=3)
                return
            time.sleep(0.01)
        addresses.append(other["address"])
    task = {"type": "worker", "index": point["rank"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
