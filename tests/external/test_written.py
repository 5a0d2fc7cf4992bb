"""What a program writes by itself becomes the reports that the recorder takes."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.external.written import Report, Written
from tests.support.running import compose, ran_ok, summaries

NAMES = ("program.fields.train_loss=loss", "program.fields.test_accuracy=acc")


def point(folder: Path, metrics: str, *more: str) -> RunConfig:
    """A point of 10 examples in 3 steps, whose program writes `metrics`."""
    return compose(
        "program=own",
        "program.command=python",
        f"program.folder={folder}",
        f"program.metrics={metrics}",
        "data.num_train=10",
        "local_batch=4",
        "epochs=2",
        "launch=inline",
        *more,
    )


def write(path: Path, *rows: str, at: float | None = None) -> None:
    """Append rows to a file, and set when it was written."""
    with path.open("a") as file:
        file.write("".join(f"{row}\n" for row in rows))
    if at is not None:
        os.utime(path, (at, at))


def reports_of(kind: str, reports: list[Report]) -> list[Report]:
    return [report for report in reports if report["kind"] == kind]


def messages(reports: list[Report]) -> str:
    return "\n".join(report["message"] for report in reports_of("warning", reports))


def seconds(reports: list[Report]) -> list[Any]:
    """Return the training seconds of each epoch."""
    return [pytest.approx(report["seconds"], abs=1e-3) for report in reports_of("wall", reports)]


def values(kind: str, reports: list[Report]) -> list[tuple[float, ...]]:
    return [tuple(report["values"].values()) for report in reports_of(kind, reports)]


def test_each_epoch_has_its_seconds_and_scores(tmp_path: Path) -> None:
    log, now = tmp_path / "log.csv", time.time()
    written = Written(point(tmp_path, "csv:log.csv", *NAMES), 0)
    reports = []
    for seconds_later, row in ((5, "epoch,loss,acc"), (7, "0,2.5,0.5"), (10, "1,1.5,0.75")):
        write(log, row, at=now + seconds_later)
        reports += written.reports()
    assert len(reports_of("end_epoch", reports)) == 1  # the second one may get another row
    reports += written.end()
    assert seconds(reports) == [2, 3]
    assert values("log", reports) == [(2.5,), (1.5,)]
    assert values("evaluated", reports) == [(0.5,), (0.75,)]
    assert "wall times between the records of csv:log.csv" in messages(reports)


def test_rows_from_before_the_start_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write(log, "epoch,loss,acc", "1,9,0.1", "2,9,0.1")
    written = Written(point(tmp_path, "csv:log.csv", *NAMES), 0)
    assert written.reports() == []
    write(log, "1,2,0.5", "2,1,0.6")
    assert values("evaluated", written.end()) == [(0.5,), (0.6,)]


@pytest.mark.parametrize("rows", [("1,9,0.1", "2,9,0.1"), ("1,2,0.5", "2,1,0.6")])
def test_a_file_that_is_written_again_is_read(tmp_path: Path, rows: tuple[str, str]) -> None:
    """Even if the program writes the numbers of the earlier attempt once more."""
    log = tmp_path / "log.csv"
    write(log, "epoch,loss,acc", "1,9,0.1", "2,9,0.1", at=1e9)
    written = Written(point(tmp_path, "csv:log.csv", *NAMES), 0)
    log.write_text("")
    write(log, "epoch,loss,acc", *rows)
    assert len(reports_of("end_epoch", written.end())) == 2


def test_a_star_finds_the_file_that_is_new(tmp_path: Path) -> None:
    for version in (0, 1):
        folder = tmp_path / f"version_{version}"
        folder.mkdir()
        if version:
            written = Written(point(tmp_path, "csv:version_*/m.csv", *NAMES), 0)
        write(folder / "m.csv", "epoch,loss,acc", f"0,,0.{version}", "0,3,", f"1,2,0.{version}")
    assert values("evaluated", written.end()) == [(0.1,), (0.1,)]


def test_epochs_that_arrive_at_once_share_the_time(tmp_path: Path) -> None:
    log, now = tmp_path / "log.jsonl", time.time()
    written = Written(point(tmp_path, "jsonl:log.jsonl", *NAMES), 0)
    write(log, *(json.dumps({"loss": 1, "acc": share}) for share in (0.5, 0.6)), at=now + 8)
    reports = written.end()
    assert seconds(reports) == [pytest.approx(4, abs=0.5)] * 2
    assert "arrived at once" in messages(reports)


def test_times_and_seconds_of_the_records_count(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    names = ("program.fields.time=when", "program.fields.test_accuracy='acc%'")
    written = Written(point(tmp_path, "csv:log.csv", *names), 0)
    write(log, "epoch;when;acc", "1;3.5;50", "2;5.5;60")
    reports = written.end()
    assert seconds(reports) == [3.5, 2]
    assert values("evaluated", reports) == [(0.5,), (0.6,)]
    told = Written(point(tmp_path, "csv:told.csv"), 0)
    write(tmp_path / "told.csv", "epoch,train_seconds,test_accuracy", "1,7,0.5", "2,8,0.6")
    assert seconds(told.end()) == [7, 8]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["epoch,loss,acc"], "wrote nothing to csv:log.csv that is called .*loss, .*acc.*join()"),
        (["epoch,a", "1,2"], "wrote nothing .*only a, epoch"),
        (["epoch,loss,acc", "1,,0.5", "2,,0.5", "3,,0.5"], "more than 2 epochs .*{epochs}"),
        (["epoch,loss,acc", "0,,0.5", "2,,0.5"], "epoch 2 follows epoch 0"),
        (["epoch,loss,acc", "5,,0.5", "6,,0.5"], "epoch 5 is the first one.*fields.epoch"),
        (["epoch,loss,acc", "1,,93.5", "2,,94"], r"log.csv:2: acc=93.5 is not a fraction.*'acc%'"),
        (["epoch,loss,acc", "1,much,0.5"], "log.csv:2: loss=much is not a number"),
        (["epoch,loss,acc", "1,2,0.5,7"], r"log.csv:2: the row has 4 values.* 3 names"),
        (["loss,acc,time", "1,0.5,now"], "log.csv:2: time=now is not a number of seconds, nor"),
    ],
)
def test_bad_rows_are_named_with_the_remedy(tmp_path: Path, rows: list[str], said: str) -> None:
    written = Written(point(tmp_path, "csv:log.csv", *NAMES), 0)
    write(tmp_path / "log.csv", *rows)
    with pytest.raises(ValueError, match=said):
        written.end()


def test_a_field_that_never_comes_is_named(tmp_path: Path) -> None:
    written = Written(point(tmp_path, "csv:log.csv", "program.fields.test_accuracy=val_ac"), 0)
    write(tmp_path / "log.csv", "epoch,train_loss,val_acc", "1,2,0.5", "2,1,0.6")
    said = messages(written.end())
    assert re.search("test_accuracy=val_ac: .*Did you mean 'val_acc'?", said)


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    written = Written(point(tmp_path, "csv:log.csv", "epochs=4", *NAMES), 2)
    write(tmp_path / "log.csv", "epoch,loss,acc", "2,2,0.5", "3,1,0.6")
    assert [report["epoch"] for report in reports_of("begin_epoch", written.end())] == [3, 4]
    again = Written(point(tmp_path, "csv:again.csv", "epochs=4", *NAMES), 2)
    write(tmp_path / "again.csv", "epoch,loss,acc", "0,2,0.5", "1,1,0.6")
    with pytest.raises(ValueError, match=r"epoch 0 is the first one.*resumes after 2 epochs"):
        again.end()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("program.metrics=log.csv",), "Use csv:FILE or jsonl:FILE"),
        (("program.metrics='csv:{run}.csv'",), "{run} is not a key of the point. Did you mean"),
        (("program.metrics=csv:a.csv", "data.num_train=null"), "data.num_train=50000"),
        (("program.metrics=null", "program.fields.epoch=e"), "program.fields without program.metr"),
        (
            ("program.metrics=csv:a.csv", "launch=torchrun", "launch.parallel=2"),
            "launch.parallel: points would write the same file",
        ),
    ],
)
def test_settings_of_metrics_are_checked(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        point(tmp_path, "csv:log.csv", *words)


PROGRAM = """
import csv, sys, time
with open("log.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["epoch", "loss", "acc"])
    for epoch in range(int(sys.argv[1])):
        time.sleep(0.15)
        rows.writerow([epoch, 1.5, 0.5 + epoch / 100])
        file.flush()
"""


@pytest.fixture
def script(tmp_path: Path) -> tuple[str, ...]:
    """The words that start a script, which is written into a folder."""
    (tmp_path / "train.py").write_text(PROGRAM)
    metrics = ("program.metrics=csv:log.csv", "data.num_train=10", *NAMES)
    return ("run", "program=own", *metrics, "launch=inline", "study=s")


def test_a_script_is_recorded_without_a_change(tmp_path: Path, script: tuple[str, ...]) -> None:
    command = "program.command='python train.py {epochs}'"
    ran_ok(*script, command, "local_batch=4,5", "epochs=2", cwd=tmp_path)
    for summary in summaries(tmp_path).values():
        assert summary["test_accuracy"] == 0.51
        assert 0.2 < summary["train_seconds"] < 20
        assert "wall times between the records" in summary["warnings"][0]
    assert summaries(tmp_path).keys() == {4, 5}


def test_a_script_that_goes_on_ends_at_the_target(tmp_path: Path, script: tuple[str, ...]) -> None:
    words = ("program.command='python train.py 1000'", "epochs=1000", "target_accuracy=0.52")
    ran_ok(*script, *words, "local_batch=4", cwd=tmp_path)
    assert summaries(tmp_path)[4]["epochs"] < 100
    with (tmp_path / "log.csv").open() as file:
        assert len(list(csv.reader(file))) < 100
