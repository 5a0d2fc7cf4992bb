"""A study whose overview is read again and again while its points train.

A study may have thousands of runs, of which few are at work. So a look lists the study's folder,
and reads again only the runs that are at work, and those in whose folders files were made or
removed since the last look, as every attempt does.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bsweep.study import claims, overview, states
from bsweep.study.estimate import Estimate
from bsweep.study.overview import Row
from bsweep.study.states import NEW, State

_ESTIMATE_SECONDS = 10.0  # between two estimates of the time that is left
_Stamp = tuple[int, ...]


class Watched:
    """A study's points with their states and estimates, as of the last look.

    Each look with a change has a higher `version`. `problem` says why the study cannot be read; it
    is empty otherwise.
    """

    def __init__(self, study_dir: Path) -> None:
        """Look at the study for the first time.

        Raises:
            ValueError: If the study does not exist or is empty.
        """
        self.folder = study_dir
        self.version = 0
        self.problem = ""
        self.sweeps: list[str] = []
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}  # the version of a point's last change
        self._found: dict[str, State] = {}
        self._stamps: dict[str, _Stamp] = {}  # of the runs' folders; with a result, only the inode
        self._commands: _Stamp = ()
        self._by = Estimate([])
        self._estimated = -_ESTIMATE_SECONDS
        self._is_outdated = True
        self.look()
        if not self._rows:
            is_unreadable = self.problem and study_dir.is_dir()
            raise ValueError(self.problem if is_unreadable else overview.no_study(study_dir))

    def look(self) -> bool:
        """Read what has changed since the last look, and return True if anything has."""
        try:
            changed, problem = self._read(), ""
            sweeps = claims.sweeps(self.folder)
        except OSError as error:
            changed, problem, sweeps = set(), f"{self.folder}: {error.strerror}.", []
        is_new = bool(changed) or (problem, sweeps) != (self.problem, self.sweeps)
        self.problem, self.sweeps = problem, sweeps
        if not changed and not (self._is_outdated and self._may_estimate()):
            self.version += is_new
            return is_new
        self.version += 1
        if self._may_estimate():
            self._estimate()
        else:
            for name in changed:
                self._change(name)
        return True

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def estimated_by(self) -> str:
        """A text on the points that the estimates are based on; empty without an estimate."""
        return self._by.source

    def state(self, run_id: str) -> State:
        return self._found.get(run_id, NEW)

    def news(self, version: int) -> dict[str, Any]:
        """Return what a reader who knows the study as of `version` lacks, in plain values: the
        points that have changed or are gone, and the sums over all points.
        """
        rows = self.rows()
        names = [name for name, changed in self._changed.items() if changed > version]
        return {
            "study": self.folder.name,
            "version": self.version,
            "problem": self.problem,
            "sweeps": self.sweeps,
            **overview.sums(rows, self._by.source),
            "points": [self._rows[name].as_json() for name in names if name in self._rows],
            "gone": [name for name in names if name not in self._rows],
        }

    def _may_estimate(self) -> bool:
        return time.monotonic() - self._estimated >= _ESTIMATE_SECONDS

    def _read(self) -> set[str]:
        """Read the runs that have changed, and return their names."""
        changed, stamps = set(), {}
        for entry in os.scandir(self.folder):
            name = entry.name
            if name.startswith(".") or not entry.is_dir():
                continue
            run, before = self.folder / name, self._found.get(name, NEW)
            # A run with a result changes only if another folder takes its place.
            stamp = (entry.inode(),) if before.status in states.RESULTS else _stamp(run)
            if before.status == "running" or self._stamps.get(name) != stamp:
                # What changes while the run is read is read again next time.
                now = states.state_of_run(run)
                if now.status in states.RESULTS:
                    stamp = stamp[:1]
                if now != before:
                    self._found[name] = now
                    changed.add(name)
            stamps[name] = stamp
        for name in self._found.keys() - stamps.keys():
            del self._found[name]
            changed.add(name)
        self._stamps = stamps
        self._is_outdated |= bool(changed)
        commands = _stamp(self.folder / "commands.jsonl")
        if commands != self._commands:
            self._commands, self._is_outdated, self._estimated = commands, True, -_ESTIMATE_SECONDS
        return changed

    def _change(self, name: str) -> None:
        """Show the state of a run, with the estimate as it was."""
        state, row = self._found.get(name), self._rows.get(name)
        if row is None and state is not None:
            row = Row(self.folder.name, name, state, None, None)
        elif row is not None and state is not None:
            seconds = self._by.seconds(row.planned, state) if row.planned else None
            row = replace(row, state=state, seconds=seconds)
        elif row is not None and row.planned:
            row = replace(row, state=NEW, seconds=self._by.seconds(row.planned, NEW))
        else:
            row = None
        self._put(name, row)

    def _put(self, name: str, row: Row | None) -> None:
        if row == self._rows.get(name):
            return
        if row is None:
            del self._rows[name]
        else:
            self._rows[name] = row
        self._changed[name] = self.version

    def _estimate(self) -> None:
        """Estimate anew how long all points will take."""
        rows, self._by = overview.of_states(
            self.folder, self._found, overview.points_of(self.folder)
        )
        by_name = {row.run_id: row for row in rows}
        for name in {**self._rows, **by_name}:
            self._put(name, by_name.get(name))
        self._estimated, self._is_outdated = time.monotonic(), False


def _stamp(path: Path) -> _Stamp:
    """Return a file's inode, time of change and size; nothing if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_mtime_ns, status.st_size)
