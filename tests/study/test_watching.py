"""A study that is read again and again while its runs change."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bsweep.cli import study_commands
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.locks import claimed
from bsweep.study.claims import claim_of_run
from bsweep.study.watching import Watched
from tests.runlog.test_readers import STEP
from tests.support.synthetic_study import write_run, write_study


def statuses(watched: Watched) -> dict[str, str]:
    return {row.run_id: row.state.status for row in watched.rows()}


def step(run: Path, epochs_done: float) -> None:
    """Append the record of a step to a run's records."""
    with RunLog(RunPaths(run).metrics) as log:
        log.write(replace(STEP, epochs_done=epochs_done))


def test_only_what_changed_is_news(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    run = write_run(study, local_batch=32, status=None, num_epochs_done=0)
    watched = Watched(study)
    first = watched.version
    assert len(watched.news(-1)["points"]) == 3
    assert not watched.look()
    assert watched.news(first)["points"] == []
    with claimed(claim_of_run(run)):
        step(run, 0.25)
        (run / "made").touch()  # as each attempt makes files
        assert watched.look()
        step(run, 0.5)
        assert watched.look()
        (point,) = watched.news(first)["points"]
        assert (point["run_id"], point["status"]) == (run.name, "running")
        assert point["epochs_done"] == 0.5
    assert watched.look()
    assert statuses(watched)[run.name] == "interrupted"


def test_runs_may_come_go_and_be_replaced(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    watched = Watched(study)
    run = write_run(study, local_batch=32)
    assert watched.look()
    assert statuses(watched)[run.name] == "completed"
    shutil.rmtree(run)
    assert watched.look()
    assert watched.news(0)["gone"] == [run.name]
    gone = study / "b8_w1_horovod_s0"
    gone.rename(tmp_path / "aside")
    write_run(study, local_batch=8, status="failed")
    assert watched.look()
    assert statuses(watched) == {"b8_w1_horovod_s0": "failed", "b16_w1_horovod_s0": "completed"}


def test_it_finds_what_a_first_look_finds(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    watched = Watched(study)
    write_run(study, local_batch=16, status="failed", message="no")
    damaged = write_run(study, local_batch=64)
    RunPaths(damaged).metrics.write_text("x")
    watched.look()
    assert {*watched.rows()} == {*Watched(study).rows()}


def test_status_watches_until_no_run_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    run = write_run(study, local_batch=32, status=None, num_epochs_done=0)
    claim = ExitStack()
    claim.enter_context(claimed(claim_of_run(run)))
    meanwhile = iter([lambda: step(run, 0.5), claim.close])
    monkeypatch.setattr("bsweep.cli.study_commands.time.sleep", lambda _: next(meanwhile)())
    assert study_commands.status([str(study), "--watch", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["counts"].get("running", 0) for one in told] == [1, 1, 0]
    assert {point["run_id"]: point["epochs_done"] for point in told[1]["points"]}[run.name] == 0.5


def test_a_study_that_is_removed_is_a_problem_until_it_is_back(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    watched = Watched(study)
    study.rename(tmp_path / "aside")
    assert watched.look()
    assert watched.news(-1)["problem"] == f"{study}: No such file or directory."
    (tmp_path / "aside").rename(study)
    assert watched.look()
    assert watched.news(-1)["problem"] == ""
