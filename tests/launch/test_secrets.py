"""What the parent's variables hold shows on no command line and stays in no file, and reaches
workers only by name.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bsweep.launch import environment
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed
from bsweep.study import claims
from tests.launch.test_hosts import seen_meanwhile
from tests.support.running import TINY, on, ran_ok

SECRET = "hunter2-in-plain-sight"
VARIABLES = {
    "SLACK": f"{SECRET}-a",
    "OPENAI": f"{SECRET}-b",
    "MINE_KEY_1": f"{SECRET}-c'\" $(id)\nd",
    "OMP_SCHEDULE": "dynamic",
    "HOROVOD_MINE": f"{SECRET}-e",
}
MODEL = """
import json, os
from torch import nn

def build(num_classes, shape):
    with open(f"seen.{os.getpid()}", "w") as file:
        json.dump({name: os.environ.get(name) for name in %r}, file)
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], num_classes))
"""


def command_lines_with_secret() -> Iterator[str]:
    """The command lines of all processes that have the secret in it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            if SECRET.encode() in line:
                yield line.decode(errors="replace")


@pytest.mark.full
@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="no /proc to read command lines from"
)
@pytest.mark.parametrize(
    ("strategy", "hosts"),
    [("horovod", ""), ("ddp", ""), ("horovod", "h1:1,h2:1"), ("ddp", "h1:1,h2:1")],
)
def test_a_secret_is_on_no_command_line_and_in_no_file(
    tmp_path: Path, request: pytest.FixtureRequest, strategy: str, hosts: str
) -> None:
    (tmp_path / "mine.py").write_text(MODEL % list(VARIABLES))
    own_model = ("model=own", "model.target=mine.py:build")
    small = ("local_batch=8", "epochs=1", "precision=fp32", "channels_last=true", *TINY)
    named = ("num_workers=2", f"strategy={strategy}", "launch.environment=[SLACK,MINE_KEY_1]")
    point = [*own_model, *small, *named, "study=s"]
    prefix: tuple[str, ...] = ()
    if hosts:
        up: Callable[..., dict[str, str]] = request.getfixturevalue("up")
        point += [f"{key}={value}" for key, value in up("2").items()]
        prefix = on("h1")
    with seen_meanwhile(command_lines_with_secret) as seen:
        ran_ok("run", *point, cwd=tmp_path, env=VARIABLES, prefix=prefix)
    assert not seen
    workers = [json.loads(path.read_text()) for path in tmp_path.glob("seen.*")]
    passed = {**VARIABLES, "OPENAI": None}
    assert sum(worker == passed for worker in workers) >= 2, (
        "what was named has reached both workers, as it is"
    )
    kept = [
        path
        for path in (tmp_path / "results").rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert not kept


def test_what_passes_secrets_is_its_owners_and_gone_when_all_have_read_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for rank in range(2):
        paths.rank_logs(rank).mkdir(parents=True)
    (paths.rank_logs(0) / "stdout").touch()
    environment.write(paths.environment, VARIABLES)
    assert paths.environment.stat().st_mode & 0o777 == 0o600
    environment.remove_when_read(paths, range(2))
    assert paths.environment.exists(), "rank 1 has not read it"
    for rank in range(2):
        (paths.rank_logs(rank) / "stdout").touch()
    environment.remove_when_read(paths, range(2))
    assert not paths.environment.exists()


def test_what_horovodrun_sets_outranks_what_the_file_holds(tmp_path: Path) -> None:
    """A variable that the user has exported for Horovod reaches workers, but changes no rank."""
    environment.write(tmp_path / "file", {"HOROVOD_RANK": "7"})
    words = ["sh", "-c", f". {tmp_path}/file; echo $HOROVOD_RANK"]
    assert subprocess.check_output(words, env={"HOROVOD_RANK": "1"}) == b"1\n"


def test_the_next_sweep_removes_unused_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    left, in_use = (RunPaths(tmp_path / name).environment for name in ("b8", "b16"))
    for path in (left, in_use):
        path.parent.mkdir()
        environment.write(path, VARIABLES)
    with claimed(claims.claim_of_run(in_use.parent)), claims.registered(tmp_path):
        pass
    assert not left.exists()
    assert in_use.exists()
