"""A study whose overview is read again and again while its points train.

A study may have thousands of runs, of which few are at work. So a look lists the study's folder,
and reads again only the runs that are at work, and those in whose folders files were made or
removed since the last look, as every attempt does.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from bsweep.study import claims, overview, states
from bsweep.study.estimate import Estimate
from bsweep.study.history import Planned
from bsweep.study.overview import Row
from bsweep.study.states import NEW, State

_ESTIMATE_SECONDS = 10.0  # between two estimates of the time that is left
_Stamp = tuple[int, ...]


class Watched:
    """A study's points with their states and estimates, as of the last look.

    Each look with a change has a higher `version`. `problem` says why the study cannot be read; it
    is empty otherwise. `sweeps` are those at work.
    """

    def __init__(self, study_dir: Path) -> None:
        """Look at the study for the first time.

        Raises:
            ValueError: If the study does not exist or is empty.
        """
        self.folder, self.version, self.problem = study_dir, 0, ""
        self.sweeps: list[str] = []
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}  # the version of a point's last change
        self._states: dict[str, State] = {}
        self._stamps: dict[str, _Stamp] = {}  # of the runs' folders; with a result, only the inode
        self._commands: _Stamp = ()
        self._points: dict[str, Planned] = {}
        self._estimate, self._estimated_at, self._is_outdated = Estimate([]), -math.inf, True
        self.look()
        if not self._rows:
            is_unreadable = self.problem and study_dir.is_dir()
            raise ValueError(self.problem if is_unreadable else overview.no_study(study_dir))

    def look(self) -> bool:
        """Read what has changed since the last look, and return True if anything has."""
        before, version = (self.problem, self.sweeps), self.version + 1
        try:
            names, self.problem = self._read(), ""
            self.sweeps = claims.sweeps(self.folder)
        except OSError as error:
            names, self.problem, self.sweeps = [], f"{self.folder}: {error.strerror}.", []
        if self._is_outdated and time.monotonic() - self._estimated_at >= _ESTIMATE_SECONDS:
            self._points, self._estimate = overview.estimated(self.folder, self._states)
            self._estimated_at, self._is_outdated = time.monotonic(), False
            names = [*dict.fromkeys([*self._rows, *self._points, *sorted(self._states)])]
        for name in names:
            state, point = self._states.get(name), self._points.get(name)
            row = overview.row_of(self.folder, name, state, point, self._estimate)
            if state is None and point is None:
                if self._rows.pop(name, None):
                    self._changed[name] = version
            elif self._rows.get(name) != row:
                self._rows[name], self._changed[name] = row, version
        is_new = bool(names) or before != (self.problem, self.sweeps)
        self.version += is_new
        return is_new

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def estimated_by(self) -> str:
        """A text on the points that the estimates are based on; empty without an estimate."""
        return self._estimate.source

    def state(self, run_id: str) -> State:
        return self._states.get(run_id, NEW)

    def news(self, version: int) -> dict[str, Any]:
        """Return what a reader who knows the study as of `version` lacks, in plain values: the
        points that have changed or are gone, and the sums over all points.
        """
        names = [name for name, changed in self._changed.items() if changed > version]
        return {
            "study": self.folder.name,
            "version": self.version,
            "problem": self.problem,
            "sweeps": self.sweeps,
            **overview.sums(self.rows(), self.estimated_by),
            "points": [self._rows[name].as_json() for name in names if name in self._rows],
            "gone": [name for name in names if name not in self._rows],
        }

    def _read(self) -> list[str]:
        """Read the runs that have changed, and return their names."""
        changed, stamps = [], {}
        for entry in os.scandir(self.folder):
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            name, state = entry.name, self.state(entry.name)
            # A run with a result changes only if another folder takes its place.
            has_result = state.status in states.RESULTS
            stamp = (entry.inode(),) if has_result else _stamp(self.folder / name)
            if state.status == "running" or self._stamps.get(name) != stamp:
                # What changes while the run is read is read again next time.
                before, state = state, states.state_of_run(self.folder / name)
                if state.status in states.RESULTS:
                    stamp = stamp[:1]
                if state != before:
                    self._states[name] = state
                    changed.append(name)
            stamps[name] = stamp
        for name in self._states.keys() - stamps.keys():
            del self._states[name]
            changed.append(name)
        self._stamps = stamps
        self._is_outdated |= bool(changed)
        commands = _stamp(self.folder / "commands.jsonl")
        if commands != self._commands:
            self._commands, self._is_outdated, self._estimated_at = commands, True, -math.inf
        return changed


def _stamp(path: Path) -> _Stamp:
    """Return a file's inode, time of change and size; nothing if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_mtime_ns, status.st_size)
