"""Processes that do one thing, what a failure leaves behind in others, and who trains in which."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
import torch

from bsweep.config.run import RunConfig
from bsweep.core import fresh_process, memory
from bsweep.launch import failure, inline
from bsweep.launch.launcher import LaunchRequest
from bsweep.launch.outcome import Outcome
from bsweep.numerics.graphs import BrokenCapture
from bsweep.runlog.errors import spoils_process
from bsweep.runlog.files import RunPaths
from bsweep.train import graph_capture
from tests.support.running import TINY, compose

_calls: list[int] = []


@pytest.fixture(autouse=True, scope="module")
def _no_servers_left() -> Iterator[None]:
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _count() -> int:
    _calls.append(1)
    return len(_calls)


def _fail(kind: str) -> None:
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "unknown":
        raise torch.OutOfMemoryError("on a GPU")
    raise ValueError("seven")


def _convolve(without_room: bool) -> None:
    """A convolution whose kernels are compiled."""
    torch.set_num_threads(1)
    inputs, weights = torch.ones(4, 16, 9, 9), torch.ones(8, 16, 3, 3)
    with memory.limited(0.05 if without_room else None):
        torch.nn.functional.conv2d(inputs, weights)


def test_each_call_has_a_process_of_its_own() -> None:
    assert [fresh_process.call(_count), fresh_process.call(_count), len(_calls)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("value", ValueError, "^seven$"),
        ("unknown", RuntimeError, "OutOfMemoryError: on a GPU"),
        ("crash", MemoryError, "SIGSEGV"),
        ("killed", RuntimeError, "exit code -9"),
    ],
)
def test_what_ends_the_process_is_raised(kind: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fresh_process.call(_fail, kind)


def test_what_fails_for_want_of_memory_works_in_the_next_process() -> None:
    # An error or a crash; and on some processors there is room enough.
    with suppress(MemoryError, RuntimeError):
        fresh_process.call(_convolve, True)
    fresh_process.call(_convolve, False)


def test_a_process_is_spoilt_by_what_a_cpu_has_no_room_for() -> None:
    assert spoils_process(MemoryError())
    assert spoils_process(RuntimeError("could not create a primitive"))
    assert not spoils_process(torch.OutOfMemoryError("CUDA out of memory"))
    assert not spoils_process(ValueError("seven"))


def test_inline_uses_a_fresh_process_under_a_limit_or_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object) -> None:
        raise MemoryError("here")

    def call(*_: object, **__: object) -> None:
        raise ValueError("there")

    monkeypatch.setattr(inline, "_train", train)
    monkeypatch.setattr(fresh_process, "call", call)
    lone = (*TINY, "local_batch=8", "num_workers=1", "launch=inline", "strategy=single")
    plain, limited = compose(*lone), compose(*lone, "launch.memory_limit_mb=[64]")

    launcher = inline.Inline()

    def outcome(config: RunConfig) -> Outcome:
        return launcher.launch(LaunchRequest(config, RunPaths(tmp_path), lambda: None))

    assert outcome(limited) == Outcome("failed", "ValueError: there")
    assert outcome(plain) == Outcome("out_of_memory", "MemoryError: here")
    assert outcome(plain) == Outcome("failed", "ValueError: there")


def test_inline_frees_a_gpus_memory_after_a_point_or_says_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []

    def train(*_: object) -> None:
        raise ValueError("its own")

    monkeypatch.setattr(inline, "_train", train)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(memory, "give_back_garbage", lambda: freed.append(1))
    point = compose(*TINY, "local_batch=8", "num_workers=1", "launch=inline", "strategy=single")
    request, launcher = LaunchRequest(point, RunPaths(tmp_path), lambda: None), inline.Inline()
    assert launcher.launch(request).status == "failed"
    assert freed == [1]
    monkeypatch.setattr(graph_capture, "_broken", [BrokenCapture("CUDA out of memory")])
    unfit = launcher.launch(request)
    assert unfit.status == "interrupted"
    assert "CUDA out of memory" in unfit.message
    assert "type the same command again" in unfit.message


def test_a_crash_under_a_limit_is_out_of_memory(tmp_path: Path) -> None:
    point = (*TINY, "local_batch=8", "num_workers=2", "strategy=ddp")
    paths, log = RunPaths(tmp_path), tmp_path / "launcher.log"
    for code in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        crashed = failure.outcome(
            compose(*point, "launch.memory_limit_mb=[64,32]"), paths, [(1, code)], log
        )
        assert crashed.status == "out_of_memory"
        assert crashed.message.startswith(
            "rank 1 was ended by SIGSEGV under its memory limit of 32 MiB"
        )
        assert failure.outcome(compose(*point), paths, [(1, code)], log).status == "failed"
