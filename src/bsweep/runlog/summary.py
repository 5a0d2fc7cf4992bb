"""The summary file of a run that has ended, and the check that the run's files are undamaged."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
    read_records,
    read_summary,
    read_told,
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
        records, _ = read_records(paths.metrics)
        if status == "completed":
            refuse_incomplete(records, paths.metrics)
        checksum = _crc32(paths)
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
        **{key: _last_score(records, key, last) for key in _SCORES},
        sent_bytes=None if not epochs or None in sent_bytes else sum(sent_bytes),
        **_final_scores(records),
        warnings=tuple(warnings_in(records)),
        metrics_crc32=checksum,
    )
    if checksum is not None:
        with paths.metrics.open("rb") as file:
            os.fsync(file.fileno())  # before the summary says that the records are whole
    write_json(paths.summary, {"schema": SCHEMA, **asdict(summary)})
    return status, message


_SCORES = ("test_loss", "test_accuracy")


def _last_score(
    records: Sequence[Mapping[str, Any]], name: str, last_epoch: Mapping[str, Any]
) -> float | None:
    """Return a score of the last evaluation that has it, whenever it was; without evaluations, that
    of the last epoch.
    """
    scores = (record[name] for record in reversed(records) if record["type"] == "evaluation")
    return next((score for score in scores if score is not None), last_epoch.get(name))


def _final_scores(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of the test set from the last record, if it is the run's end."""
    end = records[-1] if records and records[-1]["type"] == "end" else {}
    return {name: end.get(name) for name in ("final_test_loss", "final_test_accuracy")}


def ended(paths: RunPaths) -> Status | None:
    """Return the status of a run that has ended; None if the run has not ended or must be repeated.

    A run must be repeated if its files are damaged, so that reports cannot read it.

    Raises:
        Newer: If a newer bsweep wrote the run's files.
    """
    try:
        found = read_ended(paths)
    except Damaged:
        return None
    return found[0]["status"] if found else None


def read_ended(paths: RunPaths) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the contents of `summary.json` and `meta.json` of a run that has ended; None if the
    run has not ended.

    Raises:
        Damaged: As in `read_run`.
        Newer: As in `read_run`.
    """
    summary = read_summary(paths)
    if summary is None:
        return None
    if (summary.get("metrics_crc32"), summary["epochs"]) != _known_records(paths):
        return summary, read_told(paths.folder).meta
    return summary, read_meta(paths)


def _crc32(paths: RunPaths) -> int | None:
    content = content_of(paths.metrics)
    return None if content is None else zlib.crc32(content)


def _known_records(paths: RunPaths) -> tuple[int, int] | None:
    """Return the CRC-32 of a run's `metrics.jsonl` and the number of its epochs, None if there is
    no such file; read the file only if its size or its time has changed since an earlier call.

    A command that watches a study asks for it every few seconds.
    """
    metrics = paths.metrics
    try:
        status = metrics.stat()
    except OSError:
        return None
    # The cache hashes its arguments, and a string hashes faster than a Path.
    return _records_of(str(metrics), status.st_mtime_ns, status.st_size)


@functools.cache
def _records_of(path: str, mtime_ns: int, num_bytes: int) -> tuple[int, int]:
    content = content_of(Path(path)) or b""
    return zlib.crc32(content), content.count(b'"type": "epoch"}')
