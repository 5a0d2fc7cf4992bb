"""The end of a run, and whether what it left is whole."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bsweep.config import RunConfig
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.json_schemas import Summary
from bsweep.runlog.reading import (
    Damaged,
    lost_workers,
    numbered,
    read_meta,
    read_records,
    read_summary,
    read_told,
    warnings,
)
from bsweep.runlog.records import SCHEMA, Status


def write_summary(
    paths: RunPaths, config: RunConfig, status: Status, message: str, wall_seconds: float
) -> None:
    """End a run: its status and what its records come to, in one file that is the last to be
    written.
    """
    try:
        records, _ = read_records(paths.metrics)
        checksum = _crc32(paths)
    except Damaged as error:
        records, status, message = (), "failed", f"{message}\n{error}".strip()
        checksum = None  # which says that the records are sound
    epochs = numbered(records, "epoch")
    last = epochs[-1] if epochs else {}
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs) if epochs else None
    # The last may be a part.
    num_examples = sum(epoch["images_per_second"] * epoch["train_seconds"] for epoch in epochs)
    sent_bytes = [epoch["sent_bytes"] for epoch in epochs]
    summary = Summary(
        run_id=paths.folder.name,
        status=status,
        message=message,
        strategy=config.strategy.name,
        num_workers=config.num_workers,
        local_batch=config.examples_per_pass,
        global_batch=config.examples_per_step,
        seed=config.seed,
        epochs=len(epochs),
        num_steps=sum(epoch["num_steps"] for epoch in epochs),
        train_seconds=train_seconds,
        wall_seconds=wall_seconds,
        images_per_second=num_examples / train_seconds if train_seconds else None,
        train_loss=last.get("train_loss"),
        train_accuracy=last.get("train_accuracy"),
        test_loss=last.get("test_loss"),
        test_accuracy=last.get("test_accuracy"),
        sent_bytes=None if not epochs or None in sent_bytes else sum(sent_bytes),
        warnings=tuple(warnings(records)),
        lost_workers=lost_workers(records),
        metrics_crc32=checksum,
    )
    if paths.metrics.exists():
        with paths.metrics.open("rb") as file:
            os.fsync(file.fileno())  # before what says that it is whole
    write_json(paths.summary, {"schema": SCHEMA, **asdict(summary)})


def ended(paths: RunPaths) -> Status | None:
    """How a run ended; None where it has not, or where reports cannot read it: one that is damaged
    is to be repeated.

    Raises:
        Newer: a newer bsweep wrote it.
    """
    try:
        found = read_ended(paths)
    except Damaged:
        return None
    return found[0]["status"] if found else None


def read_ended(paths: RunPaths) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """How a run ended whose files are whole, and its surroundings; None where it has not ended.

    Raises:
        Damaged, Newer: as `read_run`.
    """
    summary = read_summary(paths)
    if summary is None:
        return None
    if (crc32 := summary.get("metrics_crc32")) is None or crc32 != _known_crc32(paths):
        return summary, read_told(paths.folder).meta
    return summary, read_meta(paths)


def _crc32(paths: RunPaths) -> int | None:
    return zlib.crc32(paths.metrics.read_bytes()) if paths.metrics.exists() else None


def _known_crc32(paths: RunPaths) -> int | None:
    """As `_crc32`, but read once as long as nobody writes: who watches a study asks every few
    seconds.
    """
    metrics = paths.metrics
    try:
        status = metrics.stat()
    except FileNotFoundError:
        return None
    # A path takes longer to hash.
    return _crc32_of(str(metrics), status.st_mtime_ns, status.st_size)


@functools.cache
def _crc32_of(path: str, mtime_ns: int, num_bytes: int) -> int:
    return zlib.crc32(Path(path).read_bytes())
