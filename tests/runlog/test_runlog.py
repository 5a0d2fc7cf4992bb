"""Records survive a kill at any byte, and readers say what they left out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import read_json, read_records, read_run
from bsweep.runlog.records import Event, Record
from bsweep.runlog.summary import read_ending, write_summary
from tests.runlog.test_readers import CHANGE, STEP
from tests.support.running import compose
from tests.support.synthetic_study import diloco, write_run


def write(path: Path, *messages: str) -> None:
    with RunLog(path) as log:
        for message in messages:
            log.write(Event(event="warning", message=message))


def messages(path: Path) -> list[str]:
    return [record["message"] for record in read_records(path)[0]]


def test_a_file_torn_at_any_byte_loses_its_last_record_only(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, "a", "b")
    whole = path.read_bytes()
    start_of_last = whole.index(b"\n") + 1
    for cut in range(start_of_last, len(whole)):
        path.write_bytes(whole[:cut])
        _, warning = read_records(path)
        assert messages(path) == ["a"]
        assert (warning is None) == (cut == start_of_last)
        assert warning is None or f" of {cut - start_of_last} byte" in warning
        write(path, "c")
        assert messages(path) == ["a", "c"]


def test_numbers_that_json_has_not_are_refused_by_the_writer(tmp_path: Path) -> None:
    with (
        RunLog(tmp_path / "m.jsonl") as log,
        pytest.raises(ValueError, match=r"not JSON compliant|Out of range"),
    ):
        log.write(Event(event="warning", message=float("nan")))  # type: ignore[arg-type]
    assert read_records(tmp_path / "m.jsonl") == ((), None)


def test_damaged_records_are_never_vouched_for(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths.metrics, "a")
    write_summary(paths, compose("local_batch=8"), "completed", "", 1.0)
    event = json.loads(paths.metrics.read_text())
    for bad in (
        {**event, "message": 5},
        {**event, "schema": 0},
        [event],
        5,
        {},
        {**event, "time": math.nan},
    ):
        paths.metrics.write_text(json.dumps(bad) + "\n")
        with pytest.raises(ValueError, match=r"metrics\.jsonl:1"):
            read_run(paths.folder)
        write_summary(paths, compose("local_batch=8"), "failed", "", 1.0)
        with pytest.raises(ValueError, match=r"metrics\.jsonl:1"):
            read_run(paths.folder)  # though nothing has changed since


@pytest.mark.parametrize("more", [(STEP,), (STEP, CHANGE)])
def test_records_that_are_vouched_for_are_read_as_others_are(
    tmp_path: Path, more: tuple[Record, ...]
) -> None:
    settings = diloco("uniform")
    run = write_run(
        tmp_path, local_batch=8, num_workers=4, settings=settings, num_rounds=2, more=more
    )
    paths = RunPaths(run)
    with paths.metrics.open("a") as file:
        file.write('{"schema": 1, "ty')
    write_summary(paths, compose("local_batch=8"), "timeout", "", 1.0)
    vouched = read_run(run)
    summary = json.loads(paths.summary.read_text())
    del summary["metrics_crc32"]
    write_json(paths.summary, summary)
    plain = read_run(run)
    assert vouched.records == plain.records
    # Tables need the steps only of a run whose batch size changed.
    assert any(record["type"] == "step" for record in plain.records) == (CHANGE in more)
    assert vouched.warnings == plain.warnings != ()


def test_a_summary_of_other_epochs_than_the_records_is_repeated(tmp_path: Path) -> None:
    paths = RunPaths(write_run(tmp_path / "s", local_batch=32))
    assert read_ending(paths).status == "completed"
    write_json(paths.summary, json.loads(paths.summary.read_text()) | {"epochs": 999})
    assert read_ending(paths).status is None


def test_a_run_that_never_started_has_a_summary_with_null_numbers(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_summary(paths, compose("local_batch=8", "num_workers=2"), "failed", "no luck", 3.5)
    summary = json.loads(paths.summary.read_text())
    told = ("status", "message", "wall_seconds", "local_batch", "global_batch", "num_workers")
    assert [summary[key] for key in told] == ["failed", "no luck", 3.5, 8, 16, 2]
    missing = ("train_seconds", "images_per_second", "train_loss", "test_accuracy", "sent_bytes")
    assert [summary[key] for key in missing] == [None] * 5


def test_a_name_that_is_not_utf_8_is_written_so_that_it_can_be_read(tmp_path: Path) -> None:
    name = b"caf\xe9 \xea\xb0\x80".decode("utf-8", "surrogateescape")
    with RunLog(tmp_path / "metrics.jsonl") as log:
        log.write(Event(event="warning", message=name))
    write_json(tmp_path / "meta.json", {"command": name})
    (record,), _ = read_records(tmp_path / "metrics.jsonl")
    meta = read_json(tmp_path / "meta.json")
    assert meta
    assert record["message"] == meta["command"] == r"caf\xe9 가"
