"""Processes are ended with those below them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bsweep.core import signals
from tests.support.running import wait_for

PROGRAM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path("saved").touch()))
pathlib.Path("ready").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("asks_all", [True, False])
def test_a_program_below_a_shell_is_asked_before_it_is_killed(
    asks_all: bool, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["sh", "-c", f"{shlex.quote(sys.executable)} -S program.py; true"]
    shell = subprocess.Popen(words, cwd=tmp_path)
    wait_for((tmp_path / "ready").exists)
    signals.end([shell], 30, asks_all=asks_all)
    assert shell.poll() is not None
    assert (tmp_path / "saved").exists() == asks_all
