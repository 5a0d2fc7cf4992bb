"""The run of one point: claim its folder, start or resume the training, retry after a failure, and
record the end.
"""

from __future__ import annotations

import itertools
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.launch import Outcome
from bsweep.launch.stop import Stopping, pause, seconds_before_retry
from bsweep.runlog.checkpoint_files import (
    Checkpoint,
    cut_records,
    is_stop_requested,
    keep_until,
    soundest,
)
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import (
    REMEDY,
    Damaged,
    read_meta,
    read_records,
    read_summary,
    refuse_repeated,
    warnings_in,
)
from bsweep.runlog.records import Event
from bsweep.runlog.shared_clock import file_system_time
from bsweep.runlog.summary import ended, read_ended, write_summary
from bsweep.study import attendance, branching, states
from bsweep.study.progress import Progress
from bsweep.study.provenance import provenance

_POLL_SECONDS = 0.5


class StopRequested(KeyboardInterrupt):
    """An exception that says that somebody asked a run to stop; it also ends the sweep of that run.

    Args:
        by_signal: True if a signal asked for the stop, False if only the run's file `stop` did.
    """

    def __init__(self, *, by_signal: bool) -> None:
        super().__init__()
        self.by_signal = by_signal


Launch = Callable[[RunConfig, RunPaths, Callable[[], None]], Outcome]


def result_of(config: RunConfig) -> str | None:
    """Return the status of a point if it is a result (completed, diverged or out_of_memory), else
    None.

    A repetition would most likely end in the same way, so a sweep does not run the point again.
    """
    status = ended(paths_of(config))
    return status if status in states.RESULTS else None


def is_running(config: RunConfig) -> bool:
    """Return True if some process, on any host, is running the point now."""
    return attendance.is_run_claimed(paths_of(config).folder)


def ended_elsewhere(config: RunConfig, progress: Progress) -> str | None:
    """Return the final status of a point that another process ran, and show it to the user; return
    None if the run is unfinished.
    """
    status = states.state_of_run(paths_of(config).folder).status
    if status not in (*states.RESULTS, *states.FAILURES):
        return None
    progress.skip(config, f"{status}, because another process has run it")
    return status


def paths_of(config: RunConfig) -> RunPaths:
    return RunPaths(config.study_dir / config.run_id)


_AGAIN = "which is a result: `bsweep retry` repeats it"
_SKIPPED = {
    "completed": "completed already",
    "diverged": f"it diverged, {_AGAIN}",
    "out_of_memory": f"it ran out of memory, {_AGAIN}",
}


def _skipped(config: RunConfig, result: str) -> str:
    """Return why a point with a result is not trained again."""
    if result == "completed" and config.keep_weights and not paths_of(config).final.exists():
        return f"{_SKIPPED[result]}, without keep_weights=true: another study=NAME trains it anew"
    return _SKIPPED[result]


def run_point(
    config: RunConfig, warnings: list[str], progress: Progress, launch_point: Launch
) -> str:
    """Run one point to its end and return its status; skip a point that already has a result, such
    as completed.

    A failure of the run is returned as a status. An earlier attempt without a result is resumed if
    it left a checkpoint without damage. Otherwise it is moved to the study's `.previous` folder.

    Args:
        config: The point.
        warnings: Warnings about the point, which its record will contain.
        progress: Shows the run to the user.
        launch_point: Launches the point's workers and waits for them.

    Returns:
        The status; "running" if another process is running the point.

    Raises:
        StopRequested: If somebody asked the run to stop. The run may be resumed later.
        OSError: If the files that this process keeps for the run cannot be written.
    """
    paths = paths_of(config)
    if result := result_of(config):
        progress.skip(config, _skipped(config, result))
        return result
    with attendance.run_claimed(paths.folder) as is_ours:
        if not is_ours:
            progress.put_off(config, "another process is running it")
            return "running"
        if result := result_of(config):  # another process ended it meanwhile
            progress.skip(config, _skipped(config, result))
            return result
        outcome = _attempt(config, paths, progress, launch_point, warnings)
        for number in range(1, config.launch.num_retries + 1):
            if not outcome.may_pass:
                break
            retry, seconds = (
                f"retry {number} of {config.launch.num_retries}",
                seconds_before_retry(number),
            )
            progress.note(f"{retry} in {seconds} s")
            pause(seconds)
            while attendance.has_workers(paths.folder):  # a host may end its workers late
                pause(_POLL_SECONDS)
            progress.once_more()
            event = Event(
                event="retried",
                message=f"{retry} after {outcome.status}: {outcome.message.splitlines()[0]}",
            )
            outcome = _attempt(config, paths, progress, launch_point, warnings, event)
    return outcome.status


def _attempt(
    config: RunConfig,
    paths: RunPaths,
    progress: Progress,
    launch_point: Launch,
    warnings: list[str],
    *events: Event,
) -> Outcome:
    """Start or resume a point's run, wait for its end, write its summary, and return how it ended.

    See `run_point` for what is raised.
    """
    found = _prepare_folder(config, paths)
    warnings = [*warnings, *found.damage]
    began = time.monotonic() - found.wall_seconds  # not disturbed when the clock is set
    _write_beginning(config, paths, found)
    with RunLog(paths.metrics) as log:
        for warning in warnings:
            if warning not in found.warnings:
                log.write(Event(event="warning", message=warning))
        for event in events:
            log.write(event)
    progress.begin(config, paths, warnings)
    return _train_rest(config, paths, progress, launch_point, began)


def _train_rest(
    config: RunConfig, paths: RunPaths, progress: Progress, launch_point: Launch, began: float
) -> Outcome:
    """Launch the workers of a point in its prepared folder, and write the summary when they end.

    Args:
        config: The point.
        paths: The run's folder.
        progress: Shows the run to the user.
        launch_point: Launches the point's workers and waits for them.
        began: The time by the monotonic clock, in seconds, from which the run's wall seconds count.

    Raises:
        StopRequested: If somebody asked the run to stop.
    """
    outcome = Outcome("interrupted", "interrupted while it ran")
    stopping = Stopping(config, paths, progress.note)
    try:
        with stopping:
            outcome = launch_point(config, paths, stopping.polled_with(progress.poll))
    except KeyboardInterrupt as error:
        raise StopRequested(by_signal=stopping.has_signal) from error
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome("failed", f"{type(error).__name__}: {error}")
    finally:
        wall_seconds = time.monotonic() - began
        status, message = write_summary(
            paths, config, outcome.status, outcome.message, wall_seconds
        )
        outcome = replace(outcome, status=status, message=message)
        progress.end(outcome)
        if outcome.status in ("completed", "diverged"):
            # Such a run is never resumed.
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
        was_to_stop = is_stop_requested(paths)
        paths.stop.unlink(missing_ok=True)
    if was_to_stop:
        raise StopRequested(by_signal=stopping.has_signal)
    return outcome


def _write_beginning(config: RunConfig, paths: RunPaths, earlier: _Earlier) -> None:
    """Write the files that workers and launchers read from a run folder, such as the configuration,
    the user's own code and facts about the launch.

    Args:
        config: The point.
        paths: The run's folder.
        earlier: The facts of earlier attempts.
    """
    save_config(config, paths.config)
    user_code.save(config, paths.own)
    config.program.keep(paths.own)
    meta = {
        "launched_at": file_system_time(paths.folder),
        "wall_seconds_before": earlier.wall_seconds,
    }
    if read_meta(paths).get("beside_others"):  # in the part that this run continues
        meta["beside_others"] = True
    write_json(paths.meta, {**meta, **provenance(config)})
    paths.metrics.touch()  # launchers watch it
    paths.stop.write_bytes(b"")


def set_aside(config: RunConfig) -> None:
    """Move the run folder of a point to the study's folder `.previous`, unless a process is running
    the point.

    The point counts as new from then on.
    """
    folder = paths_of(config).folder
    with attendance.run_claimed(folder) as is_ours:
        if is_ours:
            _set_aside(folder, folder)


def _set_aside(folder: Path, part: Path) -> Path | None:
    """Move the run folder of an earlier attempt, or a part of that folder, to the study's folder
    `.previous`.

    Args:
        folder: The run's folder.
        part: What to move: the folder itself or a part of it.

    Returns:
        Where the files are now; None if there were none.
    """
    if not part.exists():
        return None
    with suppress(OSError):  # it stays behind if the launcher was killed
        RunPaths(folder).environment.unlink()
    previous = folder.parent / ".previous"
    previous.mkdir(exist_ok=True)
    numbered = (previous / f"{folder.name}.{number}" for number in itertools.count(1))
    free = next(path for path in numbered if not path.exists())
    shutil.move(part, free)
    return free


@dataclass(frozen=True)
class _Earlier:
    """The facts that an attempt takes over from earlier attempts at the same run: seconds, warnings
    and damage.

    `warnings` are on record already. `damage` says which files of earlier attempts are damaged, and
    what happens instead of resuming from them.
    """

    wall_seconds: float = 0.0
    warnings: Sequence[str] = ()
    damage: Sequence[str] = ()


def _prepare_folder(config: RunConfig, paths: RunPaths) -> _Earlier:
    """Prepare a run's folder for a new start, or for resuming from the latest checkpoint without
    damage.
    """
    latest, damage = soundest(paths)
    if latest:
        try:
            earlier = _take_up(paths, latest)
            said = f"{damage}: the run resumes from an earlier checkpoint, {latest.folder.name}"
            return replace(earlier, damage=(said,) if damage else ())
        except Damaged as error:
            damage = str(error)
    damage = damage or _damage_of_records(paths)
    moved = _set_aside(paths.folder, paths.folder)
    paths.folder.mkdir(parents=True)
    if config.resume_from:
        branching.begin(config, paths)
    damage = damage.removesuffix(f". {REMEDY}")
    said = f"{damage}: the run starts from its beginning, and its earlier files are in {moved}"
    return _Earlier(damage=(said,) if damage else ())


def _damage_of_records(paths: RunPaths) -> str:
    """Return the message on the first damaged file of an earlier attempt; empty without damage."""
    try:
        read_ended(paths)
        read_records(paths.metrics, with_steps=False)
    except Damaged as error:
        return str(error)
    return ""


def _take_up(paths: RunPaths, checkpoint: Checkpoint) -> _Earlier:
    """Prepare a run folder for resuming from `checkpoint`: remove what was written later, such as
    records, checkpoints and the summary, and move the log files away.
    """
    facts = checkpoint.facts()
    assert facts, checkpoint
    _set_aside(paths.folder, paths.logs)
    meta, summary = read_meta(paths), read_summary(paths)
    if summary:
        wall_seconds = summary["wall_seconds"] or 0.0
    else:  # the run was killed together with its launcher
        launched_at = meta.get("launched_at") or facts["time"]
        wall_seconds = (meta.get("wall_seconds_before") or 0.0) + max(
            0.0, facts["time"] - launched_at
        )
    paths.summary.unlink(missing_ok=True)
    keep_until(paths, checkpoint)
    cut_records(paths, facts["metrics_bytes"])
    last_step = f"step {facts['num_steps']}, in epoch {facts['epoch']}"
    records = read_records(paths.metrics)[0]
    refuse_repeated(records, paths.metrics)
    warnings = tuple(warnings_in(records))
    with RunLog(paths.metrics) as log:
        log.write(Event(event="resumed", message=f"resumed after {last_step}"))
    return _Earlier(float(wall_seconds), warnings)
