"""The files by which a launcher directs a team: processes that train one or more points of a sweep,
one after another. `bsweep.launch.pool` starts teams.

The team's folder may lie on a file system that several hosts share. On such a file system, opening
a file shows its content as of the last close, while a folder's list of names may be out of date. So
all files exist from the start, and a process opens a file to see its state.

The processes read files instead of a `torch.distributed.TCPStore`, because a store needs a port on
the launcher's host that every host can reach. The launcher needs only ssh in the other direction.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bsweep.core.following import GrowingFile
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths

PATIENCE_SECONDS = 60
"""The seconds after which a waiting process exits if the launcher has not touched the lifeline
file.
"""

FIT, UNFIT = b".", b"!"
"""The byte that a process writes after each point, and the one that it writes instead if it should
train no further point, because the capture of a CUDA graph broke off in the process.
"""
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class TeamPaths:
    """The paths of the files of a team."""

    folder: Path

    @property
    def points(self) -> Path:
        """The file that lists the folders of the runs to train, one per line; an empty line ends
        the list.
        """
        return self.folder / "points"

    @property
    def lifeline(self) -> Path:
        """The file that the launcher touches as long as it lives, and empties when it ends the
        team; see `bsweep.launch.lifeline`.
        """
        return self.folder / "lifeline"

    def done(self, rank: int) -> Path:
        """Return the path of the file to which the process `rank` appends `FIT` or `UNFIT` after
        each point in which it took part.
        """
        return self.folder / f"done.{rank}"


def runs(paths: TeamPaths) -> Iterator[RunPaths]:
    """Yield the paths of each run that this process must train, as soon as the launcher has listed
    the run's folder in the file `points`.

    What this process prints goes to the logs of the run that it trains.
    """
    for number, line in enumerate(_lines(paths)):
        if not line:
            return
        run = RunPaths(Path(os.fsdecode(line)))
        if number:
            _print_to(run)
        yield run


def _lines(paths: TeamPaths) -> Iterator[bytes]:
    """Yield each line that the launcher appends to the file `points`. A line names the folder of a
    run to train; an empty line ends the list.

    Exit if the launcher has not touched the lifeline for `PATIENCE_SECONDS`.
    """
    file, seen, since = GrowingFile(paths.points), -1, time.monotonic()
    while True:
        lines = file.new_lines() or []
        yield from lines
        with paths.lifeline.open("rb") as lifeline:  # opening the file shows its present state
            touched = os.fstat(lifeline.fileno()).st_mtime_ns
        if lines or touched != seen:
            seen, since = touched, time.monotonic()
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise SystemExit(
                "bsweep: the process that started these workers has shown no sign of life for "
                f"{PATIENCE_SECONDS} s"
            )
        time.sleep(_POLL_SECONDS)


def _print_to(run: RunPaths) -> None:
    logs = run.rank_logs(World.from_environment().rank)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        with (logs / stream.name.strip("<>")).open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
