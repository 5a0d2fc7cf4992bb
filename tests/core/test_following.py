"""Files that are read while others append to them."""

from __future__ import annotations

from pathlib import Path

from bsweep.core.following import GrowingFile


def test_each_look_finds_the_new_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = GrowingFile(path)
    assert file.new_lines() == []
    with path.open("ab", buffering=0) as writer:
        writer.write(b"first\n\nthi")
        assert file.new_lines() == [b"first", b""]
        assert file.new_lines() == []
        writer.write(b"rd\n")
        assert file.new_lines() == [b"third"]


def test_a_cut_or_missing_file_is_told_once_and_then_reread(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = GrowingFile(path)
    path.write_bytes(b"a\nb\n")
    assert file.new_lines() == [b"a", b"b"]
    path.write_bytes(b"a\n")
    assert file.new_lines() is None
    assert file.new_lines() == [b"a"]
    path.write_bytes(b"c\nd\ne\n")
    assert file.new_lines() is None
    assert file.new_lines() == [b"c", b"d", b"e"]
    path.unlink()
    assert file.new_lines() is None
    assert file.new_lines() == []
