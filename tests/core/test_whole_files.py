"""Files that are replaced whole, or stay as they were."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from bsweep.core import tensor_files
from bsweep.core.whole_files import explained, replacing, write_whole


def write_half(path: Path, *, is_only_writer: bool) -> None:
    with replacing(path, is_only_writer=is_only_writer) as file:
        file.write(b"half")
        file.flush()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_only_writer", [False, True])
def test_what_breaks_off_leaves_the_file_as_it_was(tmp_path: Path, is_only_writer: bool) -> None:
    path = tmp_path / "file"
    write_whole(path, b"first")
    with pytest.raises(KeyboardInterrupt):
        write_half(path, is_only_writer=is_only_writer)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_see_each_others_halves(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as one, replacing(path) as other:
        other.write(b"other")
        one.write(b"one")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_an_only_writer_writes_over_what_a_kill_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    if not (child := os.fork()):
        with replacing(path, is_only_writer=True) as file:
            file.write(b"longer than what comes after")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert [left.name for left in tmp_path.iterdir()] == [".file.tmp"]
    with replacing(path, is_only_writer=True) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "file"
    with pytest.raises(OSError, match=f"no space left for {path}. Free some space there, or give"):
        write_whole(path, b"content")
    with pytest.raises(OSError, match="No space left on device"):
        tensor_files.write_tensors({"a": 1}, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("user", "said"), [(4242, "belongs to the user"), (None, "[Errno 13]")])
def test_a_folder_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int | None, said: str
) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own if user is None else user)
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "results/s"))
    text = explained(error, tmp_path, "give another one")
    assert said in text
    assert str(tmp_path) in text
    assert ("or give another one" in text) == (user is not None)
