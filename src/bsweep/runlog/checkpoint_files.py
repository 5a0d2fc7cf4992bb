"""What is known of a run's checkpoints without torch: which there are, where they stand, and what
asks for one.

A checkpoint is a folder. `complete.json` is written when all that workers and servers put there
lies on the disk, and is removed first: a folder without it is what a kill has left.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.json_schemas import Saved
from bsweep.runlog.reading import Damaged, hold, read_json

_NUM_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A folder, and what `complete.json` says of it if there is one."""

    folder: Path

    @property
    def shared(self) -> Path:
        """What all workers know alike."""
        return self.folder / "shared.pt"

    def own(self, rank: int) -> Path:
        """What one worker alone knows."""
        return self.folder / f"rank.{rank}.pt"

    def server(self, number: int) -> Path:
        return self.folder / f"server.{number}.pt"

    @property
    def _marker(self) -> Path:
        return self.folder / "complete.json"

    def facts(self) -> dict[str, Any] | None:
        """What a `Saved` says; None where it is not complete."""
        try:
            facts = read_json(self._marker)
            if facts is not None:
                hold(facts, Saved, self._marker)
        except Damaged:
            return None
        return facts

    def complete(self, facts: dict[str, Any]) -> None:
        write_json(self._marker, facts)

    def remove(self) -> None:
        self._marker.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def checkpoint_at(paths: RunPaths, epoch: int, position: int) -> Checkpoint:
    """The checkpoint of a run that has trained so many examples of an epoch, from 1; its folder
    need not be there.
    """
    return Checkpoint(paths.checkpoints / f"epoch{epoch:05d}.{position:012d}")  # their names sort


def checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """The complete ones, the latest first."""
    return [checkpoint for checkpoint in _all(paths) if checkpoint.facts()]


def is_saving(paths: RunPaths) -> bool:
    """Whether a checkpoint is being written: who goes on removes those that were broken off."""
    return any(not checkpoint.facts() for checkpoint in _all(paths))


def prune(paths: RunPaths) -> None:
    """Remove all but the latest two complete ones."""
    kept = {checkpoint.folder for checkpoint in checkpoints(paths)[:_NUM_KEPT]}
    for checkpoint in _all(paths):
        if checkpoint.folder not in kept:
            checkpoint.remove()


def cut_records(paths: RunPaths, num_bytes: int) -> None:
    """Forget the records after a place: what a run that goes on from there writes anew."""
    if paths.metrics.exists() and paths.metrics.stat().st_size > num_bytes:
        os.truncate(paths.metrics, num_bytes)


def request_stop(paths: RunPaths) -> None:
    """Have a run's workers save where they are and leave, and the sweep that it belongs to end."""
    paths.stop.write_text("stop\n")


def is_stop_requested(paths: RunPaths) -> bool:
    # By what is in it: on a file system of several hosts a name may be seen late, a file that is
    # opened is up to date.
    try:
        return bool(paths.stop.read_bytes())
    except OSError:
        return False


def _all(paths: RunPaths) -> list[Checkpoint]:
    folders = paths.checkpoints.iterdir() if paths.checkpoints.exists() else ()
    return [Checkpoint(folder) for folder in sorted(folders, reverse=True) if folder.is_dir()]
