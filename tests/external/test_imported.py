"""A study is made of runs in another tool's table, and commands work on it as on any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bsweep
from bsweep.cli import main, predict, report, study_commands
from bsweep.runlog.reading import read_records, read_run

SAYS_SIZE = ("--set", "num_train=100")
CURVES = ("--map", "batch=local_batch", "acc=test_accuracy", "s=train_seconds")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def curve(run: str, batch: int, *more: tuple[str, Any], epochs: int = 3) -> list[dict[str, Any]]:
    return [
        {"run": run, "epoch": epoch, "batch": batch, "s": 2.5, "acc": epoch / 10, **dict(more)}
        for epoch in range(1, epochs + 1)
    ]


def import_to(folder: Path, source: Path | str, *more: str) -> list[list[dict[str, Any]]]:
    """Import a source, and return the records of the study's runs."""
    code = main.run(["import", str(source), "--study", str(folder / "mine"), *SAYS_SIZE, *more])
    assert code == 0
    return [list(read_records(path)[0]) for path in sorted(folder.glob("mine/*/metrics.jsonl"))]


def epochs_of(records: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    epochs = [record for record in records if record["type"] == "epoch"]
    return [tuple(epoch[name] for name in names) for epoch in epochs]


def test_rows_of_epochs_become_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*curve("a", 8, ("workers", 2), ("seed", 3)), *curve("b", 16, ("workers", 1))]
    source = write_csv(tmp_path / "runs.csv", [{"workers": 1, "seed": "", **row} for row in rows])
    for _ in range(2):
        one, other = import_to(tmp_path, source, *CURVES, "--map", "workers=num_workers")
    names = ("epoch", "num_steps", "train_seconds", "test_accuracy", "global_batch", "test_loss")
    assert epochs_of(other, *names)[2] == (3, 7, 2.5, 0.3, 16, None)
    assert epochs_of(one, *names)[0] == (1, 7, 2.5, 0.1, 16, None)
    said = capsys.readouterr().out.splitlines()
    assert sum("is there already, left as it is" in line for line in said) == 2
    assert said[-1] == f"bsweep report {tmp_path}/mine"
    run = read_run(next((tmp_path / "mine").glob("b8_w2_program_s3-*")))
    assert run.summary
    assert run.summary["status"] == "completed"
    assert run.meta["imported_run"] == "a"
    assert "bsweep did not measure this run" in run.summary["warnings"][0]


def test_equal_settings_are_seeds_and_those_of_another_table_further_ones(
    tmp_path: Path,
) -> None:
    for names in ("ab", "cba", "d"):
        rows = [row for name in names for row in curve(name, 8, ("acc", ord(name) / 200))]
        import_to(tmp_path, write_csv(tmp_path / "runs.csv", rows), *CURVES)
    study = bsweep.load(tmp_path / "mine")
    assert any("no seed is known" in one for one in study.warnings)
    runs = study.runs.set_index("seed")
    assert [round(200 * runs["test_accuracy"][seed]) for seed in range(4)] == [*b"abcd"]


def test_one_row_for_a_run_is_enough(tmp_path: Path) -> None:
    row = {"run": "a", "global_batch": 16, "num_workers": 2, "epochs": 4, "width": 32}
    source = write_csv(tmp_path / "r.csv", [{**row, "train_seconds": 10, "test_accuracy": 0.5}])
    (records,) = import_to(tmp_path, source, "--map", "width=options.width")
    names = ("train_seconds", "test_accuracy")
    assert epochs_of(records, *names) == [(2.5, None)] * 3 + [(2.5, 0.5)]
    assert records[0]["config"]["program"]["options"] == {"width": 32}
    assert records[0]["local_batch"] == 8
    assert any("divided evenly" in one["message"] for one in records if one["type"] == "event")


@pytest.mark.parametrize(
    ("since", "times", "seconds", "said"),
    [
        (1e9, (0, 3, 5), (2.5, 3, 2), "its first epoch has their median"),
        (0, (4, 7, 9), (4, 3, 2), "counts from the beginning of the run"),
        # A pause between two attempts is no training.
        (1.7e9, (5, 10, 15, 7215, 7220), (5, 5, 5, 5, 5), "1 pause of 7200 s"),
    ],
)
def test_times_of_records_give_the_seconds(
    tmp_path: Path, since: float, times: Sequence[float], seconds: Sequence[float], said: str
) -> None:
    rows = [{"e": e, "t": since + time, "test_loss": 1} for e, time in enumerate(times)]
    source = write_csv(tmp_path / "runs.csv", rows)
    words = ("--map", "e=epoch", "t=time", "--set", "local_batch=4")
    (records,) = import_to(tmp_path, source, *words)
    assert epochs_of(records, "train_seconds") == [(value,) for value in seconds]
    assert any(said in record["message"] for record in records if record["type"] == "event")


def test_an_infinite_loss_and_a_crash_are_results(tmp_path: Path) -> None:
    rows = [*curve("a", 8, ("loss", 1)), *curve("b", 16, ("loss", "nan"), ("status", "crashed"))]
    source = write_csv(tmp_path / "runs.csv", [{"status": "finished", **row} for row in rows])
    import_to(tmp_path, source, *CURVES, "--map", "loss=train_loss")
    runs = bsweep.load(tmp_path / "mine").runs.set_index("local_batch")
    assert list(runs["status"]) == ["completed", "diverged"]
    assert list(runs["epochs"]) == [3, 0]


def test_the_table_of_runs_of_weights_and_biases_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"Name": name, "State": state, "Runtime": seconds, "batch_size": batch, "val_acc": 0.75}
        for name, state, seconds, batch in (
            ("swift-sun-1", "finished", 12, 8),
            ("calm-sea-2", "killed", 30, 16),
            ("new-3", "running", 1, 8),
        )
    ]
    source = write_csv(tmp_path / "wandb_export.csv", rows)
    names = ("Name=run", "State=status", "Runtime=run_seconds", "batch_size=local_batch")
    words = ("--map", *names, "val_acc=test_accuracy", "--set", "epochs=2")
    calm, swift = import_to(tmp_path, source, *words)
    assert epochs_of(swift, "train_seconds", "test_accuracy") == [(6, None), (6, 0.75)]
    assert [records[-1]["status"] for records in (calm, swift)] == ["interrupted", "completed"]
    assert "new-3: left out, because it is still running" in capsys.readouterr().out


ROWS = "run,epoch,batch,s,acc\na,1,8,2,0.5\n"
NAMED = "Name,ID,State,bs,Runtime\nfine,x1,finished,32,9\nfine,x2,finished,32,8\n"
UNNAMED = "local_batch,acc\n8,0.5\n8,0.6\n"
TABLE = (
    *("--map", "Name=run", "State=status", "bs=local_batch", "Runtime=run_seconds"),
    *("--set", "epochs=1"),
)


@pytest.mark.full(but=7)
@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        (ROWS, ("--map", "batc=local_batch"), "no run has batc. Did you mean 'batch'? It has acc"),
        (ROWS, ("--map", "batch=local_bach"), "local_bach: unknown. Did you mean 'local_batch'?"),
        (ROWS, ("--map", "acc=test_accuracy"), "runs.csv:2: local_batch is missing"),
        (ROWS, ("--map", "batch=local_batch", "acc=test_accuracy"), "run a has no time of each e"),
        (ROWS.replace(",8,", ",0,"), CURVES, "runs.csv:2: local_batch=0 is not a whole number of"),
        (ROWS.replace("0.5", "50"), CURVES, "runs.csv:2: acc=50 is not a fraction"),
        (ROWS, ("--map", "batch=local_batch"), "run a is completed, but has no score and no time"),
        (ROWS, (*CURVES, "--set", "lr=-1"), "runs.csv:2: lr=-1 is impossible (lr)"),
        (ROWS + "a,3,8,2,0.5\n", CURVES, "runs.csv:3: epoch 3 follows epoch 1"),
        (ROWS + "a,2,16,2,0.5\n", CURVES, "runs.csv:3: batch=16, but it was 8 before in the same"),
        (ROWS + "b,1,8,2\n,,,,,,\n", CURVES, "runs.csv:4: the row has 7 values"),
        (ROWS + "b,1,8,2,0.5\n", (*CURVES, "--set", "seed=0"), "run b has the same settings and"),
        (UNNAMED, ("--map", "acc=test_accuracy"), "runs.csv:3: acc is there twice: name the col"),
        (NAMED[: NAMED.rindex("fine")].replace("finished", "running"), TABLE, "no run of it has"),
        (ROWS.replace(",", ";").replace("0.5", "0,5"), CURVES, "write a point for the comma"),
        (ROWS.replace("a,1", "caf\xe9,1").encode("latin-1"), CURVES, "the file is not UTF-8"),
        ('{"run": "a", "s": 1', (), "runs.jsonl:1: the line is not a JSON object"),
    ],
)
def test_bad_input_is_named_and_nothing_written(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    rows: str | bytes,
    words: tuple[str, ...],
    said: str,
) -> None:
    source = tmp_path / ("runs.jsonl" if rows[:1] == "{" else "runs.csv")
    source.write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    where = [str(source), "--study", str(tmp_path / "mine")]
    assert main.run(["import", *where, *SAYS_SIZE, *words]) == 2
    assert said in caplog.text
    assert not (tmp_path / "mine").exists()


def test_a_missing_file_and_size_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_csv(tmp_path / "runs.csv", curve("a", 8))
    for name, said in (
        ("runs.csv", "num_train is missing"),
        ("none.csv", "No such file"),
        ("", "give a table of CSV (.csv) or of lines of JSON (.jsonl)"),
    ):
        where = [str(tmp_path / name), "--study", str(tmp_path / "mine")]
        assert main.run(["import", *where, *CURVES]) == 2
        assert said in caplog.text


@pytest.mark.full
def test_commands_work_on_an_imported_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"batch": batch, "workers": workers, "epoch": epoch, "seed": seed}
        | {"s": 8 / workers * (1 + 8 / batch), "acc": 1 - 0.9 ** (100 * epoch / (batch + 20))}
        for batch in (4, 8, 16)
        for workers in (1, 2)
        for seed in (0, 1)
        for epoch in range(1, 9)
    ]
    source = write_csv(tmp_path / "runs.csv", rows)
    names = ("workers=num_workers", "--set", "num_test=50", "num_classes=10")
    assert len(import_to(tmp_path, source, *CURVES, *names)) == 12
    study = tmp_path / "mine"
    capsys.readouterr()
    assert study_commands.status([str(study)]) == 0
    assert capsys.readouterr().out == f"{study}: 12 points: 12 completed\n"
    assert predict.run([str(study), "--target-accuracy", "0.9"]) == 0
    assert "to a test accuracy of 0.9" in capsys.readouterr().out
    assert report.run([str(study)]) == 0
    assert "bsweep did not measure this run" in (study / "report/report.html").read_text()


def test_no_command_repeats_imported_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*curve("a", 8, ("status", "finished")), *curve("b", 16, ("status", "killed"))]
    import_to(tmp_path, write_csv(tmp_path / "runs.csv", rows), *CURVES)
    study = str(tmp_path / "mine")
    assert main.run(["resume", study]) == 0
    assert study_commands.status([study]) == 0
    said = capsys.readouterr().out
    assert "nothing is left to do: 1 completed, 1 interrupted" in said
    assert "again" not in said
    assert not caplog.records
    assert main.run(["retry", study, "--status", "interrupted"]) == 2
    assert "no point of a command has the state interrupted" in caplog.text
