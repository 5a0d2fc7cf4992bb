"""How workers agree at which step to stop, as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsweep.programs import agreement
from bsweep.programs.agreement import Agreement


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Return what functions return that run in threads of their own."""
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=number, call=call: found.update({n: call()}))
        for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[number] for number in range(len(calls))]


def steps_of(rank: int, meeting: Path, stops_after: int) -> int:
    """Return the step at which a worker stops, of which rank 0 wishes it after a step."""
    agreed = Agreement(rank, 3, meeting)
    for step in range(100_000):
        if step >= agreed.next_step:
            wish = "asked" if rank == 0 and step >= stops_after else ""
            if agreed.decide(wish, step, None, at_epoch_end=False):
                return step
    return -1


def test_all_ranks_stop_at_the_step_that_rank_0_chooses(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    found = at_once(*(lambda rank=rank: steps_of(rank, meeting, 50) for rank in (2, 1, 0)))
    assert found[0] >= 50
    assert found == [found[0]] * 3


def test_a_rank_that_never_comes_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "_WAIT_SECONDS", 0.2)
    first = Agreement(0, 3, tmp_path / "meeting")
    with pytest.warns(UserWarning, match="workers do not use run.steps or run.epochs"):
        assert first.decide("asked", 0, None, at_epoch_end=False) == ""
    late = Agreement(1, 3, tmp_path / "meeting")
    assert late.decide("", 0, None, at_epoch_end=False) == ""
    assert late.next_step > 1_000_000


def test_a_worker_outlives_rank_0(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    first, other = Agreement(0, 2, meeting), Agreement(1, 2, meeting)
    decide = [
        lambda: first.decide("", 0, None, at_epoch_end=False),
        lambda: other.decide("", 0, None, at_epoch_end=False),
    ]
    assert at_once(*decide) == ["", ""]
    first._others[0].close()
    assert other.decide("", other.next_step, None, at_epoch_end=False) == ""


def test_a_lone_worker_agrees_with_itself(tmp_path: Path) -> None:
    alone = Agreement(0, 1, tmp_path / "meeting")
    assert alone.decide("target", 3, 10, at_epoch_end=False) == "target"
    assert 3 < alone.next_step <= 10
