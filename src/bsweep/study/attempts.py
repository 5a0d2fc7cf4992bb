"""A study: a folder of runs that belong together. What is done, what is left, and how one point
becomes a run.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bsweep import allocation, data, launch, models, runlog
from bsweep.config import ConfigError, RunConfig, own, refuse_vain_evaluations, save
from bsweep.core.ranks import inside_horovodrun, num_cores
from bsweep.launch import Outcome, team
from bsweep.launch import check as check_launch
from bsweep.launch.stop import Stopping, pause, seconds_before_retry
from bsweep.launch.team import Entry
from bsweep.runlog import Event, RunLog, RunPaths, calibration_file, is_stop_requested, profile_file
from bsweep.strategies import sharding
from bsweep.study import attendance, branching, states
from bsweep.study.progress import Output, Progress
from bsweep.trackers import check as check_trackers

_TRIED_STEPS = 10

Launch = Callable[[RunConfig, RunPaths, Callable[[], None]], Outcome]


def check(config: RunConfig) -> list[str]:
    """What is doubtful about a point here and now; its record will carry it.

    Raises:
        ConfigError: the point cannot run: the data, the machine or Horovod do not allow it.
    """
    try:
        warnings = check_launch(config)
        if config.resume_from and not (runlog.checkpoints(paths_of(config)) or result_of(config)):
            branching.check(config)  # until the run has what it goes on from
        check_trackers(config.trackers)
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
            f"global batch {config.examples_per_step} ({batches} x "
            f"accumulation_steps={config.accumulation_steps}) is "
            f"larger than the training set of {info.num_train} examples: choose a smaller batch."
        )
    if config.strategy.takes_local_steps:
        each = (
            batch * steps
            for batch, steps in zip(config.worker_batches, config.local_steps, strict=True)
        )
        if (per_round := sum(each)) > info.num_train:
            warnings.append(
                f"a round of {per_round} examples is longer than an epoch of {info.num_train}, at "
                f"whose end workers "
                f"synchronise in any case: local steps {list(config.local_steps)} are never reached"
            )
    if problems := list(config.batching.problems_with_data(config, info.num_train)):
        raise ConfigError(*problems)
    refuse_vain_evaluations(config, info.num_train)
    return [*warnings, *allocation.doubts(config)]


def _try_own(config: RunConfig, info: data.DataInfo) -> None:
    """ValueError if an optimizer, batching policy or strategy of the user's own is none, or does
    not fit the run.
    """
    parts = own.cards(config)
    if "optimizer" in parts:
        from bsweep.numerics import optim  # imports torch, as the user's code does
        from bsweep.numerics.vector import Vector

        optim.build(
            config.optimizer, Vector(models.outlined(config.model, info.num_classes, info.shape))
        )
    if "batching" in parts:
        from bsweep import batching

        batching.build(config)
    if "strategy" in parts:
        from bsweep.strategies import own as own_strategy

        own_strategy.check(config)


def ask_for_calibration(points: Sequence[RunConfig], folder: Path | None = None) -> None:
    """Have the first point that runs in each study find out what is fastest for all; see
    `calibration.request`.
    """
    for study_dir in {config.study_dir for config in points}:
        own_points = [config for config in points if config.study_dir == study_dir]
        steps = [
            c.epochs * data.prepare(c.data).num_train / c.examples_per_step for c in own_points
        ]
        calibration_file.request(
            own_points, sum(steps), folder, runlog.hardware_words(_surroundings())
        )


def result_of(config: RunConfig) -> str | None:
    """How a point ended, where it is not to be run again by itself: it completed, or would end so
    again.
    """
    status = runlog.ended(paths_of(config))
    return status if status in states.RESULTS else None


def is_running(config: RunConfig) -> bool:
    """Whether a process is running the point."""
    return runlog.is_claimed(attendance.of_run(paths_of(config).folder))


def ended_elsewhere(config: RunConfig, progress: Progress) -> str | None:
    """How a point ended that another process ran; None if it broke off."""
    status = states.of_run(paths_of(config).folder).status
    if status not in (*states.RESULTS, *states.FAILURES):
        return None
    progress.skip(config, f"{status}, as another process has run it")
    return status


def refuse_newer(study_dir: Path) -> None:
    """ValueError if a newer bsweep wrote to the study: this one would not know its runs, and repeat
    them.
    """
    for summary in study_dir.glob("*/summary.json"):
        with suppress(runlog.Damaged):
            runlog.read_summary(RunPaths(summary.parent))


def paths_of(config: RunConfig) -> RunPaths:
    return RunPaths(config.study_dir / config.run_id)


_AGAIN = "which is a result: `bsweep retry` repeats it"
_SKIPPED = {
    "completed": "completed already",
    "diverged": f"it diverged, {_AGAIN}",
    "out_of_memory": f"it was out of memory, {_AGAIN}",
}


def run_point(config: RunConfig, progress: Progress, start: Launch) -> str:
    """Run one point to its end, unless there is a result of it; its status.

    A point that fails is a result and raises nothing. An earlier attempt that did not complete is
    taken up where it left a checkpoint, and set aside in the study's `.previous` folder otherwise.

    Raises:
        KeyboardInterrupt: the run was to stop, and its sweep with it; the run may be taken up
            again.
    """
    paths = paths_of(config)
    warnings = check(config)
    if result := result_of(config):
        progress.skip(config, _SKIPPED[result])
        return result
    with runlog.claimed(attendance.of_run(paths.folder)) as is_ours:
        if not is_ours:
            progress.put_off(config, "another process is running it")
            return "running"
        if result := result_of(config):  # by another process, since
            progress.skip(config, _SKIPPED[result])
            return result
        outcome = _attempt(config, paths, progress, start, warnings)
        for number in range(1, config.launch.num_retries + 1):
            if not outcome.may_pass:
                break
            retry, seconds = (
                f"retry {number} of {config.launch.num_retries}",
                seconds_before_retry(number),
            )
            progress.note(f"{retry} in {seconds} s")
            pause(seconds)
            team.expect_again(config)
            progress.once_more()
            event = Event(
                event="retried",
                message=f"{retry} after {outcome.status}: {outcome.message.splitlines()[0]}",
            )
            outcome = _attempt(config, paths, progress, start, warnings, event)
    return outcome.status


def _attempt(
    config: RunConfig,
    paths: RunPaths,
    progress: Progress,
    start: Launch,
    warnings: list[str],
    *events: Event,
) -> Outcome:
    """Train what is left of a point, to its summary; see `run_point` for what is raised."""
    seconds_before, said = _prepare(config, paths)
    launched_at, began = (
        time.time(),
        time.monotonic(),
    )  # the latter goes on where somebody sets the clock
    save(config, paths.config)
    own.keep(config, paths.own)
    was_beside_others = runlog.read_meta(paths).get(
        "beside_others", False
    )  # in the part that it goes on from
    meta = {"launched_at": launched_at, "wall_seconds_before": seconds_before, **provenance(config)}
    runlog.write_json(
        paths.meta, {**meta, **({"beside_others": True} if was_beside_others else {})}
    )
    paths.metrics.touch()  # launchers watch it
    paths.stop.write_bytes(b"")
    with RunLog(paths.metrics) as log:
        for warning in warnings:
            if warning not in said:
                log.write(Event(event="warning", message=warning))
        for event in events:
            log.write(event)
    progress.begin(config, paths, warnings)
    outcome = Outcome("interrupted", "interrupted while it ran")
    try:
        with Stopping(config, paths, progress.note) as stopping:
            outcome = start(config, paths, stopping.polled_with(progress.poll))
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome("failed", f"{type(error).__name__}: {error}")
    finally:
        wall_seconds = seconds_before + time.monotonic() - began
        runlog.write_summary(paths, config, outcome.status, outcome.message, wall_seconds)
        progress.end(outcome)
        if outcome.status in ("completed", "diverged"):
            shutil.rmtree(
                paths.checkpoints, ignore_errors=True
            )  # of a run that is over nothing is left to do
        was_to_stop = is_stop_requested(paths)
        paths.stop.unlink(missing_ok=True)
    if was_to_stop:
        raise KeyboardInterrupt
    return outcome


def probe(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Measure a point's workers; what they found is where an allocation looks for it, unless they
    failed.

    Args:
        config: The point, whose allocation need not be resolved.
        say: Called with each line of the workers' output.
    """
    paths = RunPaths(config.study_dir / ".probe")
    outcome = _launch_beside(config, paths, say, "bsweep.measure.probe_worker")
    if outcome.status == "completed":
        found = runlog.read_json(paths.folder / "probe.json")
        assert found, "the probe completed without an answer"
        path = allocation.probe_path(config)
        path.parent.mkdir(parents=True, exist_ok=True)
        runlog.write_json(path, found)
    return outcome


def profile(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Profile a point's workers, see `probe`; what they found is where `anatomy.read` looks for
    it.
    """
    shutil.rmtree(profile_file.folder_of(config), ignore_errors=True)
    return _launch_beside(
        config, RunPaths(config.study_dir / ".profile"), say, "bsweep.measure.profile_worker"
    )


def try_out(config: RunConfig, say: Callable[[str], None]) -> tuple[float, float] | str:
    """Train a point for a few steps, in a folder of its own that does not stay.

    Returns:
        Seconds of a step, and seconds that the point would take beside its steps; why there are
        none, otherwise.
    """
    num_train = min(data.prepare(config.data).num_train, _TRIED_STEPS * config.examples_per_step)
    shared = next(
        one for one in config.study_dir.resolve().parents if one.exists()
    )  # which other hosts see, too
    with tempfile.TemporaryDirectory(
        prefix=".bsweep.", dir=shared if config.launch.named_hosts else None
    ) as folder:
        short = replace(
            config, results_dir=folder, epochs=1, data=replace(config.data, subset=num_train)
        )
        paths, began = paths_of(short), time.time()
        outcome = _launch_beside(short, paths, say, "bsweep.train.worker")
        seconds = time.time() - began
        records, _ = runlog.read_records(paths.metrics)
    epochs = runlog.numbered(records, "epoch")
    if outcome.status != "completed" or not epochs:
        return f"{outcome.status}: {outcome.message}"
    train_seconds = float(epochs[0]["train_seconds"])
    start_seconds = (
        float(next(record["time"] for record in records if record["type"] == "start")) - began
    )
    evaluation_seconds = max(0.0, seconds - start_seconds - train_seconds)
    steps = num_train / config.examples_per_step
    return train_seconds / steps, start_seconds + config.epochs * evaluation_seconds


def _launch_beside(
    config: RunConfig, paths: RunPaths, say: Callable[[str], None], entry: Entry
) -> Outcome:
    """Have a point's workers do something else than train, in a folder of their own."""
    shutil.rmtree(paths.folder, ignore_errors=True)
    paths.folder.mkdir(parents=True)
    save(config, paths.config)
    own.keep(config, paths.own)
    paths.metrics.touch()
    ask_for_calibration([config], paths.folder)
    output = Output(paths, config.num_workers)

    def show() -> None:
        for line in output.new_lines():
            say(line)

    outcome = launch.launch(config, paths, show, entry)
    show()
    return outcome


def set_aside(config: RunConfig) -> None:
    """Move a point's run, unless a process is at it, to the study's `.previous`: the point is new
    from then on.
    """
    folder = paths_of(config).folder
    with runlog.claimed(attendance.of_run(folder)) as is_ours:
        if is_ours:
            _set_aside(folder, folder)


def _set_aside(folder: Path, part: Path) -> None:
    """Move what an earlier attempt left, all of its `folder` or a part, to the study's
    `.previous`.
    """
    if not part.exists():
        return
    RunPaths(folder).environment.unlink(missing_ok=True)  # left where a launcher was killed
    previous = folder.parent / ".previous"
    previous.mkdir(exist_ok=True)
    numbered = (previous / f"{folder.name}.{number}" for number in itertools.count(1))
    shutil.move(part, next(path for path in numbered if not path.exists()))


def _prepare(config: RunConfig, paths: RunPaths) -> tuple[float, Sequence[str]]:
    """Make a run's folder ready, to begin or to go on: the wall seconds that it took so far, and
    its warnings.
    """
    for latest in runlog.checkpoints(paths)[:1]:
        with suppress(runlog.Damaged):  # else the run is repeated
            return _take_up(paths, latest.facts() or {})
    _set_aside(paths.folder, paths.folder)
    paths.folder.mkdir(parents=True)
    if config.resume_from:
        branching.begin(config, paths)
    return 0.0, ()


def _take_up(paths: RunPaths, facts: Mapping[str, Any]) -> tuple[float, Sequence[str]]:
    """Have a run's records end where its workers go on; see `_prepare`."""
    _set_aside(paths.folder, paths.logs)
    meta, summary = runlog.read_meta(paths), runlog.read_summary(paths)
    if summary:
        wall_seconds = summary["wall_seconds"] or 0.0
    else:  # it was killed with its launcher
        launched_at = meta.get("launched_at") or facts["time"]
        wall_seconds = (meta.get("wall_seconds_before") or 0.0) + max(
            0.0, facts["time"] - launched_at
        )
    paths.summary.unlink(missing_ok=True)
    runlog.cut_records(paths, facts["metrics_bytes"])
    where = f"step {facts['num_steps']}, in epoch {facts['epoch']}"
    said = runlog.warnings(runlog.read_records(paths.metrics)[0])
    with RunLog(paths.metrics) as log:
        log.write(Event(event="resumed", message=f"taken up again after {where}"))
    return float(wall_seconds), said


def provenance(config: RunConfig) -> dict[str, Any]:
    """Which code ran on what, started how: enough to tell two runs apart that should have
    agreed.
    """
    return {"hosts": config.launch.named_hosts, **_surroundings()}


@functools.cache  # asking git and the driver takes longer than a short point's first steps
def _surroundings() -> dict[str, Any]:
    return {
        "command": _command(),
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _output(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
        ),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        **_commit(),
    }


def _command() -> str:
    """What was typed, to be typed again."""
    prefix = f"horovodrun -np {os.environ['HOROVOD_SIZE']} " if inside_horovodrun() else ""
    return f"{prefix}{sys.argv[0]} {shlex.join(sys.argv[1:])}"


_PACKAGES = (
    "bsweep",
    "torch",
    "torchvision",
    "horovod",
    "hydra-core",
    "timm",
    "tokenizers",
    "numpy",
)


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
