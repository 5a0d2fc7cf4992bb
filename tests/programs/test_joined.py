"""The client `bsweep.join()`, in this process: what it knows, times, reports and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bsweep
from bsweep.programs import joined
from bsweep.programs.joined import Facts, Run
from bsweep.runlog.taken import Taken, read_taken


def run_in(folder: Path, **changed: Any) -> Run:
    """Return a joined program of a lone worker, with some values of its point changed, whose
    reports are in the file `reports` of a folder.
    """
    (folder / "program").mkdir(exist_ok=True)
    point = {
        "local_batch": 4,
        "global_batch": 4,
        "num_workers": 1,
        "rank": 0,
        "local_rank": 0,
        "seed": 7,
        "epochs": 2,
        "lr": 0.5,
        "options": {},
        "checkpoint_folder": str(folder / "program"),
        "first_epoch": 1,
        "most_steps": None,
        "stop_file": str(folder / "stop"),
        "target": None,
        "stop_at_target": False,
        "scores": [],
        "reports": str(folder / "reports"),
        "meeting": str(folder / "meeting"),
        "taken": str(folder / "taken"),
    }
    return Run({**point, **changed}, Facts(num_train=8))


def reports(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "reports").read_text().splitlines())
    return [report for report in found if report["kind"] == kind]


def test_a_step_counts_its_batch_or_the_local_batch(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for _ in run.epochs():
        assert [*run.steps([[1, 2, 3, 4], [1, 2]])] == [[1, 2, 3, 4], [1, 2]]
        with run.step():
            pass
        with run.step(3):
            pass
    taken = [number for report in reports(tmp_path, "steps") for number in report["examples"]]
    assert taken == [4, 2, 4, 3] * 2
    assert [report["epoch"] for report in reports(tmp_path, "end_epoch")] == [1, 2]


@pytest.mark.parametrize(
    ("batch", "examples", "size"),
    [
        (SimpleNamespace(shape=(5, 2)), None, 5),
        ((SimpleNamespace(shape=(5, 2)), [0]), None, 5),
        ({"image": SimpleNamespace(shape=(6,))}, None, 6),
        ([SimpleNamespace(shape=(7, 1)), 1], None, 7),
        ([1, 2, 3], None, 3),
        ("text", None, None),
        (SimpleNamespace(shape=()), None, None),
        (object(), 9, 9),
        ({"size": 8}, lambda batch: batch["size"], 8),
    ],
)
def test_the_examples_of_a_batch(batch: Any, examples: Any, size: int | None) -> None:
    assert joined.size_of(batch, examples) == size


def test_other_ranks_report_nothing(tmp_path: Path) -> None:
    (tmp_path / "meeting").write_text("{}")  # rank 0 does not wait
    run = run_in(tmp_path, rank=1)
    for _ in run.epochs():
        assert list(run.steps([[1]])) == [[1]]
        run.evaluated(test_loss=1.0)
    assert not (tmp_path / "reports").exists()


def test_values_are_averaged_by_the_function_that_is_given(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.log(train_loss=3.0, reduce="mean", mean=lambda value: value / 2)
    assert reports(tmp_path, "log")[0]["values"] == {"train_loss": 1.5}
    with pytest.raises(ValueError, match="needs a function mean="):
        run.log(train_loss=3.0, reduce="mean")
    with pytest.raises(ValueError, match='use reduce="mean"'):
        run.log(train_loss=3.0, reduce="sum")


def test_unknown_values_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with pytest.raises(ValueError, match=r"log\(loss=...\) is unknown: bsweep knows"):
        run.log(loss=1.0)
    with pytest.raises(ValueError, match="divide a percentage by 100"):
        run.evaluated(test_accuracy=93.0)


def test_a_program_that_nobody_started_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(joined.POINT, raising=False)
    with pytest.raises(RuntimeError, match="bsweep run program=own"):
        bsweep.join()


def test_what_a_rank_has_taken_is_counted_by_epoch(tmp_path: Path) -> None:
    run = run_in(tmp_path, rank=1, num_workers=1, first_epoch=2, epochs=3)
    for epoch in run.epochs():
        for number, _ in enumerate(run.steps([[0] * 4, [0] * 2]), 1):
            if epoch == 3:
                assert read_taken(tmp_path / "taken")[2].num_begun == number
    assert read_taken(tmp_path / "taken") == [Taken(), *[Taken(2, 2, 6, True)] * 2]
    assert read_taken(tmp_path / "none") == []
