"""The client `bsweep.join()`, in this process: what it knows, times, reports and refuses, and when
workers agree to stop.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bsweep
from bsweep.external import agreement
from bsweep.external.agreement import Agreement
from bsweep.external.client import POINT, Run
from bsweep.external.loop import Facts, size_of
from bsweep.runlog.taken import Taken, read_taken

KNOWN = Facts(num_train=8)


def run_in(folder: Path, facts: Facts = KNOWN, **changed: Any) -> Run:
    """Return a joined program of a lone worker, with some values of its point changed, whose log
    folder is within a folder.
    """
    point = point_in(folder, **changed)
    return Run(point, facts, folder / f"rank.{point['rank']}")


def point_in(folder: Path, **changed: Any) -> dict[str, Any]:
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
        "scores": [],
        "num_train": None,
        **changed,
    }
    (folder / f"rank.{point['rank']}").mkdir(exist_ok=True)
    return point


def reports(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the reports of some kinds; of all if none is given."""
    lines = (folder / "rank.0/reports.jsonl").read_text().splitlines()
    return [report for report in map(json.loads, lines) if not kinds or report["kind"] in kinds]


def examples_by_epoch(folder: Path) -> list[list[int]]:
    """Return the examples of each step of each epoch."""
    epochs: list[list[int]] = []
    for report in reports(folder, "begin_epoch", "steps"):
        if report["kind"] == "begin_epoch":
            epochs.append([])
        else:
            epochs[-1] += report["examples"]
    return epochs


def by_epochs(run: Run) -> None:
    for _ in run.epochs():
        assert [*run.steps([[1, 2, 3, 4], [1, 2]])] == [[1, 2, 3, 4], [1, 2]]
        with run.step():
            pass
        with run.step(3):
            pass


def by_batches(run: Run) -> None:
    for _ in run.epochs():
        assert len([*run.steps([[0] * 2] * 5)]) == 5


def by_an_adapter(run: Run) -> None:
    for _ in run.epochs():
        assert len([*run.loop.steps([[0] * 2] * 5, lambda number: number == 2)]) == 5


def by_steps(run: Run) -> None:
    for _ in run.steps(itertools.cycle([[0] * 4, [0] * 4, [0] * 2])):
        pass
    assert run.should_stop


def while_it_should_not_stop(run: Run) -> None:
    while not run.should_stop:
        with run.step():
            pass


@pytest.mark.parametrize(
    ("program", "facts", "epochs", "examples"),
    [
        (by_epochs, Facts(), 2, [[4, 2, 4, 3]] * 2),
        (by_batches, Facts(accumulation_steps=2), 2, [[4, 4, 2]] * 2),
        (by_an_adapter, Facts(), 2, [[4, 4, 2]] * 2),
        (by_steps, Facts(num_train=10), 3, [[4, 4, 2]] * 3),
        # A pass ends with the step that takes its last example, and a step may take several passes.
        (while_it_should_not_stop, Facts(num_train=10), 2, [[4, 4, 4], [4, 4]]),
        (while_it_should_not_stop, Facts(num_train=3), 4, [[4]] * 3),
    ],
)
def test_steps_are_counted_by_epoch_or_pass(
    tmp_path: Path,
    program: Callable[[Run], None],
    facts: Facts,
    epochs: int,
    examples: list[list[int]],
) -> None:
    program(run_in(tmp_path, facts, epochs=epochs))
    assert examples_by_epoch(tmp_path) == examples
    numbers = [report["epoch"] for report in reports(tmp_path, "begin_epoch")]
    assert numbers == [*range(1, len(examples) + 1)]


def taken_by(folder: Path, rank: int = 0) -> list[Taken]:
    return read_taken(folder / f"rank.{rank}/taken")


def test_an_evaluation_after_the_last_step_of_a_pass_belongs_to_it(tmp_path: Path) -> None:
    run = run_in(tmp_path, Facts(num_train=12), epochs=3)
    for step, _ in enumerate(run.steps(itertools.repeat([0] * 4)), 1):
        if step % 3 == 0:
            run.evaluated(test_loss=1 / step)
    kinds = [report["kind"] for report in reports(tmp_path, "evaluated", "begin_epoch")]
    assert kinds == ["begin_epoch", "evaluated"] * 3
    assert reports(tmp_path, "stops")[0]["reason"] == "passes"


def test_ranks_that_cannot_agree_end_by_themselves(tmp_path: Path) -> None:
    run = other_rank(tmp_path, num_workers=2, global_batch=8)
    assert len([*run.steps(itertools.repeat([0] * 4))]) == 2


def other_rank(folder: Path, **changed: Any) -> Run:
    """Return the client of rank 1, for which rank 0 does not wait."""
    (folder / "rank.0").mkdir()
    (folder / "rank.0/meeting.json").write_text("[]")
    return run_in(folder, rank=1, **changed)


def test_other_ranks_count_and_report_nothing(tmp_path: Path) -> None:
    run = other_rank(tmp_path, first_epoch=2, epochs=3)
    for epoch in run.epochs():
        for number, _ in enumerate(run.steps([[0] * 4, [0] * 2]), 1):
            if epoch == 3:
                assert taken_by(tmp_path, 1)[2].num_begun == number
        run.evaluated(test_loss=1.0)
    assert taken_by(tmp_path, 1) == [Taken(), *[Taken(2, 2, 6, True)] * 2]
    assert taken_by(tmp_path) == []
    assert not (tmp_path / "rank.1/reports.jsonl").exists()


@pytest.mark.parametrize(
    ("ending", "num_steps"),
    [
        ("", 6),
        ("    if number == 5: break\n", 5),
        # The steps of a fork that ends are not the program's.
        ("    if number == 5 and os.fork() == 0: sys.exit()\n", 6),
    ],
)
def test_what_was_trained_is_reported_at_the_end_of_a_program(
    tmp_path: Path, ending: str, num_steps: int
) -> None:
    point = point_in(tmp_path)
    path = tmp_path / "rank.0/point.json"
    path.write_text(json.dumps(point))
    script = (
        "import os, sys, bsweep\n"
        "for number, _ in enumerate(bsweep.join(num_train=100).steps([[0] * 4] * 6)):\n"
        f"    pass\n{ending}"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, POINT: str(path)})
    assert examples_by_epoch(tmp_path) == [[4] * num_steps]


def test_steps_alone_need_the_number_of_examples_and_a_batch(tmp_path: Path) -> None:
    class Loader(list[list[int]]):
        dataset = range(8)

    with pytest.raises(ValueError, match=r"bsweep.join\(num_train=50000\)"):
        next(run_in(tmp_path, Facts()).steps([[0] * 4]))
    run = run_in(tmp_path, Facts())
    assert len([*run.steps(Loader([[0] * 4]))]) == 1
    with pytest.raises(ValueError, match=r"got no batch.*used up"):
        next(run.steps(iter(())))


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
    counts = [len(report.get("seconds", ())) for report in reports(tmp_path, "steps", "evaluated")]
    assert counts[-2:] == [0, 0]
    seconds = [seconds for report in reports(tmp_path, "steps") for seconds in report["seconds"]]
    assert len(seconds) == 3  # not the one that was left
    assert 0.01 <= seconds[2] < 0.1
    assert len(reports(tmp_path, "evaluated")) == 2


@pytest.mark.parametrize("name", ["steps", "step"])
def test_a_step_waits_for_its_result(tmp_path: Path, name: str) -> None:
    run = run_in(tmp_path, epochs=1)

    def finish() -> None:
        time.sleep(0.05)

    for _ in run.epochs():
        if name == "steps":
            assert len([*run.steps([[1, 2]], finish=finish)]) == 1
        else:
            with run.step(2, finish=finish):
                pass
    (report,) = reports(tmp_path, "steps")
    assert report["seconds"][0] >= 0.05
    assert report["examples"] == [2]


def test_tensorflow_is_told_where_all_workers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.delenv("TF_CONFIG")
    for rank in (0, 1):
        worker = {"rank": rank, "num_workers": 2, "address": f"127.0.0.1:{5000 + rank}"}
        point = point_in(tmp_path, launched_at=1.5, **worker)
        (tmp_path / f"rank.{rank}/point.json").write_text(json.dumps(point))
    monkeypatch.setenv(POINT, str(tmp_path / "rank.1/point.json"))
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
        ([1, 2, 3], None, 3),
        ([("one", "two", "three"), SimpleNamespace(shape=(3,))], None, 3),  # texts and labels
        ("text", None, None),
        (object(), 9, 9),
        ({"size": 8}, lambda batch: batch["size"], 8),
    ],
)
def test_the_examples_of_a_batch(batch: Any, examples: Any, size: int | None) -> None:
    assert size_of(batch, examples) == size


def test_values_are_averaged_by_the_function_that_is_given(tmp_path: Path) -> None:
    run_in(tmp_path).log(train_loss=3.0, reduce="mean", mean=lambda value: value / 2)
    assert reports(tmp_path, "log")[0]["values"] == {"train_loss": 1.5}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: run.log(train_loss=3.0, reduce="mean"), "with a function mean="),
        (lambda run: run.log(train_loss=3.0, reduce="sum"), 'use reduce="mean"'),
        (lambda run: run.log(loss=1.0), r"log\(loss=...\) is unknown: bsweep knows energy"),
        (lambda run: run.evaluated(test_accuracy=93.0), "divide a percentage by 100"),
        (lambda run: run.log(train_accuracy=93.0), r"log\(train_accuracy=93\) is not a fraction"),
        (lambda run: run.log(wait_seconds=-0.5), r"wait_seconds=-0.5\) is impossible"),
    ],
)
def test_impossible_values_are_refused(
    tmp_path: Path, call: Callable[[Run], None], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        call(run_in(tmp_path))


def test_a_program_that_nobody_started_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POINT, raising=False)
    with pytest.raises(RuntimeError, match="bsweep run program=own"):
        bsweep.join()


def decided(worker: Agreement, wish: str = "") -> str:
    return worker.decide(wish, worker.next_step, None, at_epoch_end=False)


def test_a_rank_that_never_comes_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "WAIT_SECONDS", 0.2)
    first = Agreement(0, 3, tmp_path / "meeting")
    with pytest.warns(UserWarning, match="2 workers do not use run.steps or run.epochs"):
        assert decided(first, "asked") == ""
    late = Agreement(1, 3, tmp_path / "meeting")
    assert decided(late) == ""
    assert late.next_step > 1_000_000


def test_a_worker_outlives_rank_0(tmp_path: Path) -> None:
    other = Agreement(1, 2, tmp_path / "meeting")
    with ThreadPoolExecutor() as threads:
        # Rank 0 is gone after its first decision.
        first = threads.submit(lambda: decided(Agreement(0, 2, tmp_path / "meeting")))
        assert [decided(other), first.result()] == ["", ""]
    assert decided(other) == ""
    assert other.has_given_up


def test_a_lone_worker_agrees_with_itself(tmp_path: Path) -> None:
    alone = Agreement(0, 1, tmp_path / "meeting")
    assert alone.decide("target", 3, 10, at_epoch_end=False) == "target"
    assert 3 < alone.next_step <= 10
