"""A program of the user's own on several hosts, which scripts/hosts.sh emulates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import on, ran_ok, summaries

TRAIN = """\
import os, platform, bsweep
run = bsweep.join(num_train=64)
for epoch in run.epochs():
    for _ in run.steps([[0] * run.local_batch] * 4):
        pass
    run.evaluated(test_accuracy=0.9 if epoch > 1 else 0.1)
with open(f"rank{run.rank}", "w") as file:
    file.write(f"{platform.node()} {epoch} {run.should_stop} {os.environ['BSWEEP_ADDRESS']}")
"""


@pytest.mark.full
@pytest.mark.parametrize("launch", ["torchrun", "horovodrun"])
def test_a_program_on_two_hosts_ends_at_its_target_on_both(
    up: Callable[..., dict[str, str]], tmp_path: Path, launch: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    overrides = {**up("2"), "launch": launch, "num_workers": "2"}
    arguments = (
        *("run", "program=own", "program.command=python train.py", "local_batch=8", "study=s"),
        *("epochs=9", "target_accuracy=0.8", *(f"{key}={overrides[key]}" for key in overrides)),
    )
    ran_ok(*arguments, cwd=tmp_path, prefix=on("h1"))
    first, second = ((tmp_path / f"rank{rank}").read_text().split() for rank in (0, 1))
    assert first == ["h1", "3", "True", "10.213.7.1"]
    assert second[:3] == ["h2", "3", "True"]
    assert summaries(tmp_path)[8]["status"] == "completed"
