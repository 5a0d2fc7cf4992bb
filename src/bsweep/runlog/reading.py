"""The functions that read the files of runs and check them against their schemas.

A damaged file raises an error that names it, so that a reader of a study can leave out that run.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from bsweep.core.words import counted
from bsweep.runlog.files import RunPaths
from bsweep.runlog.json_schemas import Meta, Summary
from bsweep.runlog.records import SCHEMA, BatchChanged, Continued, Record, adapter

REMEDY = "The same sweep repeats the run."
_TYPES: Mapping[str, type] = {kind.type: kind for kind in get_args(Record)}
_EVENTS: Mapping[str, type] = {"continued": Continued, "batch_changed": BatchChanged}
NUMBERS: Mapping[str, str] = {
    "step": "step",
    "epoch": "epoch",
    "round": "round",
    "evaluation": "num_steps",
    "noise_scale": "num_steps",
}
"""The field that numbers the records of a kind; other kinds have no numbers."""


class Damaged(ValueError):
    """The error about a file of a run or a study that cannot be read, or whose content is not what
    bsweep writes.

    Likely causes are a full disk, a power cut, and an edit by hand.
    """


class Newer(ValueError):
    """The error about a file that a newer version of bsweep wrote."""


@dataclass(frozen=True)
class Run:
    """The records of a run, and the contents of its `summary.json` and `meta.json`.

    `summary` is None while the run trains, and after it was killed together with its launcher.
    """

    run_id: str
    folder: Path
    records: tuple[dict[str, Any], ...]
    summary: Mapping[str, Any] | None
    meta: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def read_run(folder: Path) -> Run:
    """Read a run's folder and return its records, its summary and the facts about its start.

    The `step` records, which are often the most, are left out unless the run's batch size changed,
    as tables need them only then.

    Raises:
        Damaged: If `metrics.jsonl`, `summary.json` or `meta.json` is damaged, or if the first two
            contradict each other.
        Newer: If a newer bsweep wrote a file.
    """
    paths = RunPaths(folder)
    summary = read_summary(paths)
    crc32 = (summary or {}).get("metrics_crc32")
    records, warning = read_records(paths.metrics, with_steps=False, crc32=crc32)
    if changes_batch(records):
        records, warning = read_records(paths.metrics, crc32=crc32)
    if summary and summary["epochs"] != (num_epochs := len(numbered(records, "epoch"))):
        raise Damaged(
            f"{paths.metrics}: the file has {num_epochs} epochs, but {paths.summary.name} says "
            f"{summary['epochs']}. {REMEDY}"
        )
    if summary and summary["status"] == "completed":
        refuse_incomplete(records, paths.metrics)
    else:
        refuse_repeated(records, paths.metrics)
    warnings = (warning,) if warning else ()
    return Run(folder.name, folder, records, summary, read_meta(paths), warnings)


def refuse_repeated(records: Iterable[Mapping[str, Any]], metrics: Path) -> None:
    """Raise Damaged unless the `epoch` records of a run are numbered 1, 2, 3 and so on, each number
    once.

    An epoch is on record twice if, for example, two processes trained the run at the same time.
    """
    epochs = (record["epoch"] for record in records if record["type"] == "epoch")
    for expected, epoch in enumerate(epochs, 1):
        if epoch < expected:
            raise Damaged(f"{metrics}: epoch {epoch} is on record twice. {REMEDY}")
        if epoch > expected:
            raise Damaged(f"{metrics}: epoch {expected} is not on record. {REMEDY}")


def refuse_incomplete(records: Sequence[Mapping[str, Any]], metrics: Path) -> None:
    """Raise Damaged unless the records of a completed run are complete: a start record, each epoch
    once, and as many epochs and steps as the end record says.
    """
    refuse_repeated(records, metrics)
    if not any(record["type"] == "start" for record in records):
        raise Damaged(f"{metrics}: the run completed, but the file has no start record. {REMEDY}")
    ends = [r for r in records if r["type"] == "end" and r["status"] == "completed"]
    if not ends:
        raise Damaged(f"{metrics}: the run completed, but the file has no end record. {REMEDY}")
    epochs = [record for record in records if record["type"] == "epoch"]
    totals = {"epochs": len(epochs), "num_steps": sum(epoch["num_steps"] for epoch in epochs)}
    for key, number in totals.items():
        if (wanted := ends[-1].get(key)) != number:
            raise Damaged(
                f"{metrics}: the epoch records add up to {key}={number}, but the end record says "
                f"{key}={wanted}. {REMEDY}"
            )


def content_of(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no such file.

    Raises:
        Damaged: If the file cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}. {REMEDY}") from None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None if there is no such file.

    Raises:
        Damaged: If the file cannot be read or does not hold a JSON object.
    """
    content = content_of(path)
    if content is None:
        return None
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise Damaged(
            f"{path}: {'is empty' if not content else f'not JSON ({error})'}. {REMEDY}"
        ) from None
    if not isinstance(value, dict):
        raise Damaged(f"{path}: it holds no JSON object. {REMEDY}")
    return value


def read_summary(paths: RunPaths) -> dict[str, Any] | None:
    """Return the content of a run's `summary.json`; None if there is no such file, as while the run
    trains.

    Raises:
        Damaged: As in `read_run`.
        Newer: As in `read_run`.
    """
    summary = read_json(paths.summary)
    if summary is not None:
        _check_schema(summary, paths.summary)
        hold(summary, Summary, paths.summary)
    return summary


def read_meta(paths: RunPaths) -> dict[str, Any]:
    """Return the content of a run's `meta.json`; it is empty if there is no such file.

    Raises:
        Damaged: As in `read_run`.
    """
    meta = read_json(paths.meta) or {}
    hold(meta, Meta, paths.meta)
    return meta


def read_records(
    path: Path, with_steps: bool = True, crc32: int | None = None
) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """Return the records of a `metrics.jsonl`, and a warning if the last line of the file is
    incomplete.

    Args:
        path: The file; it need not exist.
        with_steps: False to leave out `step` records.
        crc32: The checksum of the file in the run's summary; None if the summary has none. The
            records were sound when it was written. So a file that still has this checksum is not
            checked against the schema again: the check takes several times as long as reading.

    Raises:
        Damaged: If a line is not a valid record. The message names the first such line by number.
        Newer: If a newer bsweep wrote a line.
    """
    return records_in(content_of(path) or b"", path, with_steps, crc32)


def records_in(
    content: bytes, path: Path, with_steps: bool = True, crc32: int | None = None
) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """Return the records in the content of a `metrics.jsonl`; see `read_records`."""
    *lines, torn = content.split(b"\n")  # `torn` is b"" if the last record is whole.
    dropped = () if with_steps else b'"type": "step"}'
    if crc32 is not None and zlib.crc32(content) == crc32:
        wanted = b",".join([line for line in lines if not line.endswith(dropped)])
        records = orjson.loads(b"[" + wanted + b"]")
    else:
        records = [
            checked(line, f"{path}:{n}")
            for n, line in enumerate(lines, 1)
            if not line.endswith(dropped)
        ]
    size = counted(len(torn), "byte")
    warning = f"{path.name}: ignored an incomplete last line of {size}." if torn else None
    return tuple(records), warning


def starts(metrics: Path) -> list[dict[str, Any]]:
    """Return the `start` records that a run wrote itself. Records that a run copied from the run
    that it continues do not count.

    If the run began at a checkpoint of another run, its file begins with a copy of that run's
    records.
    """
    starts: list[dict[str, Any]] = []
    with suppress(ValueError, FileNotFoundError):  # Reports name a damaged run.
        for record in read_records(metrics, with_steps=False)[0]:
            if record["type"] == "start":
                starts.append(record)
            elif record["type"] == "event" and record["event"] == "continued":
                starts.clear()
    return starts


def checked(line: bytes, place: str) -> dict[str, Any]:
    """Return the record in a line of `metrics.jsonl`, after checking the record against its schema.

    Args:
        line: The line, without its newline.
        place: The file and line number, for messages.

    Raises:
        Damaged: If the line is not a valid record.
        Newer: If a newer bsweep wrote the line.
    """
    try:
        record = from_json(line, allow_inf_nan=False)
        json.loads(line, object_pairs_hook=_with_each_key_once, parse_int=_refuse_huge)
    except ValueError as error:
        raise Damaged(f"{place}: damaged record: {error}. {REMEDY}") from None
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        raise Damaged(f"{place}: damaged record: {line[:40].decode(errors='replace')}. {REMEDY}")
    _check_schema(record, place)
    if type(record.get("time")) not in (int, float):
        raise Damaged(f"{place}: time={str(record.get('time'))[:40]}. {REMEDY}")
    if schema := _TYPES.get(record["type"]):
        hold(record, schema, place)
    if record["type"] == "event" and (schema := _EVENTS.get(record["event"])):
        hold(record, schema, place)
    return record


def _refuse_huge(digits: str) -> None:
    """Raise ValueError if a whole number has more than 64 bits: tables and reports cannot hold it,
    even where a record may have any number.
    """
    if abs(int(digits)) >= 2**63:
        raise ValueError(f"the number {digits:.40} is too large")


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, given its keys and values; raise ValueError if a key is there twice."""
    if len(record := dict(pairs)) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r:.40} is there twice")
    return record


def _check_schema(record: Mapping[str, Any], place: object) -> None:
    schema = record.get("schema")
    if type(schema) is not int or schema < 1:
        raise Damaged(f"{place}: schema={str(schema)[:40]}. {REMEDY}")
    if schema > SCHEMA:
        raise Newer(
            f"{place}: it was written with record schema {schema}, but this bsweep reads schemas "
            f"up to {SCHEMA}. Update bsweep to read it."
        )


def hold(value: Mapping[str, Any], schema: type, place: object) -> None:
    """Raise Damaged if a JSON object does not fit a schema.

    The message names the file or line `place`.
    """
    try:
        adapter(schema).validate_json(to_json(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, given = (
            ".".join(map(str, first["loc"])),
            "" if first["type"] == "missing" else f"={first['input']!r:.40}",
        )
        raise Damaged(
            f"{place}: {key}{given}: {first['msg'][0].lower()}{first['msg'][1:]}. {REMEDY}"
        ) from None


def settled(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a run's records without those that were taken back when the run was resumed.

    A record with a number, such as that of its epoch, is left out if a later record of its kind has
    the same or a smaller number.

    Args:
        records: The records of a run, in the order of the file.
    """
    kept: list[dict[str, Any]] = []
    least: dict[str, float] = {}  # the least number of each kind among the later records
    for record in reversed(records):
        kind = record["type"]
        if kind in NUMBERS:
            number = record[NUMBERS[kind]]
            if number >= least.get(kind, math.inf):
                continue
            least[kind] = number
        kept.append(record)
    return kept[::-1]


def numbered(
    records: Iterable[dict[str, Any]],
    kind: Literal["epoch", "round", "evaluation", "noise_scale", "step"],
) -> list[dict[str, Any]]:
    """Return the `settled` records of one kind, such as `epoch`."""
    return settled([record for record in records if record["type"] == kind])


def changes_batch(records: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if, by its records, a run changed its batch size while it trained."""
    return any(record.get("event") == "batch_changed" for record in records)


_NO_WARNINGS = ("reallocated", "target_reached", "batch_changed")


def warnings_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the messages of a run's events, except of three kinds that are no warnings.

    The rounds already show that steps were reallocated, and a reached target and a changed batch
    size are expected.
    """
    events = (record for record in records if record["type"] == "event")
    return [event["message"] for event in events if event["event"] not in _NO_WARNINGS]
