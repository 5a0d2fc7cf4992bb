"""Reads what runs left, and holds it to what bsweep writes: whoever reads a study leaves a damaged
run out, by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from bsweep.runlog import measured
from bsweep.runlog import records as kinds
from bsweep.runlog.files import RunPaths
from bsweep.runlog.json_schemas import Meta, Summary
from bsweep.runlog.records import SCHEMA, adapter

REMEDY = "The same sweep repeats the run."
_TYPES: Mapping[str, type] = {
    kind.type: kind
    for kind in (
        kinds.Start,
        kinds.Step,
        kinds.Epoch,
        measured.Evaluation,
        measured.NoiseScale,
        kinds.Round,
        kinds.Event,
        kinds.End,
    )
}


class Damaged(ValueError):
    """A file of a run is not what bsweep writes there: a disk was full, the power went, somebody
    edited it.
    """


class Newer(ValueError):
    """A newer bsweep wrote it."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds. `summary` is None while it runs, or when it was killed with its
    launcher.
    """

    run_id: str
    folder: Path
    records: tuple[dict[str, Any], ...]
    summary: Mapping[str, Any] | None
    meta: Mapping[str, Any]
    warnings: tuple[str, ...] = field(default=())


def read_run(folder: Path, with_steps: bool = True) -> Run:
    """Read a run folder; without its `step` records, which are the most, where nobody asks for
    them.

    Raises:
        Damaged: a file other than the configuration is damaged, or files contradict each other.
        Newer: it was written by a newer schema.
    """
    paths = RunPaths(folder)
    summary = read_summary(paths)
    records, warning = read_records(paths.metrics, with_steps, (summary or {}).get("metrics_crc32"))
    if summary and summary["epochs"] != (found := len(numbered(records, "epoch"))):
        raise Damaged(
            f"{paths.metrics}: has {found} epochs, {paths.summary.name} says {summary['epochs']}. "
            f"{REMEDY}"
        )
    if (
        summary
        and summary["status"] == "completed"
        and not any(record["type"] == "start" for record in records)
    ):
        raise Damaged(f"{paths.metrics}: has no start record of a run that completed. {REMEDY}")
    return Run(
        run_id=folder.name,
        folder=folder,
        records=records,
        summary=summary,
        meta=read_meta(paths),
        warnings=(warning,) if warning else (),
    )


def read_told(folder: Path) -> Run:
    """As `read_run`, with what tables tell of a run: its `step` records only where its batch
    changed.
    """
    run = read_run(folder, with_steps=False)
    return read_run(folder) if changes_batch(run.records) else run


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None if there is no such file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}.") from None
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise Damaged(
            f"{path}: {'is empty' if not content else f'not JSON ({error})'}. {REMEDY}"
        ) from None
    if not isinstance(value, dict):
        raise Damaged(f"{path}: holds no object. {REMEDY}")
    return value


def read_summary(paths: RunPaths) -> dict[str, Any] | None:
    """How a run ended, or None while it has not; Damaged or Newer as `read_run`."""
    path = paths.summary
    summary = read_json(path)
    if summary is not None:
        _check_schema(summary, path)
        hold(summary, Summary, path)
    return summary


def read_meta(paths: RunPaths) -> dict[str, Any]:
    """What was known of a run's surroundings; Damaged as `read_run`."""
    path = paths.meta
    meta = read_json(path) or {}
    hold(meta, Meta, path)
    return meta


def read_records(
    path: Path, with_steps: bool = True, crc32: int | None = None
) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The records of a `metrics.jsonl` and, if its last line was torn, a sentence that says so.

    Args:
        path: The file, which need not be there.
        with_steps: Whether `step` records are wanted.
        crc32: Of the file as its run's summary has it. Records were sound when that was written, so
            that a file which still has it is not held to its schema again, which takes several
            times as long as to read it; None of records that were damaged.

    Raises:
        Damaged, Newer: the first line that is no record, by its number.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return (), None
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}.") from None
    *lines, torn = content.split(b"\n")  # b"" after the newline of the last whole record
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
    warning = f"{path.name}: left out a torn last line of {len(torn)} bytes." if torn else None
    return tuple(records), warning


def checked(line: bytes, place: str) -> dict[str, Any]:
    """The record of a line; Damaged or Newer, with the place, if it is none."""
    try:
        record = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise Damaged(f"{place}: damaged record: {error}. {REMEDY}") from None
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        raise Damaged(f"{place}: damaged record: {line[:40].decode(errors='replace')}. {REMEDY}")
    _check_schema(record, place)
    if schema := _TYPES.get(record["type"]):
        hold(record, schema, place)
    if schema is kinds.Event and record["event"] == "continued":
        hold(record, kinds.Continued, place)
    if schema is kinds.Event and record["event"] == "batch_changed":
        hold(record, kinds.BatchChanged, place)
    return record


def _check_schema(record: Mapping[str, Any], place: object) -> None:
    schema = record.get("schema")
    if type(schema) is not int or schema < 1:
        raise Damaged(f"{place}: schema={str(schema)[:40]}. {REMEDY}")
    if schema > SCHEMA:
        raise Newer(
            f"{place}: written with record schema {schema}, this bsweep reads up to {SCHEMA}. "
            "Update bsweep to read it."
        )


def hold(value: Mapping[str, Any], schema: type, place: object) -> None:
    """Damaged, with the place, if an object of a file is not of a schema."""
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


def numbered(
    records: Iterable[dict[str, Any]],
    kind: Literal["epoch", "round", "evaluation", "noise_scale", "step"],
    by: str = "",
) -> list[dict[str, Any]]:
    """The records of a kind in the order of their number, which is `by` or called as the kind is.

    Where a run was taken up again, the later record of a number stands for it.
    """
    kept: list[dict[str, Any]] = []
    number = by or kind
    for record in records:
        if record["type"] == kind:
            while kept and kept[-1][number] >= record[number]:
                kept.pop()
            kept.append(record)
    return kept


def changes_batch(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the batch changed while a run trained."""
    return any(record.get("event") == "batch_changed" for record in records)


_NO_WARNINGS = ("reallocated", "target_reached", "batch_changed")


def warnings(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """What events say, except that steps were shared out anew, which the rounds show, or that all
    went as it was to.
    """
    events = (record for record in records if record["type"] == "event")
    return [event["message"] for event in events if event["event"] not in _NO_WARNINGS]


def lost_workers(records: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """What is on record of each worker that a run lost, and went on or stopped without."""
    return tuple(
        one["message"]
        for one in records
        if one["type"] == "event" and one["event"] == "worker_lost"
    )
