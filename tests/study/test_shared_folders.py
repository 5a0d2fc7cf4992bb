"""Studies in folders that others can write to: the modes of files, and what `bsweep resume` runs."""

from __future__ import annotations

from pathlib import Path

from bsweep.runlog.checkpoint_files import checkpoint_at
from bsweep.runlog.files import RunPaths
from bsweep.study import branching
from tests.support.running import compose


def test_a_branch_has_the_modes_of_the_umask_not_of_its_source(tmp_path: Path) -> None:
    source, branch = RunPaths(tmp_path / "source"), RunPaths(tmp_path / "branch")
    saved = checkpoint_at(source, epoch=1, position=8)
    saved.folder.mkdir(parents=True)
    (saved.folder / "shared.pt").touch(mode=0o600)
    saved.folder.chmod(0o700)
    source.metrics.touch()
    facts = {"epoch": 1, "position": 8, "num_steps": 1, "members": [0], "num_workers": 1}
    saved.complete({**facts, "metrics_bytes": 0, "train_seconds": 0.5, "time": 0})
    branch.folder.mkdir()
    branching.begin(compose("local_batch=2", f"resume_from={source.folder}"), branch)
    (copied,) = branch.checkpoints.iterdir()
    assert copied.stat().st_mode == branch.folder.stat().st_mode
    assert (copied / "shared.pt").stat().st_mode == branch.metrics.stat().st_mode
