"""The command `bsweep replay`, which shows how a batching policy would have changed the batch size
in recorded runs.

The policy itself decides. The replay walks through the examples of a run as training does, in
rounds of the policy's own batches. After each round it shows the policy what the run recorded at
that example: the gradient noise and the loss. The seconds of a step come from Pollux's formula,
fitted to the steps of comparable runs of the study. What the run would have learned from other
batches is not known: the replay assumes that loss and noise would have been the same at the same
examples.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import yaml

from bsweep import batching
from bsweep.batching import GradientNoise, Policy, Seen
from bsweep.batching.goodput import StepTime
from bsweep.config import own
from bsweep.config.parsing import conf_dir, parse
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError, did_you_mean
from bsweep.core import terminal
from bsweep.data.plan import Share, global_batch, round_size
from bsweep.numerics import optim
from bsweep.numerics.noise_scale import Average
from bsweep.runlog.files import RunPaths, no_such_study
from bsweep.runlog.reading import numbered, read_run
from bsweep.runlog.records import BatchChanged
from bsweep.train import noise_meter

logger = terminal.logger(__name__)

Timing = tuple[Sequence[Share], float]


@dataclass(frozen=True)
class Recorded:
    """The recorded losses, step times and gradient noise of one run, in the order of training. A
    replayed batching policy decides by these records.
    """

    run_id: str
    config: RunConfig
    num_train: int
    steps: list[dict[str, Any]]
    noises: list[tuple[float, GradientNoise]]  # (epochs done, running estimate from then on)

    @property
    def epochs_done(self) -> float:
        return float(self.steps[-1]["epochs_done"])

    def noise_at(self, epochs_done: float) -> GradientNoise | None:
        known = bisect.bisect_right(self.noises, epochs_done, key=itemgetter(0))
        return self.noises[known - 1][1] if known else None

    def loss_at(self, epochs_done: float) -> float:
        place = bisect.bisect_left(self.steps, epochs_done, key=itemgetter("epochs_done"))
        loss = self.steps[min(place, len(self.steps) - 1)]["train_loss"]
        return float("nan") if loss is None else float(loss)

    def timings(self) -> list[Timing]:
        """Return the workers' shares and the median seconds of a step, for each global batch of
        which the run has recorded the speed.
        """
        seconds: dict[int, list[float]] = defaultdict(list)
        for step in self.steps:
            if step["images_per_second"]:
                seconds[step["global_batch"]].append(
                    step["global_batch"] / step["images_per_second"]
                )
        # Shares that split the batch into the same passes as the run.
        shares = batching.build(self.config).of_global_batch
        return [(shares(batch), statistics.median(found)) for batch, found in seconds.items()]


@dataclass(frozen=True)
class Change:
    """A change of the global batch that a replayed policy would have made, and the step before
    which it would have made it.
    """

    step: int
    epochs_done: float
    before: int
    global_batch: int
    learning_rate: float  # in that step
    inputs: dict[str, float | None]
    message: str


@dataclass(frozen=True)
class Replayed:
    run_id: str
    policy: str
    num_steps: int  # with the policy
    recorded_steps: int  # in the run, for the same examples
    first_batch: int
    last_batch: int
    changes: list[Change]

    def __str__(self) -> str:
        title = (
            f"{self.run_id}: {self.policy} would have started with a global batch of "
            f"{self.first_batch} and taken "
        )
        title += f"{self.num_steps} steps instead of {self.recorded_steps}"
        if not self.changes:
            return f"{title}, without a change"
        rows = [("step", "epochs", "batch", "learning rate", "why")]
        for one in self.changes:
            rate = f"{one.learning_rate:.4g}"
            why = one.message.partition(" epochs ")[2].partition(":")[0]
            rows.append((str(one.step), f"{one.epochs_done:.3f}", str(one.global_batch), rate, why))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = (
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            for row in rows
        )
        return "\n".join(
            [title, *(f"  {line}  {row[4]}" for line, row in zip(lines, rows, strict=True))]
        )


def main(arguments: Sequence[str]) -> int:
    """Print how a batching policy would have changed the batch size in recorded runs, and return
    the exit code.

    Args:
        arguments: What follows `bsweep replay` on the command line.

    Raises:
        ValueError: If the runs cannot be replayed, see `replay`.
        OSError: If a file cannot be read.
    """
    say = "Show what a batching policy would have done in the runs of a study, from their records."
    parser = argparse.ArgumentParser(prog="bsweep replay", description=say)
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    parser.add_argument(
        "--batching", required=True, help="the policy: one of conf/batching, such as goodput"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    more = "keys of the policy or the optimizer, such as batching.every_steps=100"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=more)
    options = parser.parse_intermixed_args(arguments)
    found = replay(options.study, options.batching, options.overrides)
    if options.json:
        print(
            json.dumps(
                {"study": str(options.study), "runs": [asdict(one) for one in found]}, indent=1
            )
        )
    else:
        print("\n".join(map(str, found)))
    return 0


def replay(study: Path, name: str, overrides: Sequence[str]) -> list[Replayed]:
    """Return the changes of the global batch that a batching policy would have made in the runs of
    a study.

    Runs without a recorded step are left out. So are, with a warning in the log, runs that did not
    record the gradient noise that the policy needs.

    Args:
        study: The study's folder.
        name: The policy's name.
        overrides: Keys of the policy or the optimizer with their values, as KEY=VALUE.

    Raises:
        ValueError: If the policy or the study does not exist, an override is wrong, the policy
            contradicts a run, a run cannot be read, or no run recorded what the policy needs.
    """
    if not study.is_dir():
        raise ValueError(no_such_study(study))
    runs = [_recorded(path.parent) for path in sorted(study.glob("*/metrics.jsonl"))]
    known = [run for run in runs if run.steps]
    if not known:
        raise ValueError(
            f"{study}: none of its runs has recorded a step. Give the folder of a trained study."
        )
    found, silent = [], []
    for run in known:
        config = with_policy(run.config, name, overrides)
        if problem := _unrecorded(run, config):
            silent.append(problem)
        else:
            found.append(_replayed(run, config, _alike(run, known)))
    if not found:
        raise ValueError(silent[0])
    for problem in silent:
        logger.warning(f"bsweep: left out: {problem}")
    return found


def with_policy(config: RunConfig, name: str, overrides: Sequence[str]) -> RunConfig:
    """Return a run's configuration with the named batching policy instead of its own, and with
    the values of the overrides.

    Args:
        config: The run's configuration.
        name: The policy's name.
        overrides: Keys of the policy or the optimizer with their values, as KEY=VALUE.

    Raises:
        ConfigError: If the policy does not exist, an override is wrong, or the policy contradicts
            the run.
    """
    folder = conf_dir() / "batching"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise ConfigError(
            f"--batching {name}: unknown.{did_you_mean(name, names)} Known: {', '.join(names)}."
        )
    tree: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    tree["batching"] = yaml.safe_load((folder / f"{name}.yaml").read_text())
    for override in overrides:
        key, _, value = override.partition("=")
        group, _, inner = key.partition(".")
        if group not in ("batching", "optimizer") or not inner:
            raise ConfigError(
                f"{override}: only keys of the policy or the optimizer can be given, such as "
                "batching.every_steps=100."
            )
        into = tree[group]
        *path, last = inner.split(".")
        for part in path:
            into[part] = into = into.get(part) or {}
        into[last] = yaml.safe_load(value)
    found = own.resolve(parse(tree))
    own.check(found, ["batching"])  # the rest of a study's code is not needed
    return found


def _recorded(folder: Path) -> Recorded:
    """Read the records of a run that a batching policy may use: losses, times of steps and gradient
    noise.

    The list of steps is empty if the run has recorded no step.

    Raises:
        Damaged, Newer, ConfigError: If the run cannot be read.
    """
    run, config = read_run(folder), read_config(RunPaths(folder).config)
    start = next((record for record in run.records if record["type"] == "start"), {"num_train": 0})
    noises, average = [], Average()
    for record in numbered(run.records, "noise_scale", by="num_steps"):
        measured = noise_meter.measured_steps(record["num_gradients"], config.data_parallel_size)
        average = average.joined(record["gradient_square"], record["variance"], measured)
        if (estimate := average.estimate()) is not None:
            noises.append((record["epochs_done"], estimate))
    steps = numbered(run.records, "step")
    return Recorded(run.run_id, config, start["num_train"], steps, noises)


def _alike(run: Recorded, runs: Sequence[Recorded]) -> list[Timing]:
    """Return the step timings of those of the given runs whose steps are comparable with the steps
    of `run`.

    They have the same data, model, strategy, codec, launcher, number of workers, precision, memory
    format, compilation and kind of optimizer.
    """

    def kind(config: RunConfig) -> tuple[object, ...]:
        what = (config.data, config.model, config.strategy, config.compression, config.launch)
        return (
            *what,
            config.num_workers,
            config.precision,
            config.channels_last,
            config.compile,
            config.optimizer.name,
        )

    return [
        timing
        for other in runs
        if kind(other.config) == kind(run.config)
        for timing in other.timings()
    ]


def _unrecorded(run: Recorded, config: RunConfig) -> str:
    """Return a message if a run did not record the gradient noise that the replayed policy needs;
    otherwise return an empty text.

    Some policies and learning-rate rules need the gradient noise. The message says how to record
    it.
    """
    if not config.measures_noise or run.noises:
        return ""
    key_and_value = f"batching={config.batching.name}"
    if config.optimizer.measures_noise:
        key_and_value = f"optimizer.lr_rule={config.optimizer.lr_rule}"
    return (
        f"{run.run_id}: {key_and_value} needs the gradient noise, which this run has not recorded: "
        "train this point with measure.noise_scale=true."
    )


def _replayed(run: Recorded, config: RunConfig, timings: Sequence[Timing]) -> Replayed:
    policy = batching.build(config)
    walk = _Walk(run, config, policy, StepTime(timings) if timings else None)
    changes = list(walk.changes())
    batches = [config.examples_per_step, *(change.global_batch for change in changes)]
    recorded_steps = int(run.steps[-1]["step"])
    return Replayed(
        run.run_id,
        config.batching.name,
        walk.num_steps,
        recorded_steps,
        batches[0],
        batches[-1],
        changes,
    )


class _Walk:
    """A simulated training loop, which trains nothing: it gives a batching policy the recorded
    losses and gradient noise of a run.
    """

    def __init__(
        self, run: Recorded, config: RunConfig, policy: Policy, time: StepTime | None
    ) -> None:
        self._run, self._config, self._policy, self._time = run, config, policy, time
        self._rate = optim.schedule(config)
        self._seconds: list[float] = []  # per step of the current epoch
        self.num_steps = 0

    def changes(self) -> Iterator[Change]:
        epochs_done, before, told = 0.0, self._config.examples_per_step, None
        while epochs_done < self._run.epochs_done:
            shares = self._policy.shares(epochs_done)
            size, batch = self._next(epochs_done, shares), global_batch(shares)
            after = _after(epochs_done, size, self._run.num_train)
            rate = self._rate_at((epochs_done + after) / 2, batch)
            if batch != before:
                inputs: dict[str, float | None] = dict(told.inputs) if told else {}
                message = told.message if told else ""
                yield Change(self.num_steps + 1, epochs_done, before, batch, rate, inputs, message)
            before, epochs_done = batch, after
            self.num_steps += max(share.num_steps for share in shares)
            events = self._policy.observe(self._seen(epochs_done, shares, size, rate))
            told = next((event for event in events if isinstance(event, BatchChanged)), None)
            if epochs_done == int(epochs_done):
                self._seconds = []

    def _next(self, epochs_done: float, shares: Sequence[Share]) -> int:
        """Return how many examples the next round takes, at most as many as are left in
        the epoch.
        """
        left = round((int(epochs_done) + 1 - epochs_done) * self._run.num_train)
        return min(round_size(shares), left)

    def _rate_at(self, epochs_done: float, batch: int) -> float:
        # A rule uses the global batch, or a part of it if each worker steps alone.
        part = self._config.rate_batch(0) / self._config.examples_per_step
        return self._rate(epochs_done, batch * part) * self._policy.rate_factor(epochs_done)

    def _seen(self, epochs_done: float, shares: Sequence[Share], size: int, rate: float) -> Seen:
        self._seconds.append(self._time.seconds(shares) if self._time else float("nan"))
        loss = self._run.loss_at(epochs_done)
        return Seen(
            epochs_done=epochs_done,
            rounds=(),
            sums=torch.tensor([loss * size, 0.0, size], dtype=torch.float64),
            gather=lambda values: values.unsqueeze(0),
            noise=self._run.noise_at(epochs_done),
            num_train=self._run.num_train,
            learning_rate=rate,
            step_seconds=lambda: self._seconds,
        )


def _after(epochs_done: float, size: int, num_train: int) -> float:
    """Return the epochs done, such as 1.25, after `size` more examples have been trained.

    The training loop counts in the same way. The number is whole at the end of an epoch.
    """
    position = round((epochs_done - int(epochs_done)) * num_train) + size
    return int(epochs_done) + position / num_train
