"""The folders and files of a run's checkpoints, and the request that a run saves one and stops.

This module needs no torch, so it does not read the tensors in a checkpoint.

A checkpoint is a folder. Its `complete.json` is written last, when all files of workers and
parameter servers are on the disk, and it is removed first. A folder without it is incomplete: a
killed run left it, or a run is writing it now.

`complete.json` has checksums of the other files and of the records until then. `soundest` compares
the files with them before a run resumes.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from bsweep.core.checksums import sha256_of
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.json_schemas import Saved
from bsweep.runlog.reading import Damaged, hold, read_json

_NUM_KEPT = 2
_BYTES = "surrogateescape"  # how Python holds the bytes of a name that are not UTF-8


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, which has a file `complete.json` once all its other files are
    written.
    """

    folder: Path

    @property
    def shared(self) -> Path:
        """The path of the file with the training state that is the same on all workers."""
        return self.folder / "shared.pt"

    def own(self, rank: int) -> Path:
        """Return the path of the file with the training state that only the worker with the rank
        `rank` has.
        """
        return self.folder / f"rank.{rank}.pt"

    def server(self, number: int) -> Path:
        return self.folder / f"server.{number}.pt"

    @property
    def _marker(self) -> Path:
        return self.folder / "complete.json"

    @functools.cached_property
    def facts(self) -> dict[str, Any] | None:
        """The content of the checkpoint's `complete.json`; None if the file is missing or does not
        fit its schema `Saved`. This object reads the file once.
        """
        try:
            facts = read_json(self._marker)
            if facts is None:
                return None
            hold(facts, Saved, self._marker)
        except Damaged:
            return None
        names = {unquote(name, errors=_BYTES): digest for name, digest in facts["sha256"].items()}
        return {**facts, "sha256": names}

    def complete(self, facts: Mapping[str, Any]) -> None:
        """Write the mapping `facts` and a checksum of it to `complete.json`, in the form of
        `Saved`. The names of files are quoted as in URLs, for JSON holds no name beyond UTF-8.
        """
        names = {quote(name, errors=_BYTES): digest for name, digest in facts["sha256"].items()}
        crc32 = _crc32_of_facts(facts)
        write_json(self._marker, {**facts, "sha256": names, "facts_crc32": crc32})

    def damage(self, metrics: Path) -> str:
        """Return a text that names the first damaged or missing file of this checkpoint, or else
        says that the run's records are damaged. The text is empty if neither is damaged, or if the
        checkpoint has no `complete.json`.

        Args:
            metrics: The run's `metrics.jsonl`.
        """
        facts = self.facts
        if facts is None:
            return f"{self._marker} is damaged" if self._marker.exists() else ""
        if facts["facts_crc32"] != _crc32_of_facts(facts):
            return f"{self._marker} is damaged"
        for name, sha256 in facts["sha256"].items():
            if not (self.folder / name).is_file():
                return f"{self.folder / name} is missing"
            if sha256_of(self.folder / name) != sha256:
                return f"{self.folder / name} is damaged"
        num_bytes = facts["metrics_bytes"]
        if crc32_of_records(metrics, num_bytes) != facts["metrics_crc32"]:
            return f"the first {num_bytes} bytes of {metrics} are missing or damaged"
        return ""

    def remove(self) -> None:
        self._marker.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def checkpoint_at(paths: RunPaths, epoch: int, position: int) -> Checkpoint:
    """Return the checkpoint that a run saves after `position` examples of an epoch, whether or not
    it exists yet.

    Args:
        paths: The paths of the run.
        epoch: The number of the epoch, from 1.
        position: The number of examples of this epoch that the run has trained on.
    """
    # The names sort by epoch and position.
    return Checkpoint(paths.checkpoints / f"epoch{epoch:05d}.{position:012d}")


def checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """Return a run's complete checkpoints, the latest first."""
    return [checkpoint for checkpoint in _all(paths) if checkpoint.facts]


def soundest(paths: RunPaths) -> tuple[Checkpoint | None, str]:
    """Return a run's latest checkpoint without damage, and a text on the damage of a later one.

    Args:
        paths: The paths of the run.

    Returns:
        The checkpoint, or None if there is none without damage; the damage, or an empty text.
    """
    damage = ""
    for checkpoint in _all(paths):
        problem = checkpoint.damage(paths.metrics)
        if not problem and checkpoint.facts:
            return checkpoint, damage
        damage = damage or problem
    return None, damage


def crc32_of_records(metrics: Path, num_bytes: int) -> int | None:
    """Return the CRC-32 of the first `num_bytes` bytes of a run's records, or None if the file has
    fewer or cannot be read.
    """
    try:
        with metrics.open("rb") as file:
            content = file.read(num_bytes)
    except OSError:
        return None
    return zlib.crc32(content) if len(content) == num_bytes else None


def is_saving(paths: RunPaths) -> bool:
    """Return True if the run has an incomplete checkpoint, which counts as being written now.

    A run that resumes from a checkpoint removes those that an earlier attempt left incomplete.
    """
    return any(not checkpoint.facts for checkpoint in _all(paths))


def prune(paths: RunPaths) -> None:
    """Remove all checkpoints of a run except the latest two complete ones."""
    kept = {checkpoint.folder for checkpoint in checkpoints(paths)[:_NUM_KEPT]}
    for checkpoint in _all(paths):
        if checkpoint.folder not in kept:
            checkpoint.remove()


def keep_until(paths: RunPaths, checkpoint: Checkpoint) -> None:
    """Remove what a run wrote after the checkpoint from which it resumes: records, checkpoints, and
    files that the user's own program saved. Also remove the checkpoints that `prune` removes.
    """
    for other in _all(paths):
        if other.folder.name > checkpoint.folder.name:
            other.remove()
    prune(paths)
    facts = checkpoint.facts
    assert facts, checkpoint
    if paths.metrics.exists() and paths.metrics.stat().st_size > facts["metrics_bytes"]:
        os.truncate(paths.metrics, facts["metrics_bytes"])
    kept = {(checkpoint.folder / name).resolve() for name in facts["sha256"]}
    for path in sorted(paths.program.rglob("*"), reverse=True):  # files before their folders
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.resolve() not in kept:
            path.unlink()


def request_stop(paths: RunPaths) -> None:
    """Ask a run to stop, by its file `stop`: its workers save a checkpoint, if the run saves any,
    and end.

    A sweep that trains the run then ends, too.

    Raises:
        OSError: If the file `stop` cannot be written.
    """
    paths.stop.write_bytes(b"stop\n")


def is_stop_requested(paths: RunPaths) -> bool:
    # The file's content decides: a file system of several hosts may show a new name late, but an
    # opened file is up to date.
    try:
        return bool(paths.stop.read_bytes())
    except OSError:
        return False


def _all(paths: RunPaths) -> list[Checkpoint]:
    folders = paths.checkpoints.iterdir() if paths.checkpoints.is_dir() else ()
    return [Checkpoint(folder) for folder in sorted(folders, reverse=True) if folder.is_dir()]


def _crc32_of_facts(facts: Mapping[str, Any]) -> int:
    others = {key: value for key, value in facts.items() if key != "facts_crc32"}
    return zlib.crc32(json.dumps(others, sort_keys=True).encode())
