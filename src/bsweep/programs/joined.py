"""The object that `bsweep.join()` returns in a training program of the user's own: it knows the
point, times the steps and reports scores.

It needs nothing but Python's standard library, so that it works beside any framework. Reports are
lines of JSON in a file, which the process that started the program reads. Rank 0 alone reports.

An epoch is one turn of `Run.epochs()`. A program by steps does not use it: there an epoch is a pass
over the training examples, which ends with the step that takes the last of them.
"""

from __future__ import annotations

import atexit
import json
import math
import mmap
import os
import stat
import statistics
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bsweep.config.target import Target
from bsweep.programs.agreement import Agreement
from bsweep.runlog.taken import FORM

POINT = "BSWEEP_POINT"
"""The environment variable with the path of the JSON file that describes the point and worker."""

_FLUSH_SECONDS = 0.5  # between two reports of steps, and between two looks at the stop file
_USUAL_STEPS = 101
_WAIT_SECONDS = 60.0  # until all workers have begun
_PASSES = "passes"  # why a program by steps stops: it has trained its passes
_PACKAGES = ("torch", "tensorflow", "jax", "lightning", "keras", "tf_keras")
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

    `num_train` and `num_test` count examples, `num_classes` the classes of the labels,
    `accumulation_steps` the batches of a step.
    """

    num_train: int | None = None
    num_test: int | None = None
    num_classes: int | None = None
    num_parameters: int | None = None
    precision: str | None = None
    accumulation_steps: int = 1


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
        reports = Path(point["reports"])
        self._reports = reports.open("a") if self.rank == 0 else None
        self._clock = _Clock()
        self._taken = _Taken(Path(point["taken"]), self.num_epochs)
        self._agreement = Agreement(self.rank, self.num_workers, Path(point["meeting"]))
        self._facts = facts
        self._num_train: int | None = facts.num_train or point["num_train"]
        self._epoch = self._first_epoch - 1
        self._has_loop = False  # of epochs; otherwise an epoch is a pass
        self._left = 0  # of the pass: examples of all workers
        self._num_steps = 0
        self._stops: str = ""
        self._wish = ""
        self._flushed_at = float("-inf")
        self._scores: list[float] = list(point["scores"])
        self._evaluation: dict[str, float] = {}  # of this step
        self._reads_lr = self._is_ready = self._is_cut = self._is_in_step = False
        python = {"python": sys.version.split()[0], "interpreter": sys.executable}
        self._report("joined", pid=self._pid, software=python, facts=asdict(facts))
        atexit.register(self._flush)

    @property
    def lr(self) -> float | None:
        """The learning rate of the point, after the learning-rate rule; None if none was given."""
        if self._lr is not None and not self._reads_lr:
            self._reads_lr = True
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
        stop, enough steps were timed, or a program by steps has trained its passes.

        It becomes True on all ranks at the same step, if all of them use `steps` or `step`.
        """
        return bool(self._stops)

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 1, and report when each ends.

        A resumed run begins after the epochs that its checkpoint has.
        """
        self._has_loop = True
        for epoch in range(self._first_epoch, self.num_epochs + 1):
            self._begin_epoch(epoch)
            try:
                yield epoch
            finally:  # also where the loop is left by `break`
                self._flush()
                self._taken.end_epoch()
            self._report("end_epoch", files=files_in(self._folder))
            if not self._stops:
                self._decide(at_epoch_end=True)
            if self._stops:
                break

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
        num_batches = self._facts.accumulation_steps
        return self.timed_steps(batches, lambda number: number == num_batches, examples, finish)

    def timed_steps(
        self,
        batches: Iterable[Batch],
        ends_step: Callable[[int], bool],
        examples: Examples = None,
        finish: Finish = None,
    ) -> Iterator[Batch]:
        """Yield batches as `steps` does, for an adapter that knows which batches are one step.

        Args:
            batches: As for `steps`.
            ends_step: Called after each batch with the number of batches since the last step;
                returns True if the program has made a step of the optimizer.
            examples: As for `steps`.
            finish: As for `steps`.
        """
        self.see_data(batches)
        self._say_ready()
        start, before = time.perf_counter(), self._num_steps
        iterator = iter(batches)  # a loader may start its processes
        self._clock.start_seconds += time.perf_counter() - start
        while not self._stops:
            begun, sizes = self.now(), list[int]()
            for batch in iterator:
                if not sizes:
                    self.begin_step()
                self._is_in_step = True
                try:
                    yield batch
                except GeneratorExit:  # the loop was left by `break`
                    self._is_in_step = False
                    self._report_evaluation()
                    raise
                size = size_of(batch, examples)
                usual = self.local_batch // self._facts.accumulation_steps
                sizes.append(usual if size is None else size)
                if ends_step(len(sizes)):
                    break
            if not sizes:
                break
            if finish:
                finish()
            self.end_step(begun, sum(sizes))
        if self._num_steps == before and not self._stops and not self._has_loop:
            raise ValueError(f"bsweep: run.steps(...) got no batch: {NO_BATCH}.")

    @contextmanager
    def step(self, examples: int | None = None, finish: Finish = None) -> Iterator[None]:
        """Time one training step, the `with` block, for loops that `steps` does not fit.

        Args:
            examples: This worker's examples of the step; None: the local batch.
            finish: As for `steps`.

        Raises:
            ValueError: As for `steps`.
        """
        begun = self.now()
        self.begin_step()
        self._is_in_step = True
        yield
        if finish:
            finish()
        self.end_step(begun, self.local_batch if examples is None else examples)

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

        Within a step, it is an evaluation after the step, which then counts with the usual time.

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
        self._evaluation |= values
        if not self._is_in_step:
            self._report_evaluation()
        if self._target and self._target.metric in values:
            self._scores.append(values[self._target.metric])
            if self._target.is_confirmed_by(self._scores):
                self._wish = self._wish or "target"

    def _report_evaluation(self) -> None:
        if self._evaluation:
            self._flush()
            self._report("evaluated", values=self._evaluation)
            self._evaluation = {}

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

    def see_data(self, batches: object) -> None:
        """Take the number of training examples from a data loader, if it is not known yet."""
        data = getattr(batches, "dataset", None)
        if self._num_train is None and isinstance(data, Sized):
            self._num_train = len(data)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._taken.begin_epoch(epoch)
        self._report("begin_epoch", epoch=epoch, is_pass=not self._has_loop)

    def now(self) -> Any:
        """Return the time at which a step begins, for `end_step`."""
        return self._clock.now()

    def begin_step(self) -> None:
        """Count the beginning of a step, and of a pass where one ended before."""
        if not self._has_loop and self._left <= 0 and self._epoch < self.num_epochs:
            if self._num_train is None:
                raise ValueError(
                    "bsweep: steps outside of run.epochs() are counted in passes over the training "
                    "examples: say their number by bsweep.join(num_train=50000)."
                )
            if self._epoch >= self._first_epoch:
                self._flush()
                self._report("end_epoch", files={})
            self._left += self._num_train
            self._begin_epoch(self._epoch + 1)
        self._taken.begin_step()

    def end_step(self, begun: Any, examples: int) -> None:
        """Count a step of this worker that began at the time `begun`, see `now`."""
        if os.getpid() != self._pid:
            return
        self._say_ready()
        self._is_in_step = False
        self._num_steps += 1
        self._left -= examples * self.num_workers
        self._clock.add(begun, examples, has_evaluated=bool(self._evaluation))
        self._report_evaluation()
        if time.perf_counter() - self._flushed_at > _FLUSH_SECONDS:
            self._flush(waits=False)
        if self._num_steps >= self._agreement.next_step:
            self._decide()

    def _say_ready(self) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        torch = sys.modules.get("torch")
        on_gpu = bool(torch and torch.cuda.is_available() and torch.cuda.is_initialized())
        threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        modules = {name: sys.modules.get(name) for name in _PACKAGES}
        versions = {name: getattr(module, "__version__", "") for name, module in modules.items()}
        self._report(
            "ready",
            num_train=self._num_train,
            device=torch.cuda.get_device_name() if torch and on_gpu else None,
            threads=torch.get_num_threads() if torch else int(threads or 0) or None,
            software={name: version for name, version in versions.items() if version},
        )

    def _flush(self, *, waits: bool = True) -> None:
        if os.getpid() != self._pid:  # a fork that ends; the steps are not its own
            return
        self._flushed_at = time.perf_counter()
        steps = self._clock.taken(waits=waits)
        if steps["seconds"]:
            self._taken.add(steps["examples"])
            self._report("steps", **steps)

    def _decide(self, *, at_epoch_end: bool = False) -> None:
        """Agree with all ranks whether to stop here; rank 0 decides."""
        left: dict[str, int] = {}  # steps, by the reason to stop after them
        if self._most_steps is not None:
            left["enough steps"] = self._most_steps - self._num_steps
        if not self._has_loop:
            passes = self._left + (self._num_train or 0) * (self.num_epochs - self._epoch)
            left[_PASSES] = math.ceil(passes / self.global_batch)
        if self.rank == 0 and not self._wish:
            ended = [reason for reason, steps in left.items() if steps <= 0]
            self._wish = ended[0] if ended else "asked" if self._is_asked() else ""
        self._stops = self._agreement.decide(
            self._wish, self._num_steps, min(left.values(), default=None), at_epoch_end=at_epoch_end
        )
        if self._agreement.has_given_up and left.get(_PASSES, 1) <= 0:
            self._stops = _PASSES
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
            # NaN is written, too: it means diverged.
            report = json.dumps({"kind": kind, "time": time.time(), **values})
            self._reports.write(f"{report}\n")
            self._reports.flush()


NO_BATCH = (
    "a loader with drop_last leaves out a batch that is larger than the data, a generator is used "
    "up after one epoch, and a step that is left by `break` does not count"
)
"""Why `Run.steps` may get no batch."""

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


class _Clock:
    """A clock of steps: by CUDA events if torch uses a GPU in this process, otherwise by the host's
    clock.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Any, Any, int, bool]] = []
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)  # seconds of steps
        self.start_seconds = 0.0  # in which loaders started, since the last call of `taken`

    def now(self) -> Any:
        """Return the time by the host's clock, or an event on the GPU."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, begun: Any, examples: int, *, has_evaluated: bool) -> None:
        """End a step; one in which the program evaluated counts with the usual seconds of steps."""
        end = time.perf_counter() if isinstance(begun, float) else self.now()
        self._steps.append((begun, end, examples, has_evaluated))

    def taken(self, *, waits: bool) -> dict[str, Any]:
        """Return the seconds and the examples of the steps since the last call, and the seconds in
        which loaders started; of a GPU's steps only those that it has finished, unless `waits` is
        True.
        """
        report: dict[str, Any] = {"seconds": [], "examples": []}
        while self._steps and (waits or _is_over(self._steps[0][1])):
            begin, end, examples, has_evaluated = self._steps.pop(0)
            if isinstance(end, float):
                seconds = end - begin
            else:
                end.synchronize()
                seconds = begin.elapsed_time(end) / 1000
            if not has_evaluated:
                self._usual.append(seconds)
            elif self._usual:
                seconds = statistics.median(self._usual)
            report["seconds"].append(seconds)
            report["examples"].append(examples)
        if report["seconds"]:
            report["start_seconds"], self.start_seconds = self.start_seconds, 0.0
        return report


def _is_over(end: Any) -> bool:
    return isinstance(end, float) or bool(end.query())


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
    path = os.environ.get(POINT)
    if path is None:
        raise RuntimeError(
            "bsweep.join() found no point: start the program by `bsweep run program=own "
            "program.command='python train.py'`."
        )
    point = json.loads(Path(path).read_text())
    if find_spec("tensorflow") and "TF_CONFIG" not in os.environ:
        _set_tf_config(point)
    return Run(point, facts)


def _set_tf_config(point: Mapping[str, Any]) -> None:
    """Tell TensorFlow the addresses of all workers, and this one's rank."""
    ends = time.monotonic() + _WAIT_SECONDS
    addresses: list[str] = []
    for path in point["points"]:
        other: dict[str, Any] = {}
        while other.get("launched_at") != point["launched_at"]:  # of an earlier attempt
            with suppress(OSError, ValueError):
                other = json.loads(Path(path).read_text())
            if time.monotonic() > ends:
                warnings.warn(f"bsweep: {path} is not there, so TF_CONFIG is not set", stacklevel=3)
                return
            time.sleep(0.01)
        addresses.append(other["address"])
    task = {"type": "worker", "index": point["rank"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
