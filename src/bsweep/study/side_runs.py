"""Functions that start workers for other purposes than the runs of a study: probes, profiles and
timings of a few steps.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bsweep import data, launch
from bsweep.allocation import probes
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.core.following import GrowingFile
from bsweep.launch import LaunchRequest, Outcome, hosts_check
from bsweep.runlog import profile_file
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import numbered, read_json, read_records
from bsweep.study.history import planned
from bsweep.study.run_point import write_inputs

TRIED_STEPS = 10


def probe(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Measure what an allocation needs to know of a point's workers, such as their seconds per step
    and the largest local batch that fits, and write it to the probe file.

    No file is written if the workers failed.

    Args:
        config: The point, whose allocation need not be resolved.
        say: Called with each line of the workers' output.
    """
    paths = RunPaths(config.study_dir / ".probe")
    outcome = _launch_beside(config, paths, say, "bsweep.measure.probe_worker:measure")
    if outcome.status == "completed":
        measured = read_json(paths.folder / "probe.json")
        assert measured, "the probe completed without an answer"
        probes.write(config, measured)
    return outcome


def profile(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Measure where the time of a step goes for a point's workers, and write the results to the
    study's folder `profile/RUN_ID`.

    Args:
        config: The point.
        say: Called with each line of the workers' output.
    """
    shutil.rmtree(profile_file.folder_of(config), ignore_errors=True)
    return _launch_beside(
        config,
        RunPaths(config.study_dir / ".profile"),
        say,
        "bsweep.measure.profile_worker:measure",
    )


@dataclass(frozen=True)
class Tried:
    """The measured times of a point that trained for a few steps, and its training examples.

    `other_seconds` is the time that the whole point would take besides its steps. `peak_bytes` is
    the peak memory of the worker that took most; None if no worker recorded it. `num_parameters`
    are those of the model, None if only the user's own program knows it, and `sent_bytes` what a
    worker sent in a step, 0 if that was not recorded.
    """

    step_seconds: float
    other_seconds: float
    num_train: int
    peak_bytes: int | None = None
    num_parameters: int | None = None
    sent_bytes: float = 0.0


def try_out(
    config: RunConfig, say: Callable[[str], None], num_steps: float = TRIED_STEPS
) -> Tried | Outcome:
    """Train a point for at most ten steps in a temporary folder, and return how long a step takes.

    Args:
        config: The point.
        say: Called with each line of the workers' output.
        num_steps: The steps to train. A broken number makes the last step smaller. The user's own
            program always trains ten.

    Returns:
        The times; if the steps could not be timed, the outcome that says why.
    """
    if unready := hosts_check.problems([config]):
        return Outcome("failed", "; ".join(unready))
    # Other hosts must see the folder, too: it lies beside the results.
    shared = next(path for path in config.study_dir.resolve().parents if path.exists())
    with tempfile.TemporaryDirectory(
        prefix=".bsweep.", dir=shared if config.launch.named_hosts else None
    ) as folder:
        short = _shortened(replace(config, results_dir=folder), num_steps)
        paths, began = RunPaths(short.folder), time.monotonic()
        outcome = _launch_beside(short, paths, say, config.program.worker)
        seconds = time.monotonic() - began
        records, _ = read_records(paths.metrics)
    epoch = next(iter(numbered(records, "epoch")), None)
    if outcome.status != "completed" or epoch is None:
        return outcome
    is_own, train_seconds = config.program.is_own, float(epoch["train_seconds"])
    start = next(record for record in records if record["type"] == "start")
    start_seconds = float(start["start_seconds"])
    evaluation_seconds = max(0.0, seconds - start_seconds - train_seconds)
    examples = epoch["images_per_second"] * train_seconds
    steps = epoch["num_steps"] if is_own else examples / config.examples_per_step
    step_seconds = train_seconds / steps
    num_train = start["num_train"] if is_own else data.prepare(config.data).num_train
    whole = replace(planned(config), num_examples=config.epochs * num_train)
    num_epochs = math.ceil(config.epochs * whole.trained_share(step_seconds))
    peaks = [memory["peak_bytes"] or 0 for memory in epoch.get("worker_memory") or ()]
    return Tried(
        step_seconds,
        start_seconds + num_epochs * evaluation_seconds,
        num_train,
        max(peaks, default=0) or None,
        start["num_parameters"],
        (epoch.get("sent_bytes") or 0) / steps,
    )


def _shortened(config: RunConfig, num_steps: float) -> RunConfig:
    """Return a point of a few steps: one short epoch or, of the user's own program, as many steps
    until it is asked to stop.
    """
    if isinstance(config.program, OwnProgramConfig):
        return replace(config, program=replace(config.program, most_steps=TRIED_STEPS))
    whole = data.prepare(config.data).num_train
    subset = min(whole, int(num_steps * config.examples_per_step))
    return replace(config, epochs=1, data=replace(config.data, subset=subset))


def _launch_beside(
    config: RunConfig, paths: RunPaths, say: Callable[[str], None], entry: str
) -> Outcome:
    """Launch a point's workers in a separate folder, where they run the given module, and return
    how they ended.
    """
    shutil.rmtree(paths.folder, ignore_errors=True)
    paths.folder.mkdir(parents=True)
    write_inputs(config, paths, {})
    outputs = [GrowingFile(paths.rank_logs(rank) / "stdout") for rank in range(config.num_workers)]

    def show() -> None:
        for rank, output in enumerate(outputs):
            text = b"\n".join(output.new_lines() or ()).decode(errors="replace")
            for line in text.splitlines():
                say(f"worker {rank}: {line}")

    outcome = launch.launch(LaunchRequest(config, paths, show, entry))
    show()
    return outcome
