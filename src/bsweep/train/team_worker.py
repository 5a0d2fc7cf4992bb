"""A process of a team, which trains point after point; `bsweep.launch.team` starts and leads it.

The folder in which they meet may lie on a file system of several hosts. There, a file that is
opened is seen as it was last closed, while names may be old: so all files are there from the start,
and are opened to be looked at.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bsweep.config import own
from bsweep.core.following import GrowingFile
from bsweep.core.ranks import Place
from bsweep.runlog import RunPaths

PATIENCE_SECONDS = 60
"""Exit if what started these processes has not touched the lifeline for so long."""

SPOILT = b"!"
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class TeamPaths:
    folder: Path

    @property
    def points(self) -> Path:
        """Run folders to be trained, a line each; an empty line is the end."""
        return self.folder / "points"

    @property
    def lifeline(self) -> Path:
        """Touched while somebody may have a point for the team, see `bsweep.launch.lifeline`."""
        return self.folder / "lifeline"

    def through(self, rank: int) -> Path:
        """A byte of each point that a process has trained: `SPOILT`, if it had better train no
        other.
        """
        return self.folder / f"through.{rank}"


def train(paths: TeamPaths) -> None:
    """Be one of the team until its parent has no more points."""
    # imports torch, which a parent that only knows the paths does without
    from bsweep.train import worker

    # what is imported stays: to look through it would take longer than to start a point
    gc.freeze()
    for run in _points(paths):
        broken: list[str] = []  # captures of CUDA graphs, whose memory nobody gives back
        work = functools.partial(worker.train_launched, on_broken_capture=broken.append)
        place = worker.take_part(run, work)
        with paths.through(place.rank).open("ab") as file:
            file.write(SPOILT if broken else b".")
        _forget(run)


def _points(paths: TeamPaths) -> Iterator[RunPaths]:
    """Run folders as they come. What this process prints goes to the one that it trains."""
    for number, line in enumerate(_lines(paths)):
        if not line:
            return
        run = RunPaths(Path(os.fsdecode(line)))
        if number:
            _print_to(run)
        yield run


def _lines(paths: TeamPaths) -> Iterator[bytes]:
    """Yield the lines of the points as they come; exit if the parent has not touched the
    lifeline for `PATIENCE_SECONDS`.
    """
    file, seen, since = GrowingFile(paths.points), -1, time.monotonic()
    while True:
        lines = file.new_lines() or []
        yield from lines
        with paths.lifeline.open("rb") as lifeline:  # an opened file is seen as it is
            touched = os.fstat(lifeline.fileno()).st_mtime_ns
        if lines or touched != seen:
            seen, since = touched, time.monotonic()
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise SystemExit(
                f"bsweep: who started these processes has said nothing for {PATIENCE_SECONDS} s"
            )
        time.sleep(_POLL_SECONDS)


def _print_to(run: RunPaths) -> None:
    logs = run.rank_logs(_rank())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        with (logs / stream.name.strip("<>")).open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())


def _rank() -> int:
    return Place.from_environment().rank


def _forget(run: RunPaths) -> None:
    """Leave nothing of a point in this process that the next one could notice."""
    import torch

    own.forget(run.own)
    gc.collect()  # models and graphs know themselves
    torch.cuda.empty_cache()


def main() -> NoReturn:
    """`python -m bsweep.train.team_worker FOLDER`."""
    from bsweep.train import worker

    worker.work_and_leave(lambda: train(TeamPaths(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
