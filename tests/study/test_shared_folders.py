"""Studies in folders that others can write to: modes of files, and what `bsweep resume` runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsweep.compose import hydra_grid, words
from bsweep.runlog.files import RunPaths
from bsweep.study import branching, history
from tests.support.running import TINY, bsweep, compose
from tests.support.saved import save_checkpoint

MODEL = """\
import os, torch

def build(num_classes, shape):
    with open("ran", "a") as file:
        file.write(os.environ.get("PYTHONSAFEPATH", "another") + " ")
    size = shape[0] * shape[1] * shape[2]
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, num_classes))
"""
ALONE = ("launch=inline", "strategy=single", "launch.threads_per_worker=1")
OWN = ("model=own", "model.target=mine.py:build")
POINT = (*ALONE, "local_batch=8", "epochs=1", "study=s", *OWN, *TINY)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of one point that is not begun, whose model's code others can reach, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "theirs.py").write_text("open('theirs ran', 'w').close()\n" + MODEL)
    folder = tmp_path / "results/s"
    folder.mkdir(parents=True)
    history.record(folder, POINT, hydra_grid.composed(words.read(POINT)))
    return folder


def resumed(study: Path, *arguments: str) -> tuple[int, str]:
    """Resume a study after somebody has changed the arguments of its command; return the exit code
    and what it said.
    """
    file = study / "commands.jsonl"
    file.write_text(json.dumps({**json.loads(file.read_text()), "arguments": arguments}) + "\n")
    result = bsweep("resume", str(study), cwd=study.parent)
    return result.returncode, result.stderr


def test_resume_imports_nothing_of_a_command_for_other_points(study: Path) -> None:
    theirs = [word.replace("mine.py", "theirs.py") for word in POINT]
    code, said = resumed(study, *theirs)
    assert not (study.parents[1] / "theirs ran").exists()
    assert code == 1
    assert "recorded commands no longer give 1 of its points" in said
    code, said = resumed(study, *POINT, "+hydra.callbacks.x._target_=theirs.Callback")
    assert code == 2
    assert "without Hydra's key hydra.callbacks" in said
    assert "no longer give" not in said, "the error above is the reason"
    code, said = resumed(study, "-m", *POINT, "model.target=theirs.py:build,mine.py:build")
    assert code == 0, said
    assert not (study.parents[1] / "theirs ran").exists()
    assert {*(study.parents[1] / "ran").read_text().split()} == {"1"}, "no process looked in `.`"
    assert len(list(study.glob("*/summary.json"))) == 1


def test_a_point_of_a_command_that_is_wrong_by_now_is_run_by_another(study: Path) -> None:
    file = study / "commands.jsonl"
    line = json.loads(file.read_text())
    wrong = {**line, "arguments": [*POINT, "+experiment=removed"]}
    file.write_text(f"{json.dumps(wrong)}\n{json.dumps(line)}\n")
    result = bsweep("resume", str(study), cwd=study.parent)
    assert "removed" in result.stderr
    assert len(list(study.glob("*/summary.json"))) == 1
    assert result.returncode == 2
    assert "no longer give" not in result.stderr


def test_a_branch_has_the_modes_of_the_umask_not_of_its_source(tmp_path: Path) -> None:
    source, branch = RunPaths(tmp_path / "source"), RunPaths(tmp_path / "branch")
    saved = save_checkpoint(source)
    (saved.folder / "shared.pt").touch(mode=0o600)
    saved.folder.chmod(0o700)
    source.metrics.touch()
    branch.folder.mkdir()
    branching.begin(compose("local_batch=2", f"resume_from={source.folder}"), branch)
    (copied,) = branch.checkpoints.iterdir()
    assert copied.stat().st_mode == branch.folder.stat().st_mode
    assert (copied / "shared.pt").stat().st_mode == branch.metrics.stat().st_mode
