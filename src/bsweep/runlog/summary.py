"""The summary file of a run that has ended, and the check that the run's files are undamaged."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bsweep.config.run import RunConfig
from bsweep.core.words import excerpt
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.json_schemas import Summary
from bsweep.runlog.reading import (
    Damaged,
    content_of,
    numbered,
    read_meta,
    read_run,
    read_summary,
    records_in,
    refuse_incomplete,
    warnings_in,
)
from bsweep.runlog.records import SCHEMA, Status


def write_summary(
    paths: RunPaths, config: RunConfig, status: Status, message: str, wall_seconds: float | None
) -> tuple[Status, str]:
    """Write a run's `summary.json`: how the run ended, and the totals of its records.

    Returns:
        The status and the message in the file. They are the given ones, of a long message its
        first and last lines, unless the records are damaged, or a completed run's records are not
        complete. Then the status is `failed`, and the message also names the damage.
    """
    message = excerpt(message, paths.logs)
    try:
        content = content_of(paths.metrics)
        records, _ = records_in(content or b"", paths.metrics)
        if status == "completed":
            refuse_incomplete(records, paths.metrics)
        checksum = None if content is None else zlib.crc32(content)
    except Damaged as error:
        records, status, message = (), "failed", f"{message}\n{error}".strip()
        checksum = None  # A checksum would say that the records are sound.
    epochs = numbered(records, "epoch")
    last = epochs[-1] if epochs else {}
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs) if epochs else None
    # Epochs may differ in their number of examples: the last one may be incomplete.
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
        **{key: last.get(key) for key in ("train_loss", "train_accuracy")},
        **_last_scores(records, last),
        sent_bytes=None if not epochs or None in sent_bytes else sum(sent_bytes),
        warnings=tuple(warnings_in(records)),
        metrics_crc32=checksum,
    )
    if checksum is not None:
        with paths.metrics.open("rb") as file:
            os.fsync(file.fileno())  # before the summary says that the records are whole
    write_json(paths.summary, {"schema": SCHEMA, **asdict(summary)})
    return status, message


def _last_scores(
    records: Sequence[Mapping[str, Any]], last_epoch: Mapping[str, Any]
) -> dict[str, Any]:
    """Return each score of the last evaluation that has it, whenever it was, or else of the last
    epoch; and the scores of the test set, if the last record is the run's end.
    """
    scores = {name: last_epoch.get(name) for name in ("test_loss", "test_accuracy")}
    for record in records:
        if record["type"] == "evaluation":
            scores |= {name: record[name] for name in scores if record.get(name) is not None}
    end = records[-1] if records and records[-1]["type"] == "end" else {}
    return scores | {name: end.get(name) for name in ("final_test_loss", "final_test_accuracy")}


@dataclass(frozen=True)
class Ending:
    """The contents of a run's `summary.json` and `meta.json`.

    `summary` is None if the run has not ended. `damage` is a text on a damaged file: one of the
    two, which are None and empty then or, of a run that has ended, that of its records.
    """

    summary: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    damage: str = ""

    @property
    def status(self) -> Status | None:
        """The status of a run that has ended; None if the run has not ended or must be repeated,
        since its files are damaged and reports cannot read it.
        """
        return self.summary["status"] if self.summary and not self.damage else None


def read_ending(paths: RunPaths) -> Ending:
    """Return how a run has ended, and the facts about its start.

    Raises:
        Newer: If a newer bsweep wrote the run's files.
    """
    try:
        summary, meta = read_summary(paths), read_meta(paths)
    except Damaged as error:
        return Ending(damage=str(error))
    return Ending(summary, meta, damage_of_records(paths, summary) if summary else "")


def damage_of_records(paths: RunPaths, summary: Mapping[str, Any] | None) -> str:
    """Return a text that says how the records of a run are damaged or contradict its summary; empty
    if they are sound.

    The file of records is read only if its size or its time has changed since an earlier call: a
    command that watches a study asks for it every few seconds.
    """
    sums = None
    with suppress(OSError):
        status = paths.metrics.stat()
        # The cache hashes its arguments, and a string hashes faster than a Path.
        sums = _sums(str(paths.metrics), status.st_mtime_ns, status.st_size)
    if summary is None or (summary.get("metrics_crc32"), summary["epochs"]) != sums:
        try:
            read_run(paths.folder)
        except Damaged as error:
            return str(error)
    return ""


@functools.cache
def _sums(path: str, mtime_ns: int, num_bytes: int) -> tuple[int, int]:
    """Return the CRC-32 of a file of records, and the number of its epochs."""
    content = content_of(Path(path)) or b""
    return zlib.crc32(content), content.count(b'"type": "epoch"}')
