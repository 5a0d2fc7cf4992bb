"""The client `bsweep.join()`, in this process: what it knows, times, reports and refuses."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bsweep
from bsweep.programs import joined
from bsweep.programs.joined import Facts, Run
from bsweep.runlog.taken import Taken, read_taken

KNOWN = Facts(num_train=8)


def run_in(folder: Path, facts: Facts = KNOWN, **changed: Any) -> Run:
    """Return a joined program of a lone worker, with some values of its point changed, whose
    reports are in the file `reports` of a folder.
    """
    return Run(point_in(folder, **changed), facts)


def point_in(folder: Path, **changed: Any) -> dict[str, Any]:
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
        "num_train": None,
    }
    return {**point, **changed}


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
    assert examples_of_steps(tmp_path) == [4, 2, 4, 3] * 2
    assert [report["epoch"] for report in reports(tmp_path, "begin_epoch")] == [1, 2]
    assert len(reports(tmp_path, "end_epoch")) == 2


def examples_of_steps(folder: Path) -> list[int]:
    return [number for report in reports(folder, "steps") for number in report["examples"]]


def test_a_program_by_steps_trains_passes_and_ends(tmp_path: Path) -> None:
    run = run_in(tmp_path, Facts(num_train=10), epochs=3)
    batches = itertools.cycle([[0] * 4, [0] * 4, [0] * 2])
    for step, _ in enumerate(run.steps(batches), 1):
        if step % 3 == 0:
            run.evaluated(test_loss=1 / step)
    assert (step, run.should_stop) == (9, True)
    kinds = [r["kind"] for r in map(json.loads, (tmp_path / "reports").read_text().splitlines())]
    # An evaluation after the last step of a pass belongs to it.
    assert kinds.index("evaluated") < kinds.index("end_epoch")
    assert kinds.count("begin_epoch") == 3
    assert read_taken(tmp_path / "taken") == [Taken(3, 3, 10)] * 3


def test_a_pass_ends_with_the_step_that_takes_its_last_example(tmp_path: Path) -> None:
    run = run_in(tmp_path, Facts(num_train=10), epochs=2)
    steps = 0
    while not run.should_stop:
        with run.step():
            steps += 1
    assert steps == 5  # 20 examples by 4: the third step belongs to the first pass
    assert [taken.num_steps for taken in read_taken(tmp_path / "taken")] == [3, 2]


def test_ranks_that_cannot_agree_end_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "meeting").write_text("{}")  # as rank 0 leaves it that has given up
    run = run_in(tmp_path, rank=1, num_workers=2, global_batch=8)
    assert len([*run.steps(itertools.repeat([0] * 4))]) == 2


def test_one_step_may_take_several_passes(tmp_path: Path) -> None:
    run = run_in(tmp_path, Facts(num_train=3), epochs=4)
    assert len([*run.steps(itertools.repeat([0] * 4))]) == 3
    assert reports(tmp_path, "stops")[0]["reason"] == "passes"


def test_what_was_trained_is_reported_at_the_end_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "point.json").write_text(json.dumps(point_in(tmp_path)))
    script = (
        "import bsweep\n"
        "for number, _ in enumerate(bsweep.join(num_train=100).steps([[0] * 4] * 9)):\n"
        "    if number == 5:\n"
        "        break\n"
    )
    env = {**os.environ, joined.POINT: str(tmp_path / "point.json")}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)
    assert examples_of_steps(tmp_path) == [4] * 5


def test_steps_alone_need_the_number_of_examples_and_a_batch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bsweep.join\(num_train=50000\)"):
        next(run_in(tmp_path, Facts()).steps([[0] * 4]))
    loader = SimpleNamespace(dataset=range(8), __iter__=None)
    run = run_in(tmp_path, Facts())
    run.see_data(loader)
    used_up = iter([[0] * 4])
    assert len([*run.steps(used_up)]) == 1
    with pytest.raises(ValueError, match=r"got no batch.*used up"):
        next(run.steps(used_up))


def test_a_step_takes_the_batches_that_it_accumulates(tmp_path: Path) -> None:
    run = run_in(tmp_path, Facts(num_train=8, accumulation_steps=2))
    for _ in run.epochs():
        assert len([*run.steps([[0] * 2] * 5)]) == 5
    assert examples_of_steps(tmp_path) == [4, 4, 2] * 2


def test_the_start_of_a_loader_is_time_of_the_epoch_and_not_of_a_step(tmp_path: Path) -> None:
    class Loader:
        def __iter__(self) -> Iterator[list[int]]:
            time.sleep(0.1)
            return iter([[0] * 4])

    run = run_in(tmp_path, epochs=1)
    for _ in run.epochs():
        assert len([*run.steps(Loader())]) == 1
    (report,) = reports(tmp_path, "steps")
    assert report["seconds"][0] < 0.1 <= report["start_seconds"]


def test_an_evaluation_within_a_step_comes_after_it_and_takes_no_time(tmp_path: Path) -> None:
    run = run_in(tmp_path, epochs=1)
    for _ in run.epochs():
        for step, _ in enumerate(run.steps([[0] * 4] * 4), 1):
            time.sleep(0.01)
            if step in (3, 4):
                run.evaluated(test_loss=1.0)
                time.sleep(0.2)
            if step == 4:
                break
    kinds = [
        (r["kind"], r) for r in map(json.loads, (tmp_path / "reports").read_text().splitlines())
    ]
    before = [report for kind, report in kinds if kind in ("steps", "evaluated")]
    assert [len(report.get("seconds", ())) for report in before][-2:] == [0, 0]
    seconds = [seconds for report in reports(tmp_path, "steps") for seconds in report["seconds"]]
    assert len(seconds) == 3  # not the one that was left
    assert 0.01 <= seconds[2] < 0.1
    assert len(reports(tmp_path, "evaluated")) == 2


def test_tensorflow_is_told_where_all_workers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.delenv("TF_CONFIG")
    paths = [tmp_path / f"point{rank}" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        point = point_in(tmp_path, rank=rank, launched_at=1.5, address=f"127.0.0.1:{5000 + rank}")
        point["points"] = [str(path) for path in paths]
        path.write_text(json.dumps(point))
    monkeypatch.setenv(joined.POINT, str(paths[1]))
    bsweep.join()
    assert json.loads(os.environ["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]},
        "task": {"type": "worker", "index": 1},
    }


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
    (tmp_path / "meeting").write_text("{}")  # rank 0 does not wait
    run = run_in(tmp_path, rank=1, num_workers=1, first_epoch=2, epochs=3)
    for epoch in run.epochs():
        for number, _ in enumerate(run.steps([[0] * 4, [0] * 2]), 1):
            if epoch == 3:
                assert read_taken(tmp_path / "taken")[2].num_begun == number
    assert read_taken(tmp_path / "taken") == [Taken(), *[Taken(2, 2, 6, True)] * 2]
    assert read_taken(tmp_path / "none") == []
