"""The processes that copy records to trackers while runs train, one process for each tracker.

`python -m bsweep.trackers.live NAME` reads the paths of runs' folders from its standard input, one
a line, until the input ends. It follows the records of these runs. It has the lowest priority. What
it prints is meant for the user.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from bsweep.config.run import RunConfig
from bsweep.config.values import TrackerName
from bsweep.core import terminal
from bsweep.core.following import GrowingFile
from bsweep.runlog.files import RunPaths
from bsweep.trackers import Tracked, records, sink

logger = terminal.logger(__name__)

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 60  # the time for writing the rest when all runs have ended


class _Follower:
    """The object by which a sweep starts, feeds and ends the process that copies records to one
    tracker.
    """

    def __init__(self, name: TrackerName, study_dir: Path) -> None:
        self.name = name
        self._study_dirs = {study_dir}
        log = study_dir / ".trackers"
        log.mkdir(exist_ok=True)
        with (log / f"{name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bsweep.trackers.live", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # A Ctrl-C must not end it: it writes how the runs end.
            )
        # The process serves all points, but this thread may be bound to the cores of one point.
        if hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(self._process.pid, os.sched_getaffinity(os.getpid()))
        os.set_blocking(_fileno(self._process.stdin), False)
        os.set_blocking(_fileno(self._process.stdout), False)

    def follow(self, paths: RunPaths) -> None:
        self._study_dirs.add(paths.folder.parent)
        # The process may have ended, and has said why, or it may not read its input.
        with suppress(OSError):
            os.write(_fileno(self._process.stdin), f"{paths.folder.resolve()}\n".encode())

    def says(self) -> list[str]:
        """Return the lines that the tracker's process has printed since the last call."""
        with suppress(BlockingIOError):
            return (
                os.read(_fileno(self._process.stdout), 1 << 16)
                .decode(errors="replace")
                .splitlines()
            )
        return []

    def end(self) -> list[str]:
        """Let the tracker's process copy the remaining records and end, and kill it if that takes
        more than a minute; return the lines that it printed, or warnings that it took too long.
        """
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return [
                failure(self.name, "it took too long", folder)
                for folder in sorted(self._study_dirs)
            ]
        return self.says()


def _fileno(pipe: IO[bytes] | None) -> int:
    assert pipe
    return pipe.fileno()


_followers: dict[TrackerName, _Follower] = {}
_STARTING = threading.Lock()  # Points that run at the same time start in separate threads.


def follow(config: RunConfig, paths: RunPaths) -> None:
    """Start to copy the records of a run to the trackers that its configuration names."""
    with _STARTING:
        for name in config.trackers:
            if name not in _followers:
                _followers[name] = _Follower(name, config.study_dir)
            _followers[name].follow(paths)


def news() -> list[str]:
    """Return the lines, such as failures, that trackers' processes have printed since the last
    call.
    """
    return [line for follower in list(_followers.values()) for line in follower.says()]


def end() -> None:
    """Let the processes of all trackers copy the remaining records and end, and kill each that
    takes more than a minute; log the lines that they print.
    """
    while _followers:
        _, follower = _followers.popitem()
        for line in follower.end():
            logger.warning(line)


atexit.register(end)


def failure(name: TrackerName, why: str, study_dir: Path) -> str:
    """Return the text of a warning which says that a tracker gets no more records, and why."""
    return (
        f"warning: {name}: {why}. The folders of the runs have all records; export them when the "
        f"runs have ended: bsweep export {shlex.quote(str(study_dir))} --to {name}"
    )


class _Run:
    """A run whose records this process copies to a tracker."""

    def __init__(self, name: TrackerName, paths: RunPaths) -> None:
        self._paths, self._file = paths, GrowingFile(paths.metrics)
        first = self._new_records()
        to, folder, began_at = sink(name), paths.folder, first[0]["time"] if first else time.time()
        self._tracked: Tracked = to.open(
            to.place(folder.parent), folder.parent.name, folder.name, began_at
        )
        for record in records.settled(first):
            records.forward(record, self._tracked)

    def go_on(self, is_last: bool) -> bool:
        """Copy the run's new records to the tracker; return False if the run has a summary, which
        means that it has ended, else True.
        """
        has_ended = self._paths.summary.exists()  # Look first, then read the last records.
        for record in self._new_records():
            records.forward(record, self._tracked)
        if has_ended or is_last:
            records.finish(self._paths, self._tracked, time.time())
        return not has_ended

    def _new_records(self) -> list[dict[str, Any]]:
        lines = self._file.new_lines()
        # The file was cut or moved away. What is left of it was passed on already, so skip it.
        if lines is None:
            self._file.new_lines()
        return [json.loads(line) for line in lines or ()]


def _folders() -> Iterator[Path | None]:
    """Yield the path of each run folder that arrives on standard input, and None after each wait
    for input, which takes a second at most; end when the input ends.
    """
    os.set_blocking(0, False)
    selector, rest = selectors.DefaultSelector(), b""
    selector.register(0, selectors.EVENT_READ)
    while True:
        if selector.select(_POLL_SECONDS):
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            yield from (Path(os.fsdecode(line)) for line in lines)
        yield None


def main() -> NoReturn:
    """Run `python -m bsweep.trackers.live NAME`."""
    name = cast(TrackerName, sys.argv[1])
    said = os.dup(1)
    os.dup2(2, 1)  # What a tracker's package prints goes to the log.
    os.nice(19)
    folder: Path | None = None
    going_on: dict[Path, _Run] = {}
    try:
        for folder in _folders():
            if folder:
                last = folder
                if folder in going_on:  # The run is started again.
                    going_on[folder].go_on(is_last=True)
                going_on[folder] = _Run(name, RunPaths(folder))
            going_on = {folder: run for folder, run in going_on.items() if run.go_on(is_last=False)}
        # The process that started this one may be gone, and so may not end it.
        signal.alarm(2 * _PATIENCE_SECONDS)
        for run in going_on.values():
            run.go_on(is_last=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        os.write(
            said, f"{failure(name, f'{type(error).__name__}: {reason}', last.parent)}\n".encode()
        )
        raise
    sys.exit(0)


if __name__ == "__main__":
    main()
