"""What a process without progress says of itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from bsweep.runlog import waits


def next_sign(path: Path) -> str:
    before, ends = waits.sign_in(path), time.monotonic() + 20
    while (sign := waits.sign_in(path)) in (before, ""):
        assert time.monotonic() < ends
        time.sleep(0.001)
    return sign.split()[1]


def test_only_a_main_thread_in_an_exchange_is_said_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SIGN_SECONDS", 0.01)
    path = tmp_path / "waits"
    assert waits.sign_in(path) == ""
    leave = threading.Event()

    def other_thread() -> None:
        with waits.for_others():
            leave.wait(20)

    with waits.shown(path):
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert next_sign(path) == waits.WORKS
        with waits.for_others():
            with waits.for_others():
                pass
            next_sign(path)  # which may have begun before
            assert next_sign(path) == waits.WAITS
        next_sign(path)
        assert next_sign(path) == waits.WORKS
    leave.set()
    thread.join()
