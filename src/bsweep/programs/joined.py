"""The object that `bsweep.join()` returns in a training program of the user's own: it knows the
point, times the steps and reports scores.

It needs nothing but Python's standard library, so that it works beside any framework. Reports are
lines of JSON in a file, which the process that started the program reads. Rank 0 alone reports.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bsweep.config.target import Target
from bsweep.programs.agreement import Agreement
from bsweep.runlog.taken import FORM

POINT = "BSWEEP_POINT"
"""The environment variable with the path of the JSON file that describes the point and worker."""

_FLUSH_SECONDS = 0.5  # between two reports of steps, and between two looks at the stop file
_LOGGED = {
    "train_loss",
    "train_accuracy",
    "exchange_seconds",
    "wait_seconds",
    "sent_bytes",
    "received_bytes",
    "peak_memory_bytes",
    "energy_joules",
}

Batch = TypeVar("Batch")
Examples = int | Callable[[Any], int | None] | None
Finish = Callable[[], object] | None


class Noise(Protocol):
    """The part of a `bsweep.NoiseScale` that `Run.noise` reads."""

    @property
    def noise(self) -> Any: ...


@dataclass(frozen=True)
class Facts:
    """Facts about the program's data and model that bsweep cannot see; None: not known.

    `num_train` and `num_test` count examples, `num_classes` the classes of the labels.
    """

    num_train: int | None = None
    num_test: int | None = None
    num_classes: int | None = None
    num_parameters: int | None = None
    precision: str | None = None


class Run:
    """This process's part in a run: the values of the point, and the methods that report.

    `bsweep.join()` returns it. On other ranks than 0 the methods that report do nothing.
    """

    def __init__(self, point: Mapping[str, Any], facts: Facts) -> None:
        """Create the object.

        Args:
            point: The point and this worker's place in it, as `worker` writes them.
            facts: What the program says about its data and model.
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
        self._first_epoch: int = point["first_epoch"]
        self._most_steps: int | None = point["most_steps"]
        self._stop_file = Path(point["stop_file"])
        target = point["target"]
        self._target = Target(**target) if target and point["stop_at_target"] else None
        self._pid = os.getpid()
        self._reports = _Reports(Path(point["reports"])) if self.rank == 0 else None
        self._clock = _Clock()
        self._taken = _Taken(Path(point["taken"]), self.num_epochs)
        self._agreement = Agreement(self.rank, self.num_workers, Path(point["meeting"]))
        self._facts = facts
        self._epoch = self._first_epoch - 1
        self._num_steps = 0
        self._stops: str = ""
        self._wish = ""
        self._flushed_at = float("-inf")
        self._scores: list[float] = list(point["scores"])
        self._has_begun = self._is_cut = False
        self._report("joined", pid=self._pid, python=sys.version.split()[0])

    @property
    def lr(self) -> float | None:
        """The learning rate of the point, after the learning-rate rule; None if none was given."""
        if self._lr is not None:
            self._report("reads_lr")
        return self._lr

    @property
    def checkpoint_folder(self) -> Path:
        """A folder that outlives an interrupted run. Save there at the end of an epoch, on rank 0.

        In an epoch that was cut short it is another folder, which a resumed run does not have.
        """
        if not self._is_cut:
            return self._folder
        cut = self._folder / "cut_short"
        cut.mkdir(exist_ok=True)
        return cut

    @property
    def should_stop(self) -> bool:
        """True if the program should end now: the target is reached, somebody asked the run to
        stop, or enough steps were timed.

        It becomes True on all ranks at the same step, if all of them use `steps` or `step`.
        """
        return bool(self._stops)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 1, and report when each ends.

        A resumed run begins after the epochs that its checkpoint has.
        """
        for epoch in range(self._first_epoch, self.num_epochs + 1):
            self._begin(epoch)
            try:
                yield epoch
            finally:  # also where the loop is left by `break`
                self._flush()
                self._taken.end_epoch()
            self._report("end_epoch", epoch=epoch, files=files_in(self._folder))
            if not self._stops:
                self._decide(at_epoch_end=True)
            if self._stops:
                break
        self._report("finished", reason=self._stops)

    def steps(
        self, batches: Iterable[Batch], examples: Examples = None, finish: Finish = None
    ) -> Iterator[Batch]:
        """Yield the batches of an iterable, and time each step: loading the batch, and the body of
        the loop. The iteration ends early if the program should stop.

        Args:
            batches: A data loader, or any other iterable.
            examples: The number of examples of a batch, or a function that returns it for a batch.
                None: the length of the batch's first tensor or list.
            finish: A function that waits until the step is computed, for a framework that computes
                later than it returns: `lambda: jax.block_until_ready(params)`. torch needs none.
        """
        self._see_size(batches)
        iterator = iter(batches)
        while True:
            self._before_step()
            if self._stops:
                return
            begun = self._clock.now()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._taken.begin_step()
            yield batch
            if finish:
                finish()
            self._after_step(begun, size_of(batch, examples))

    @contextmanager
    def step(self, examples: int | None = None, finish: Finish = None) -> Iterator[None]:
        """Time one training step, the `with` block, for loops that `steps` does not fit.

        Args:
            examples: This worker's examples of the step; None: the local batch.
            finish: As for `steps`.
        """
        self._before_step()
        begun = self._clock.now()
        self._taken.begin_step()
        yield
        if finish:
            finish()
        self._after_step(begun, examples)

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
            ValueError: If a name is unknown, or `reduce` has no function.
        """
        if unknown := set(values) - _LOGGED:
            raise ValueError(
                f"log({min(unknown)}=...) is unknown: bsweep knows {', '.join(sorted(_LOGGED))}."
            )
        self._report("log", values=self._reduced(values, reduce, mean))

    def evaluated(
        self,
        *,
        test_loss: float | None = None,
        test_accuracy: float | None = None,
        reduce: str | None = None,
        mean: Mean | None = None,
    ) -> None:
        """Report an evaluation on the test set, within an epoch or at its end.

        Args:
            test_loss: The mean loss.
            test_accuracy: The share of right answers, from 0 to 1.
            reduce: As for `log`.
            mean: As for `log`.

        Raises:
            ValueError: If an accuracy is not a fraction.
        """
        if test_accuracy is not None and not (0 <= test_accuracy <= 1 or math.isnan(test_accuracy)):
            raise ValueError(
                f"evaluated(test_accuracy={test_accuracy:g}) is not a fraction between 0 and 1: "
                "divide a percentage by 100."
            )
        given = {"test_loss": test_loss, "test_accuracy": test_accuracy}
        values = {name: value for name, value in given.items() if value is not None}
        values = self._reduced(values, reduce, mean)
        self._flush()
        self._report("evaluated", values=values)
        if self._target and self._target.metric in values:
            self._scores.append(values[self._target.metric])
            if self._target.is_confirmed_by(self._scores):
                self._wish = self._wish or "target"

    def noise(self, monitor: Noise) -> None:
        """Report the gradient noise scale that a `bsweep.NoiseScale` has measured so far."""
        found = monitor.noise
        if found is not None:
            self._flush()
            self._report(
                "noise",
                gradient_square=float(found.squared_norm),
                variance=float(found.trace),
                num_samples=int(found.num_samples),
            )

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._taken.begin_epoch(epoch)
        self._report("begin_epoch", epoch=epoch)

    def _see_size(self, batches: object) -> None:
        """Take the number of training examples from a data loader, if the program did not say
        it.
        """
        if self._has_begun:
            return
        num_train = self._facts.num_train
        data = getattr(batches, "dataset", None)
        if num_train is None and isinstance(data, Sized):
            num_train = len(data)
        self._say_ready(num_train)

    def _say_ready(self, num_train: int | None) -> None:
        self._has_begun = True
        torch = sys.modules.get("torch")
        on_gpu = bool(torch and torch.cuda.is_available() and torch.cuda.is_initialized())
        facts = {**vars(self._facts), "num_train": num_train}
        self._report(
            "ready",
            facts=facts,
            device=torch.cuda.get_device_name() if torch and on_gpu else None,
            torch=getattr(torch, "__version__", None),
            threads=torch.get_num_threads() if torch else None,
        )

    def _before_step(self) -> None:
        if self._num_steps >= self._agreement.next_step:
            self._decide()

    def _after_step(self, begun: Any, examples: int | None) -> None:
        if os.getpid() != self._pid:
            return
        if not self._has_begun:
            self._say_ready(self._facts.num_train)
        self._num_steps += 1
        self._clock.add(begun, self.local_batch if examples is None else examples)
        if self._clock.host_now() - self._flushed_at > _FLUSH_SECONDS:
            self._flush(waits=False)

    def _flush(self, *, waits: bool = True) -> None:
        self._flushed_at = self._clock.host_now()
        seconds, examples = self._clock.taken(waits=waits)
        if seconds:
            self._taken.add(examples)
            self._report("steps", epoch=self._epoch, seconds=seconds, examples=examples)

    def _decide(self, *, at_epoch_end: bool = False) -> None:
        """Agree with all ranks whether to stop here; rank 0 decides."""
        if self.rank == 0:
            if self._most_steps is not None and self._num_steps >= self._most_steps:
                self._wish = self._wish or "enough steps"
            if not self._wish and self._is_asked():
                self._wish = "asked"
        self._stops = self._agreement.decide(
            self._wish, self._num_steps, self._most_steps, at_epoch_end=at_epoch_end
        )
        if self._stops:
            self._flush()
            self._is_cut = not at_epoch_end
            self._report("stops", reason=self._stops, cuts=self._is_cut)

    def _is_asked(self) -> bool:
        try:
            return self._stop_file.stat().st_size > 0
        except OSError:
            return False

    def _reduced(
        self, values: Mapping[str, float], reduce: str | None, mean: Mean | None
    ) -> dict[str, float]:
        if reduce not in (None, "mean"):
            raise ValueError(f'reduce={reduce!r} is unknown: use reduce="mean", or leave it out.')
        if reduce and mean is None:
            raise ValueError(
                'reduce="mean" needs a function mean=..., which returns the mean of a number over '
                "all workers, such as mean=lambda x: hvd.allreduce(torch.tensor(x)).item()."
            )
        return {name: float(mean(value) if mean else value) for name, value in values.items()}

    def _report(self, kind: str, **values: Any) -> None:
        if self._reports and os.getpid() == self._pid:
            self._reports.write({"kind": kind, "time": time.time(), **values})


Mean = Callable[[float], float]


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the modification time of each file in a program's checkpoint folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # the program removes it meanwhile
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found


class _Taken:
    """The file in which a rank counts what it has taken, see `bsweep.runlog.taken`. It is made at
    the first step, and mapped into memory, so that a step pays nothing for it.
    """

    def __init__(self, path: Path, num_epochs: int) -> None:
        self._path, self._size = path, FORM.size * num_epochs
        self._memory: mmap.mmap | None = None
        self._pid, self._epoch = os.getpid(), 1
        self._num_begun = self._num_steps = self._num_examples = 0

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._num_begun = self._num_steps = self._num_examples = 0

    def begin_step(self) -> None:
        self._num_begun += 1
        if self._memory is None:
            with self._path.open("ab+") as file:
                file.truncate(self._size)
                self._memory = mmap.mmap(file.fileno(), self._size)
        self._write()

    def add(self, examples: Sequence[int]) -> None:
        self._num_steps += len(examples)
        self._num_examples += sum(examples)
        self._write()

    def end_epoch(self) -> None:
        self._write(has_ended=True)
        if self._memory:
            self._memory.flush()  # for other hosts

    def _write(self, *, has_ended: bool = False) -> None:
        counts = self._num_begun, self._num_steps, self._num_examples, has_ended
        if self._memory and os.getpid() == self._pid:  # and not a fork, which shares the memory
            FORM.pack_into(self._memory, FORM.size * (self._epoch - 1), *counts)


class _Reports:
    """The file of reports, to which rank 0 appends lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.absolute().open("a", encoding="utf-8")
        self._said: set[str] = set()

    def write(self, report: Mapping[str, Any]) -> None:
        if report["kind"] == "reads_lr":
            if "reads_lr" in self._said:
                return
            self._said.add("reads_lr")
        self._file.write(json.dumps(report) + "\n")  # NaN is written, too: it means diverged
        self._file.flush()


class _Clock:
    """A clock of steps: by CUDA events if torch uses a GPU in this process, otherwise by the host's
    clock.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._examples: list[int] = []
        self._events: list[tuple[Any, Any, int]] = []
        self.host_now = time.perf_counter

    def now(self) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, begun: Any, examples: int) -> None:
        if isinstance(begun, float):
            self._seconds.append(time.perf_counter() - begun)
            self._examples.append(examples)
        else:
            self._events.append((begun, self.now(), examples))

    def taken(self, *, waits: bool) -> tuple[list[float], list[int]]:
        """Return the seconds and the examples of the steps since the last call; of a GPU's steps
        only those that it has finished, unless `waits` is True.
        """
        while self._events and (waits or self._events[0][1].query()):
            begin, end, examples = self._events.pop(0)
            end.synchronize()
            self._seconds.append(begin.elapsed_time(end) / 1000)
            self._examples.append(examples)
        found = self._seconds, self._examples
        self._seconds, self._examples = [], []
        return found


def size_of(batch: Any, examples: Examples = None) -> int | None:
    """Return the number of examples in a batch; None if it cannot be seen.

    Args:
        batch: What a data loader yields.
        examples: As for `Run.steps`.
    """
    if isinstance(examples, int):
        return examples
    if examples is not None:
        return examples(batch)
    first = batch
    while not hasattr(first, "shape"):
        if isinstance(first, Mapping) and first:
            first = next(iter(first.values()))
        elif isinstance(first, Sequence) and first and not isinstance(first, str | bytes):
            if not isinstance(first[0], Mapping | Sequence) and not hasattr(first[0], "shape"):
                return len(first)
            first = first[0]
        else:
            return None
    return int(first.shape[0]) if len(first.shape) else None


def join(
    *,
    num_train: int | None = None,
    num_test: int | None = None,
    num_classes: int | None = None,
    num_parameters: int | None = None,
    precision: str | None = None,
) -> Run:
    """Return this process's part in the run that `bsweep run program=own` started.

    Args:
        num_train: The number of training examples; None: that of the data loader's data set.
        num_test: The number of test examples.
        num_classes: The number of classes, by which bsweep tells an accuracy from guessing.
        num_parameters: The number of the model's parameters.
        precision: The precision of the computation, such as `bf16`.

    Returns:
        The object that knows the point and takes what the program reports.

    Raises:
        RuntimeError: If bsweep did not start the program.
    """
    facts = Facts(num_train, num_test, num_classes, num_parameters, precision)
    path = os.environ.get(POINT)
    if path is None:
        raise RuntimeError(
            "bsweep.join() found no point: start the program by `bsweep run program=own "
            "program.command='python train.py'`."
        )
    return Run(json.loads(Path(path).read_text()), facts)
