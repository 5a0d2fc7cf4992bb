"""The processes that copy records to trackers while runs train, one for each tracker of a study
and, with `launch.parallel`, each process that runs a point.

`python -m bsweep.trackers.live NAME` reads records from its standard input until the input ends,
each line with the folder of a run and one of its records. It has the lowest priority. If it fails,
the last line of its output says why.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from bsweep.config.run import RunConfig
from bsweep.config.values import TrackerName
from bsweep.core import terminal
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import settled
from bsweep.trackers import Tracked, records, sink

logger = terminal.logger(__name__)

_PATIENCE_SECONDS = 60  # the time for writing the rest when all runs have ended


class _Copier:
    """The object by which a sweep starts, feeds and ends the process that copies records to one
    tracker.
    """

    def __init__(self, name: TrackerName, study_dir: Path) -> None:
        self._name, self._study_dir = name, study_dir
        self._log = study_dir / ".trackers" / f"{name}.{os.getpid()}.log"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bsweep.trackers.live", name],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # A Ctrl-C must not end it: it writes how the runs end.
            )
        if _CORES:
            with suppress(OSError):
                os.sched_setaffinity(self._process.pid, _CORES)
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._feed, daemon=True).start()  # the process may read late

    def copy(self, paths: RunPaths, record: Mapping[str, Any] | None) -> None:
        """Pass a record of a run on to the process; None means that the run has ended."""
        self._lines.put(json.dumps([str(paths.folder.resolve()), record]).encode() + b"\n")

    def _feed(self) -> None:
        assert self._process.stdin
        with suppress(OSError), self._process.stdin as pipe:  # the process may have ended
            while line := self._lines.get():
                pipe.write(line)
                pipe.flush()

    def end(self) -> str:
        """Let the process copy the remaining records and end, and kill it if that takes more than a
        minute; return a warning if it failed or took too long, else an empty text.
        """
        self._lines.put(b"")
        try:
            if not self._process.wait(_PATIENCE_SECONDS):
                self._log.unlink()
                return ""
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            why = last[0] if last else "its process was killed"
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            why = "it took too long"
        return (
            f"warning: {self._name}: {why}. The folders of the runs have all records; export them "
            f"when the runs have ended: bsweep export {shlex.quote(str(self._study_dir))} --to "
            f"{self._name}"
        )


_copiers: dict[tuple[TrackerName, Path], _Copier] = {}
# The process that starts it may be bound to the cores of one point.
_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def begin(config: RunConfig, paths: RunPaths, earlier: Sequence[dict[str, Any]]) -> None:
    """Start to copy the records of a run to the trackers that its configuration names.

    Args:
        config: The run's point.
        paths: The run's folder.
        earlier: The records that the run has already.
    """
    for name in config.trackers:
        if (name, config.study_dir) not in _copiers:
            _copiers[name, config.study_dir] = _Copier(name, config.study_dir)
    for record in settled(earlier):
        copy(config, paths, record)


def copy(config: RunConfig, paths: RunPaths, record: Mapping[str, Any] | None) -> None:
    """Copy a record of a run to its trackers; None means that the run has ended."""
    for name in config.trackers:
        _copiers[name, config.study_dir].copy(paths, record)


def end() -> None:
    """Let the processes of all trackers copy the remaining records and end, and kill each that
    takes more than a minute; log what failed.
    """
    while _copiers:
        _, copier = _copiers.popitem()
        if warning := copier.end():
            logger.warning(warning)


atexit.register(end)


def main() -> NoReturn:
    """Run `python -m bsweep.trackers.live NAME`."""
    os.nice(19)
    tracked: dict[Path, Tracked] = {}
    try:
        to = sink(cast(TrackerName, sys.argv[1]))
        for line in sys.stdin:
            name, record = json.loads(line)
            folder = Path(name)
            if record is None:
                if folder in tracked:
                    records.finish(RunPaths(folder), tracked.pop(folder), time.time())
                continue
            if folder not in tracked:
                place, study = to.place(folder.parent), folder.parent.name
                # With `launch.parallel` several of these processes may begin one database.
                with (folder.parent / ".trackers" / f"{sys.argv[1]}.lock").open("ab") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    tracked[folder] = to.open(place, study, folder.name, record["time"])
            records.forward(record, tracked[folder])
        # The process that started this one may be gone, and so may not end it.
        signal.alarm(2 * _PATIENCE_SECONDS)
        for folder, run in tracked.items():
            records.finish(RunPaths(folder), run, time.time())
    except Exception as error:
        traceback.print_exc()
        reason = (str(error).strip().splitlines() or [""])[0]
        print(f"{type(error).__name__}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)  # or a tracker's package might print more
    sys.exit(0)


if __name__ == "__main__":
    main()
