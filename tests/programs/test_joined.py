"""The client `bsweep.join()`, in this process: what it knows, times, reports and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bsweep
from bsweep.programs import joined
from bsweep.programs.joined import Facts, Run

SOURCE = Path(bsweep.__file__).parents[1]


def point_in(folder: Path) -> dict[str, Any]:
    """Return the point of a lone worker, whose reports are in the file `reports` of a folder."""
    return {
        "local_batch": 4,
        "global_batch": 4,
        "num_workers": 1,
        "rank": 0,
        "local_rank": 0,
        "seed": 7,
        "epochs": 2,
        "lr": 0.5,
        "options": {"width": 3},
        "checkpoint_folder": str(folder / "program"),
        "first_epoch": 1,
        "most_steps": None,
        "stop_file": str(folder / "stop"),
        "target": None,
        "stop_at_target": False,
        "scores": [],
        "reports": str(folder / "reports"),
        "meeting": str(folder / "meeting"),
    }


def run_in(folder: Path, **changed: Any) -> Run:
    """Return a joined program of that point, with some values changed."""
    (folder / "program").mkdir(exist_ok=True)
    return Run({**point_in(folder), **changed}, Facts(num_train=8))


def reports(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "reports").read_text().splitlines())
    return [report for report in found if report["kind"] == kind]


def test_the_client_needs_only_the_standard_library(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(SOURCE)!r}); import bsweep; "
        "print(bsweep.join().options['width'], 'torch' in sys.modules)"
    )
    point = tmp_path / "point.json"
    point.write_text(json.dumps(point_in(tmp_path)))
    command = [sys.executable, "-S", "-E", "-c", code]
    ran = subprocess.run(
        command, env={joined.POINT: str(point)}, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "3 False\n", ran.stderr


def _examples(folder: Path) -> list[int]:
    return [number for report in reports(folder, "steps") for number in report["examples"]]


def test_steps_are_timed_and_counted(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    batches = [[1, 2, 3, 4], [1, 2]]
    assert [epoch for epoch in run.epochs() if list(run.steps(batches))] == [1, 2]
    steps = reports(tmp_path, "steps")
    assert _examples(tmp_path) == [4, 2, 4, 2]
    assert all(seconds >= 0 for report in steps for seconds in report["seconds"])
    assert [report["epoch"] for report in reports(tmp_path, "end_epoch")] == [1, 2]


def test_a_step_counts_the_local_batch_if_nothing_is_said(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for _ in run.epochs():
        with run.step():
            pass
        with run.step(3):
            pass
    assert _examples(tmp_path) == [4, 3, 4, 3]


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


def test_the_program_is_asked_to_stop_by_the_stop_file(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    taken = 0
    for _ in run.epochs():
        for _ in run.steps([[0] * 4] * 1_000_000):
            taken += 1
            if taken == 5:
                (tmp_path / "stop").write_text("stop\n")
        assert run.should_stop
        assert run.checkpoint_folder.parent.name == "program"
    assert 5 <= taken < 1_000_000
    assert reports(tmp_path, "stops")[0]["reason"] == "asked"
    assert reports(tmp_path, "stops")[0]["cuts"]


def test_a_timed_program_stops_after_its_steps(tmp_path: Path) -> None:
    run = run_in(tmp_path, most_steps=10)
    taken = sum(len(list(run.steps([[0] * 4] * 4))) for _ in run.epochs())
    assert taken == 8  # fewer than asked for
    run = run_in(tmp_path, most_steps=10, epochs=9)
    assert sum(len(list(run.steps([[0] * 4] * 4))) for _ in run.epochs()) == 10


def test_the_target_ends_a_program_when_it_is_confirmed(tmp_path: Path) -> None:
    target = {"metric": "test_accuracy", "value": 0.9, "part": "test"}
    run = run_in(tmp_path, target=target, stop_at_target=True, epochs=9)
    trained = []
    for epoch in run.epochs():
        trained.append(epoch)
        run.evaluated(test_accuracy=0.95 if epoch > 1 else 0.5)
    assert trained == [1, 2, 3]


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


def test_a_fork_reports_nothing(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    if not (child := os.fork()):
        run.evaluated(test_loss=9.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert reports(tmp_path, "evaluated") == []
