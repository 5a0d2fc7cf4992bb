"""Studies in which a file is missing its nature: a pipe, a folder, a device or a loop of links in
its place, or a name that nobody should see as it is.

One such run is one damaged row, and no command waits for it, ends at it, or passes a control
character on to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import bsweep as api
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError
from bsweep.core.following import GrowingFile
from bsweep.core.regular_files import read_regular
from bsweep.core.tensor_files import read_tensors
from bsweep.runlog.locks import claimed, is_claimed
from bsweep.study import states
from tests.support.running import TINY, Fork, bsweep
from tests.support.synthetic_study import write_run


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = (fifo, folder, loop, device)
FILES = ("metrics.jsonl", "summary.json", "meta.json", "config.yaml")
ODD = r"[Ii]t is not a regular file|Is a directory|Too many levels of symbolic links"
UNFINISHED = (
    (fifo, "stop"), (folder, "stop"), (loop, "checkpoint"), (fifo, "checkpoint"), (fifo, ".claim"),
    (device, "server.0.csv"), (fifo, "."), (loop, "."), (folder, "../.locks"), (fifo, "../.locks"),
)  # fmt: skip
"""What takes the place of which file of a run that has not ended."""
GRID = (
    "-m", "local_batch=8", "epochs=1", "launch=inline", "strategy=single",
    "launch.threads_per_worker=1", *TINY, "model=tiny_cnn", "study=s",
)  # fmt: skip


@pytest.mark.parametrize("make", KINDS)
def test_only_a_regular_file_is_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match=ODD):
        read_regular(path)
    with pytest.raises(OSError, match=ODD):
        GrowingFile(path).new_lines()
    with pytest.raises(ConfigError, match="file: "):
        read_config(path)
    assert read_tensors(path) is None
    assert not is_claimed(path)
    with pytest.raises(OSError, match=ODD), claimed(path):
        pass


def test_a_socket_is_no_regular_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="it is not a regular file"):
            read_regular(tmp_path / "socket")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", FILES[:3])
def test_an_odd_file_makes_one_damaged_row(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    write_run(tmp_path, local_batch=8)
    run = write_run(tmp_path, local_batch=16)
    (run / name).unlink()
    make(run / name)
    (tmp_path / "loop").symlink_to("loop")
    found = states.read_states(tmp_path)
    assert [state.status for state in found.values()] == ["damaged", "completed"]
    assert str(run / name) in found[run.name].message
    study = api.load(tmp_path)
    assert list(study.runs["local_batch"]) == [8]
    assert study.skipped.keys() == {run.name}


@pytest.mark.parametrize(
    ("name", "told", "impossible"),
    [
        ("metrics.jsonl", '"num_workers": 1,', '"num_workers": 2147483647,'),
        ("metrics.jsonl", '"name": "horovod"', '"name": "a\\u001b[31m"'),
        ("summary.json", '"num_workers": 1,', '"num_workers": 2147483647,'),
    ],
)
def test_records_keep_to_the_bounds_of_keys(
    name: str, told: str, impossible: str, tmp_path: Path
) -> None:
    write_run(tmp_path, local_batch=8)
    run = write_run(tmp_path, local_batch=16)
    text = (run / name).read_text()
    assert told in text
    (run / name).write_text(text.replace(told, impossible))
    assert api.load(tmp_path).skipped.keys() == {run.name}


def test_commands_go_on_beside_odd_files(tmp_path: Path) -> None:
    odd = [*((make, name) for make in KINDS for name in FILES), *UNFINISHED]
    grid = (f"seed={','.join(map(str, range(len(odd) + 1)))}", *GRID)
    first = bsweep("run", *grid, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    _, *runs = sorted((tmp_path / "results/s").glob("b8*"))
    locks = [run.parent / ".locks" / run.name for run in runs[-2:]]
    for run, (make, name) in zip(runs, odd, strict=True):
        if (make, name) in UNFINISHED:
            (run / "summary.json").unlink()
        place = run.parent / ".locks" / run.name if name == "../.locks" else run / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        make(place)
    for arguments in (["status", "results/s"], ["plan", *grid]):
        result = bsweep(*arguments, "--json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        # The settings of a completed run are in its records, so nobody reads its config.yaml.
        assert json.loads(result.stdout)["counts"] == {"damaged": 22, "completed": 5}
    resumed = bsweep("resume", "results/s", cwd=tmp_path)
    assert resumed.returncode == 1, resumed.stderr
    assert "Traceback" not in resumed.stderr
    assert resumed.stderr.count(": a point could not be run: ") == len(locks)
    for lock in locks:
        assert resumed.stderr.count(f".locks/{lock.name}") == 1
        lock.rmdir() if lock.is_dir() else lock.unlink()
    assert bsweep("resume", "results/s", cwd=tmp_path).returncode == 0
    after = json.loads(bsweep("status", "results/s", "--json", cwd=tmp_path).stdout)
    assert after["counts"] == {"completed": 27}


@pytest.mark.parametrize("make", KINDS)
def test_an_odd_file_of_commands_is_named_and_refused(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    write_run(tmp_path / "results/s", local_batch=8)
    make(tmp_path / "results/s/commands.jsonl")
    for command in (["status", "results/s"], ["run", "seed=0", *GRID]):
        result = bsweep(*command, cwd=tmp_path)
        assert result.returncode == 2 * (command[0] == "run"), result.stderr
        assert "commands.jsonl" in result.stderr
        assert "Traceback" not in result.stderr


EVIL = "evil\x1b[31m\r\x9b\u202e\x07"
NAMED = r"evil\u001b[31m\u000d\u009b\u202e\u0007"


def shown(*arguments: str, cwd: Path) -> str:
    """What a command shows on a terminal."""
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as terminal:
        process = Fork("bsweep", *arguments, cwd=cwd, stdout=terminal, stderr=terminal)
    text = b""
    with contextlib.suppress(OSError):  # the end, on Linux
        while part := os.read(ours, 4096):
            text += part
    os.close(ours)
    assert process.wait(60) == 0, text
    return text.decode().replace("\r\n", "\n")


def test_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=8)
    write_run(tmp_path / "s", local_batch=16, status="failed", message=EVIL, events=(EVIL,))
    run = write_run(tmp_path / "s", local_batch=32)
    run.rename(os.fsdecode(os.fsencode(run.with_name(EVIL)) + b"\xff"))
    write_run(tmp_path / "s", local_batch=64).joinpath("meta.json").write_text(f"[{EVIL!r}")
    for arguments in (["status", "s"], ["status", "s", "--json"], ["report", "s"]):
        text = shown(*arguments, cwd=tmp_path)
        assert [c for c in text if not (c.isprintable() or c in "\n\t")] == []
    assert r"failed: evil\u001b[31m" in shown("status", "s", cwd=tmp_path)
    pages = [path for path in (tmp_path / "s/report").iterdir() if path.suffix in TEXTS]
    assert len(pages) > 4
    for page in pages:
        text = page.read_text("utf-8")
        assert [c for c in text if not (c.isprintable() or c in "\n\t\xa0")] == [], page
    study = api.load(tmp_path / "s/report")
    assert rf"{NAMED}\xff" in list(study.runs["run_id"])
    assert study.runs.set_index("local_batch")["message"][16] == NAMED


TEXTS = (".html", ".csv", ".md", ".tex", ".svg")
