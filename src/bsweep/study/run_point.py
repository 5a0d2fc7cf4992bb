"""The run of one point: read what earlier attempts left in its folder, start or resume the
training, retry after a failure, and record the end.
"""

from __future__ import annotations

import itertools
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bsweep import launch
from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.core.whole_files import is_full
from bsweep.launch import LaunchRequest, Outcome, hosts_check
from bsweep.launch.pool import ProcessPool
from bsweep.launch.stop import Stopping
from bsweep.runlog import reading
from bsweep.runlog.checkpoint_files import (
    Checkpoint,
    is_stop_requested,
    keep_until,
    soundest,
)
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import Damaged
from bsweep.runlog.records import Event
from bsweep.runlog.shared_clock import file_system_time
from bsweep.runlog.summary import damage_of_records, read_ending, write_summary
from bsweep.study import branching, claims, states
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


def run_point(
    config: RunConfig,
    command: str,
    warnings: list[str],
    progress: Progress,
    pool: ProcessPool | None = None,
    on_poll: Callable[[], None] = lambda: None,
) -> str:
    """Run one point to its end and return its status; skip a point that already has a result, such
    as completed.

    A failure of the run is returned as a status. An earlier attempt without a result is resumed if
    it left a checkpoint without damage. Otherwise it is moved to the study's `.previous` folder.

    Args:
        config: The point.
        command: The command that trains it, for its record.
        warnings: Warnings about the point, which its record will contain.
        progress: Shows the run to the user.
        pool: Keeps processes between the points of a sweep; None to start fresh processes.
        on_poll: Called at each poll of the launcher; with `launch=inline`, after each step.

    Returns:
        The status; "running" if another process is running the point, and "unready" if its hosts
        cannot run it.

    Raises:
        StopRequested: If somebody asked the run to stop. The run may be resumed later.
        OSError: If the files that this process keeps for the run cannot be written.
    """
    paths, events = RunPaths(config.folder), list[Event]()
    with claims.run_claimed(paths.folder) as is_ours:
        if not is_ours:
            progress.say(f"{paths.folder}: postponed, another process is running it")
            return "running"
        for number in itertools.count(1):
            earlier = read_earlier(paths)
            if earlier.result:
                progress.skip(config, why_skipped(config, earlier.result))
                return earlier.result
            # An earlier point or attempt may have failed on its hosts.
            if unready := hosts_check.problems([config]):
                why = f"not tried: {'; '.join(unready)}"
                if number == 1:
                    progress.skip(config, why)
                    return "unready"
                progress.note(why)
            else:
                outcome = _attempt(
                    config, command, earlier, warnings, events, progress, pool, on_poll
                )
                events = []
                if outcome.status in ("failed", "timeout"):
                    hosts_check.forget(config)
            if not outcome.can_be_retried or number > config.launch.num_retries:
                break
            retry = f"retry {number} of {config.launch.num_retries}"
            seconds = min(60, 1 << (number - 1))  # ten retries leave a host 5 minutes to reboot
            progress.note(f"{retry} in {seconds} s")
            time.sleep(seconds)
            while claims.has_workers(paths.folder):  # a host may end its workers late
                time.sleep(_POLL_SECONDS)
            cause = f"{outcome.status}: {outcome.message.splitlines()[0]}"
            events.append(Event(event="retried", message=f"{retry} after {cause}"))
    return outcome.status


def _attempt(
    config: RunConfig,
    command: str,
    earlier: Earlier,
    warnings: list[str],
    events: list[Event],
    progress: Progress,
    pool: ProcessPool | None,
    on_poll: Callable[[], None],
) -> Outcome:
    """Start or resume a point's run, wait for its end, write its summary, and return how it ended.

    `events` are recorded at the beginning; they are none in the first attempt. See `run_point` for
    the other arguments, and for what is raised.
    """
    paths, began = RunPaths(config.folder), time.monotonic()  # not disturbed when the clock is set
    earlier = prepare(config, paths, earlier, command)
    warnings = [*warnings, *filter(None, [earlier.damage])]
    new = [warning for warning in warnings if warning not in earlier.warnings]
    with RunLog(paths.metrics) as log:
        if earlier.checkpoint:
            log.write(Event(event="resumed", message=f"resumed after {earlier.last_step}"))
        for event in (*(Event(event="warning", message=warning) for warning in new), *events):
            log.write(event)
    progress.begin(config, paths, warnings, is_retry=bool(events))
    outcome, was_to_stop = Outcome("interrupted", "interrupted while it ran"), False
    stopping = Stopping(config, paths, progress.note)

    def poll() -> None:
        progress.poll()
        on_poll()
        stopping.poll()

    try:
        with stopping:
            request = LaunchRequest(config, paths, poll, config.program.worker, pool)
            outcome = launch.launch(request)
    except KeyboardInterrupt:
        was_to_stop = True
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome("failed", f"{type(error).__name__}: {error}")
    finally:
        was_to_stop = was_to_stop or is_stop_requested(paths)
        seconds = earlier.wall_seconds + time.monotonic() - began
        try:
            outcome = _end(config, paths, outcome, seconds, progress)
        except OSError as error:
            if not was_to_stop:
                raise
            progress.give_up(config, str(error.strerror if is_full(error) else error))
    if was_to_stop:
        raise StopRequested(by_signal=stopping.has_signal)
    return outcome


def _end(
    config: RunConfig, paths: RunPaths, outcome: Outcome, seconds: float, progress: Progress
) -> Outcome:
    """Write the summary of a run that has ended after so many seconds, show its end, and remove the
    files that it needs no more. Return how it ended, by the summary.
    """
    status, message = write_summary(paths, config, outcome.status, outcome.message, seconds)
    outcome = replace(outcome, status=status, message=message)
    progress.end(outcome)
    if status in ("completed", "diverged"):  # such a run is never resumed
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
    paths.stop.unlink(missing_ok=True)
    return outcome


_AGAIN = "which is a result: `bsweep retry` repeats it"
_SKIPPED = {
    "completed": "completed already",
    "diverged": f"it diverged, {_AGAIN}",
    "out_of_memory": f"it ran out of memory, {_AGAIN}",
}


def why_skipped(config: RunConfig, result: str) -> str:
    """Return why a point with a result is not trained again."""
    if result == "completed" and config.keep_weights and not RunPaths(config.folder).final.exists():
        return f"{_SKIPPED[result]}, without keep_weights=true: another study=NAME trains it anew"
    return _SKIPPED[result]


@dataclass(frozen=True)
class Earlier:
    """The files that earlier attempts at a run left in its folder, and what they allow.

    `result` is the status of a run that need not be repeated; the other fields are then empty.
    Otherwise the run resumes from `checkpoint`, the latest one without damage, which was saved
    after `last_step`; without one it begins anew. `warnings` are on record already, and other
    points ran beside the run if `beside_others` is True. `damage` is a text on damaged files.
    """

    result: str = ""
    checkpoint: Checkpoint | None = None
    last_step: str = ""
    wall_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    beside_others: bool = False
    damage: str = ""


def read_earlier(paths: RunPaths) -> Earlier:
    """Read what earlier attempts left in a run's folder, and change nothing.

    Raises:
        Newer: If a newer bsweep wrote the run's files.
    """
    ending = read_ending(paths)
    if ending.status in states.RESULTS:
        return Earlier(result=ending.status)
    checkpoint, lost = soundest(paths)
    if checkpoint is None or (ending.damage and not ending.summary):
        damage = lost or ending.damage or damage_of_records(paths, ending.summary)
        return Earlier(damage=damage.removesuffix(f". {reading.REMEDY}"))
    facts = checkpoint.facts
    assert facts, checkpoint
    try:
        content = (reading.content_of(paths.metrics) or b"")[: facts["metrics_bytes"]]
        records, _ = reading.records_in(content, paths.metrics, crc32=facts["metrics_crc32"])
        reading.refuse_repeated(records, paths.metrics)
    except Damaged as error:
        return Earlier(damage=str(error).removesuffix(f". {reading.REMEDY}"))
    meta = ending.meta
    if ending.summary:
        wall_seconds = ending.summary["wall_seconds"] or 0.0
    else:  # the run was killed together with its launcher
        seconds = facts["time"] - (meta.get("launched_at") or facts["time"])
        wall_seconds = (meta.get("wall_seconds_before") or 0.0) + max(0.0, seconds)
    note = f"{lost}: the run resumes from an earlier checkpoint, {checkpoint.folder.name}"
    return Earlier(
        checkpoint=checkpoint,
        last_step=f"step {facts['num_steps']}, in epoch {facts['epoch']}",
        wall_seconds=float(wall_seconds),
        warnings=tuple(reading.warnings_in(records)),
        beside_others=bool(meta.get("beside_others")),
        damage=note if lost else "",
    )


def prepare(config: RunConfig, paths: RunPaths, earlier: Earlier, command: str) -> Earlier:
    """Prepare a run's folder for resuming from a checkpoint, or for a new beginning, and write the
    files that workers and launchers read from it, see `write_inputs`.

    What was written after the checkpoint is removed, and the log files are moved to the study's
    folder `.previous`. Before a new beginning, all files are moved there.

    Args:
        config: The point.
        paths: The run's folder.
        earlier: What earlier attempts left in it.
        command: The command that trains the point.

    Returns:
        What the run takes over; its `damage` also says what happens instead of resuming.
    """
    moved = _set_aside(paths.folder, paths.logs if earlier.checkpoint else paths.folder)
    if earlier.checkpoint:
        paths.summary.unlink(missing_ok=True)
        keep_until(paths, earlier.checkpoint)
    else:
        paths.folder.mkdir(parents=True)
        note = f"the run starts from its beginning, and its earlier files are in {moved}"
        earlier = Earlier(
            beside_others=config.resume_from is not None and branching.begin(config, paths),
            damage=f"{earlier.damage}: {note}" if earlier.damage else "",
        )
    facts = {
        "wall_seconds_before": earlier.wall_seconds,
        **({"beside_others": True} if earlier.beside_others else {}),
        "hosts": config.launch.named_hosts,
        **provenance(command),
    }
    write_inputs(config, paths, facts)
    return earlier


def write_inputs(config: RunConfig, paths: RunPaths, facts: Mapping[str, Any]) -> None:
    """Write the files that workers and launchers read from a run's folder: the configuration, the
    user's own code, and `meta.json` with the time of the launch and the given facts.
    """
    save_config(config, paths.config)
    user_code.save(config, paths.own)
    config.program.save(paths.own)
    write_json(paths.meta, {"launched_at": file_system_time(paths.folder), **facts})
    paths.metrics.touch()  # launchers watch it
    paths.stop.write_bytes(b"")


def set_aside(config: RunConfig) -> None:
    """Move the run folder of a point to the study's folder `.previous`, unless a process is running
    the point.

    The point counts as new from then on.
    """
    folder = config.folder
    with claims.run_claimed(folder) as is_ours:
        if is_ours:
            _set_aside(folder, folder)


def _set_aside(folder: Path, files: Path) -> Path | None:
    """Move the run folder of an earlier attempt, or a folder in it, to the study's folder
    `.previous`.

    Args:
        folder: The run's folder.
        files: What to move: the folder itself or a folder in it.

    Returns:
        Where the files are now; None if there were none.
    """
    if not files.exists():
        return None
    with suppress(OSError):  # it stays behind if the launcher was killed
        RunPaths(folder).environment.unlink()
    previous = folder.parent / ".previous"
    previous.mkdir(exist_ok=True)
    numbered = (previous / f"{folder.name}.{number}" for number in itertools.count(1))
    free = next(path for path in numbered if not path.exists())
    shutil.move(files, free)
    return free
