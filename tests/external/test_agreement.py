"""How workers agree at which step to stop, as threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bsweep.external import agreement
from bsweep.external.agreement import Agreement


def decided(worker: Agreement, wish: str = "") -> str:
    return worker.decide(wish, worker.next_step, None, at_epoch_end=False)


def stopping_step(rank: int, meeting: Path, stops_after: int) -> int:
    """Return the step at which a worker stops, of which rank 0 wishes it after a step."""
    worker = Agreement(rank, 3, meeting)
    for step in range(100_000):
        if step >= worker.next_step:
            wish = "asked" if rank == 0 and step >= stops_after else ""
            if worker.decide(wish, step, None, at_epoch_end=False):
                return step
    return -1


def test_all_ranks_stop_at_the_step_that_rank_0_chooses(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(
            lambda rank: stopping_step(rank, tmp_path / "meeting", 50), (2, 1, 0)
        )
    assert first >= 50
    assert others == [first] * 2


def test_a_rank_that_never_comes_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "WAIT_SECONDS", 0.2)
    first = Agreement(0, 3, tmp_path / "meeting")
    with pytest.warns(UserWarning, match="2 workers do not use run.steps or run.epochs"):
        assert decided(first, "asked") == ""
    late = Agreement(1, 3, tmp_path / "meeting")
    assert decided(late) == ""
    assert late.next_step > 1_000_000


def test_a_worker_outlives_rank_0(tmp_path: Path) -> None:
    other = Agreement(1, 2, tmp_path / "meeting")
    with ThreadPoolExecutor() as threads:
        # Rank 0 is gone after its first decision.
        first = threads.submit(lambda: decided(Agreement(0, 2, tmp_path / "meeting")))
        assert [decided(other), first.result()] == ["", ""]
    assert decided(other) == ""
    assert other.has_given_up


def test_a_lone_worker_agrees_with_itself(tmp_path: Path) -> None:
    alone = Agreement(0, 1, tmp_path / "meeting")
    assert alone.decide("target", 3, 10, at_epoch_end=False) == "target"
    assert 3 < alone.next_step <= 10
