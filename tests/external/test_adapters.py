"""Callbacks of frameworks as epochs and steps."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from bsweep.external.adapters.calls import Calls
from tests.external.test_client import examples_by_epoch, reports, run_in
from tests.support.running import ran_ok, summaries


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
    assert examples_by_epoch(tmp_path) == [[7, 1], []]
    first, second = (
        seconds for report in reports(tmp_path, "steps") for seconds in report["seconds"]
    )
    assert first >= 0.02
    assert second < 0.2
    assert len(reports(tmp_path, "end_epoch")) == 2
    assert reports(tmp_path, "evaluated")[0]["values"] == {"test_loss": 1.5}


def test_a_program_of_jax_names_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = MagicMock()
    library.local_devices()[0].device_kind = "NVIDIA H200"
    for name in ("jax", "jax.experimental"):
        monkeypatch.setitem(sys.modules, name, library)
    from bsweep.external.adapters import jax

    jax.steps(run_in(tmp_path), [[1]], dict)
    assert reports(tmp_path, "facts")[-1]["facts"] == {"device": "NVIDIA H200"}


def test_callbacks_hear_when_to_stop(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path, most_steps=2))
    assert not calls.begin_epoch()
    # A framework may end only after the next step, which does not count.
    for is_over in (False, True, True):
        calls.add(4)
        assert calls.end_step() is is_over
    assert calls.begin_epoch()
    calls.evaluated({"val_loss": 1.5})
    calls.end()
    assert examples_by_epoch(tmp_path) == [[4, 4]]
    assert reports(tmp_path, "evaluated") == []


def test_what_comes_after_the_training_is_not_counted(tmp_path: Path) -> None:
    calls = Calls(run_in(tmp_path, epochs=1))
    assert not calls.begin_epoch()
    calls.add(4)
    calls.end_step()
    calls.run.evaluated(test_loss=2.0)  # by the program itself, though a step has begun
    assert calls.begin_epoch()  # an epoch too many
    calls.add(4)
    calls.end_step()
    calls.end()
    calls.evaluated({"val_loss": 1.0})  # of the best model, perhaps
    calls.begin_step()
    assert examples_by_epoch(tmp_path) == [[4]]
    kinds = [report["kind"] for report in reports(tmp_path, "evaluated", "end_epoch")]
    assert kinds == ["evaluated", "end_epoch"]
    assert reports(tmp_path, "evaluated")[0]["values"] == {"test_loss": 2.0}


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
    assert summaries(tmp_path)[4]["status"] == "completed"
