"""A study: a folder of runs that belong together. What is done, what is left, and how one point becomes a run."""

from __future__ import annotations

import fcntl
import functools
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bsweep import allocation, anatomy, calibration, data, launch, models, runlog, sharding
from bsweep.config import ConfigError, RunConfig, own, save
from bsweep.launch import Outcome
from bsweep.launch import check as check_launch
from bsweep.launch.team import Entry
from bsweep.place import inside_horovodrun, num_cores
from bsweep.progress import Output, Progress
from bsweep.runlog import Event, RunLog, RunPaths

Launch = Callable[[RunConfig, RunPaths, Callable[[], None]], Outcome]


def check(config: RunConfig) -> list[str]:
    """What is doubtful about a point here and now; its record will carry it.

    Raises:
        ConfigError: the point cannot run: the data, the machine or Horovod do not allow it.
    """
    try:
        warnings = check_launch(config)
        _refuse_newer(config.study_dir)
        info = data.prepare(config.data)
        models.check(config, info.num_classes, info.shape)
        _try_own(config, info)
        sharding.check(config, info.num_classes, info.shape)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config.examples_per_step > info.num_train:
        given = config.allocation.local_batches
        batches = (
            f"allocation.local_batches={list(given)}"
            if given
            else f"local_batch={config.examples_per_pass} x num_workers={config.num_workers}"
        )
        raise ConfigError(
            f"global batch {config.examples_per_step} ({batches} x accumulation_steps={config.accumulation_steps}) is "
            f"larger than the training set of {info.num_train} examples: choose a smaller batch."
        )
    if config.strategy.takes_local_steps:
        each = (batch * steps for batch, steps in zip(config.worker_batches, config.local_steps, strict=True))
        if (per_round := sum(each)) > info.num_train:
            warnings.append(
                f"a round of {per_round} examples is longer than an epoch of {info.num_train}, at whose end workers "
                f"synchronise in any case: local steps {list(config.local_steps)} are never reached"
            )
    return [*warnings, *allocation.doubts(config)]


def _try_own(config: RunConfig, info: data.DataInfo) -> None:
    """ValueError if an optimizer, batching policy or strategy of the user's own is none, or does not fit the run."""
    parts = own.cards(config)
    if "optimizer" in parts:
        from bsweep import optim  # imports torch, as the user's code does
        from bsweep.vector import Vector

        optim.build(config.optimizer, Vector(models.outlined(config.model, info.num_classes, info.shape)))
    if "batching" in parts:
        from bsweep import batching

        batching.build(config)
    if "strategy" in parts:
        from bsweep.strategies import own as own_strategy

        own_strategy.check(config)


def ask_for_calibration(points: Sequence[RunConfig]) -> None:
    """Have the first point that runs in each study find out what is fastest for all; see `bsweep.calibration`."""
    for study_dir in {config.study_dir for config in points}:
        own_points = [config for config in points if config.study_dir == study_dir]
        steps = [c.epochs * data.prepare(c.data).num_train / c.examples_per_step for c in own_points]
        calibration.request(own_points, sum(steps))


def is_completed(config: RunConfig) -> bool:
    summary = runlog.read_summary(paths_of(config))
    return summary is not None and summary["status"] == "completed"


@functools.cache
def _refuse_newer(study_dir: Path) -> None:
    """ValueError if a newer bsweep wrote to the study: this one would not know its runs, and repeat them."""
    for summary in study_dir.glob("*/summary.json"):
        runlog.read_summary(RunPaths(summary.parent))


def paths_of(config: RunConfig) -> RunPaths:
    return RunPaths(config.study_dir / config.run_id)


def run_point(config: RunConfig, progress: Progress, start: Launch) -> str:
    """Run one point to its end, unless it is completed already; its status.

    A point that fails is a result and raises nothing. An earlier attempt that did not complete is taken up
    where it left a checkpoint, and set aside in the study's `.previous` folder otherwise.
    """
    paths = paths_of(config)
    warnings = check(config)
    if is_completed(config):
        progress.skip(config, "completed already")
        return "completed"
    with _claimed(paths) as is_ours:
        if not is_ours:
            progress.skip(config, "another process is running it")
            return "running"
        if is_completed(config):  # by another process, since
            progress.skip(config, "completed already")
            return "completed"
        seconds_before = 0.0
        if paths.checkpoint.exists():
            seconds_before = _take_up(paths)
        else:
            _set_aside(paths.folder, paths.folder)
            paths.folder.mkdir(parents=True)
        launched_at = time.time()
        save(config, paths.config)
        own.keep(config, paths.own)
        runlog.write_json(paths.meta, {"launched_at": launched_at, **provenance(config)})
        paths.metrics.touch()  # launchers watch it
        with RunLog(paths.metrics) as log:
            for warning in warnings:
                log.write(Event(event="warning", message=warning))
        progress.begin(config, paths, warnings)
        outcome = Outcome("interrupted", "interrupted while it ran")
        try:
            outcome = start(config, paths, progress.poll)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        finally:
            wall_seconds = seconds_before + time.time() - launched_at
            runlog.write_summary(paths, config, outcome.status, outcome.message, wall_seconds)
            progress.end(outcome)
    return outcome.status


def probe(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Measure a point's workers; what they found is where an allocation looks for it, unless they failed.

    Args:
        config: The point, whose allocation need not be resolved.
        say: Called with each line of the workers' output.
    """
    paths = RunPaths(config.study_dir / ".probe")
    outcome = _launch_beside(config, paths, say, "bsweep.probe")
    if outcome.status == "completed":
        found = runlog.read_json(paths.folder / "probe.json")
        assert found, "the probe completed without an answer"
        path = allocation.probe_path(config)
        path.parent.mkdir(parents=True, exist_ok=True)
        runlog.write_json(path, found)
    return outcome


def profile(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Profile a point's workers, see `probe`; what they found is where `anatomy.read` looks for it."""
    shutil.rmtree(anatomy.folder_of(config), ignore_errors=True)
    return _launch_beside(config, RunPaths(config.study_dir / ".profile"), say, "bsweep.profile")


def _launch_beside(config: RunConfig, paths: RunPaths, say: Callable[[str], None], entry: Entry) -> Outcome:
    """Have a point's workers do something else than train, in a folder of their own."""
    shutil.rmtree(paths.folder, ignore_errors=True)
    paths.folder.mkdir(parents=True)
    save(config, paths.config)
    own.keep(config, paths.own)
    paths.metrics.touch()
    output = Output(paths, config.num_workers)

    def show() -> None:
        for line in output.new_lines():
            say(line)

    outcome = launch.launch(config, paths, show, entry)
    show()
    return outcome


@contextmanager
def _claimed(paths: RunPaths) -> Iterator[bool]:
    """Whether this process alone may run the point; the claim ends with the process, however it ends."""
    locks = paths.folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / paths.folder.name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _set_aside(folder: Path, part: Path) -> None:
    """Move what an earlier attempt left, all of its `folder` or a part, to the study's `.previous`."""
    if not part.exists():
        return
    previous = folder.parent / ".previous"
    previous.mkdir(exist_ok=True)
    number = 1 + sum(1 for _ in previous.glob(f"{folder.name}.*"))
    shutil.move(part, previous / f"{folder.name}.{number}")


def _take_up(paths: RunPaths) -> float:
    """Prepare a run that stopped with a checkpoint to go on: its records stay; the wall seconds that it took so far."""
    _set_aside(paths.folder, paths.logs)
    summary = runlog.read_summary(paths)
    paths.summary.unlink(missing_ok=True)
    with RunLog(paths.metrics) as log:
        log.write(Event(event="resumed", message="taken up again where it had stopped"))
    return float(summary["wall_seconds"]) if summary else 0.0


def provenance(config: RunConfig) -> dict[str, Any]:
    """Which code ran on what, started how: enough to tell two runs apart that should have agreed."""
    return {"hosts": config.launch.named_hosts, **_surroundings()}


@functools.cache  # asking git and the driver takes longer than a short point's first steps
def _surroundings() -> dict[str, Any]:
    return {
        "command": _command(),
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        **_commit(),
    }


def _command() -> str:
    """What was typed, to be typed again."""
    prefix = f"horovodrun -np {os.environ['HOROVOD_SIZE']} " if inside_horovodrun() else ""
    return f"{prefix}{sys.argv[0]} {shlex.join(sys.argv[1:])}"


_PACKAGES = ("bsweep", "torch", "torchvision", "horovod", "hydra-core", "timm", "tokenizers", "numpy")


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> dict[str, Any]:
    """The checkout's commit, if this code runs from a checkout."""
    folder = Path(__file__).parent
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    if not commit or not _output("git", "-C", str(folder), "ls-files", Path(__file__).name):
        return {"commit": None, "dirty": None}
    changed = _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit[0], "dirty": bool(changed)}


def _output(*command: str) -> list[str]:
    """The lines that a command prints; none if it is not there or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return result.stdout.splitlines()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
