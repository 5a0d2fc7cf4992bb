"""Callbacks of frameworks as epochs and steps, and steps that are computed later."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bsweep.programs.adapters.calls import Calls
from tests.programs.test_joined import reports, run_in
from tests.support.running import ran_ok


def test_a_step_takes_the_time_of_its_loading_alone(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path))
    assert not calls.begin_epoch()
    time.sleep(0.02)  # loads the first batch
    calls.add(3)
    calls.add(None)
    assert not calls.end_step()
    time.sleep(0.2)  # evaluates
    calls.evaluated({"val_loss": 1.5, "lr": 0.1})
    calls.begin_step()
    calls.add(1)
    calls.end_step()
    assert not calls.begin_epoch()
    calls.end()
    taken = reports(tmp_path, "steps")
    assert [size for report in taken for size in report["examples"]] == [7, 1]
    first, second = (seconds for report in taken for seconds in report["seconds"])
    assert first >= 0.02
    assert second < 0.2
    assert [report["epoch"] for report in reports(tmp_path, "begin_epoch")] == [1, 2]
    assert len(reports(tmp_path, "end_epoch")) == 2
    assert reports(tmp_path, "evaluated")[0]["values"] == {"test_loss": 1.5}


def test_callbacks_hear_when_to_stop(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path, most_steps=2))
    assert not calls.begin_epoch()
    calls.add(4)
    assert not calls.end_step()
    calls.add(4)
    assert calls.end_step()
    calls.add(4)  # a framework that ends only after the next step
    assert calls.end_step()
    assert calls.begin_epoch()
    calls.evaluated({"val_loss": 1.5})
    calls.end()
    taken = reports(tmp_path, "steps")
    assert sum(len(report["seconds"]) for report in taken) == 2
    assert reports(tmp_path, "evaluated") == []


def test_what_is_evaluated_after_the_training_is_no_score_of_it(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path, epochs=1))
    assert not calls.begin_epoch()
    calls.add(4)
    calls.end_step()
    calls.run.evaluated(test_loss=2.0)  # by the program itself, though a step has begun
    calls.end()
    calls.evaluated({"val_loss": 1.0})  # of the best model, perhaps
    calls.begin_step()
    assert [report["values"] for report in reports(tmp_path, "evaluated")] == [{"test_loss": 2.0}]
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "reports").read_text().splitlines()]
    assert kinds.index("evaluated") < kinds.index("end_epoch")


def test_an_epoch_beyond_the_last_is_not_counted(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path, epochs=1))
    calls.begin_epoch()
    calls.add(4)
    calls.end_step()
    assert calls.begin_epoch()
    calls.add(4)
    calls.end_step()
    calls.end()
    assert sum(len(report["seconds"]) for report in reports(tmp_path, "steps")) == 1


def test_an_adapter_says_which_batches_are_one_step(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for epoch in run.epochs():
        for _ in run.timed_steps([[0] * 2] * 5, lambda number: number == 2):
            pass
        run.evaluated(test_loss=1 / epoch)
    taken = [number for report in reports(tmp_path, "steps") for number in report["examples"]]
    assert taken == [4, 4, 2] * 2
    assert len(reports(tmp_path, "evaluated")) == 2


@pytest.mark.parametrize("way", ["steps", "step"])
def test_a_step_waits_for_its_result(tmp_path: Path, way: str) -> None:
    run = run_in(tmp_path, epochs=1)

    def finish() -> None:
        time.sleep(0.05)

    for _ in run.epochs():
        if way == "steps":
            for _ in run.steps([[1, 2]], finish=finish):
                pass
        else:
            with run.step(2, finish=finish):
                pass
    (report,) = reports(tmp_path, "steps")
    assert report["seconds"][0] >= 0.05
    assert report["examples"] == [2]


BARE = """\
import sys
import bsweep

run = bsweep.join(num_train=8)
for epoch in run.epochs():
    for batch in run.steps([[0] * run.local_batch, [0] * run.local_batch]):
        pass
    run.evaluated(test_loss=1.0)
foreign = {"torch", "numpy", "pydantic", "psutil", "hydra"} & set(sys.modules)
assert not foreign and sys.prefix.endswith("bare"), (foreign, sys.prefix)
"""


def test_an_interpreter_without_packages_takes_part(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    (tmp_path / "train.py").write_text(BARE)
    ran_ok(
        *("run", "program=own", "program.command='python train.py'", "local_batch=4", "study=s"),
        *("epochs=2", "launch=inline", f"program.python={tmp_path / 'bare/bin/python'}"),
        cwd=tmp_path,
    )
    (summary,) = tmp_path.glob("results/s/*/summary.json")
    assert json.loads(summary.read_text())["status"] == "completed"
