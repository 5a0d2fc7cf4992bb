"""What a process without progress says of itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from bsweep.runlog import heartbeat


def next_sign(path: Path) -> str:
    before, ends = heartbeat.read_sign(path), time.monotonic() + 20
    while (sign := heartbeat.read_sign(path)) in (before, ""):
        assert time.monotonic() < ends
        time.sleep(0.001)
    return sign.split()[1]


def test_only_a_main_thread_in_an_exchange_is_said_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SIGN_SECONDS", 0.01)
    path = tmp_path / "standstill"
    assert heartbeat.read_sign(path) == ""
    leave = threading.Event()

    def other_thread() -> None:
        with heartbeat.waiting_for_others():
            leave.wait(20)

    with heartbeat.showing_standstill(path):
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert next_sign(path) == heartbeat.WORKS
        with heartbeat.waiting_for_others():
            with heartbeat.waiting_for_others():
                pass
            next_sign(path)  # which may have begun before
            assert next_sign(path) == heartbeat.WAITS
        next_sign(path)
        assert next_sign(path) == heartbeat.WORKS
    leave.set()
    thread.join()
