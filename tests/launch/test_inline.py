"""What a failure leaves behind in the process in which it happens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bsweep.launch import inline
from bsweep.launch.launcher import LaunchRequest
from bsweep.numerics.graphs import BrokenCapture
from bsweep.runlog.errors import spoils_process
from bsweep.runlog.files import RunPaths
from bsweep.train import graph_capture
from tests.support.running import TINY, compose


def request(folder: Path) -> LaunchRequest:
    point = compose(*TINY, "local_batch=8", "num_workers=1", "launch=inline", "strategy=single")
    return LaunchRequest(point, RunPaths(folder), lambda: None)


def test_a_process_is_spoilt_by_what_a_cpu_has_no_room_for() -> None:
    assert spoils_process(MemoryError())
    assert spoils_process(RuntimeError("could not create a primitive"))
    assert not spoils_process(torch.OutOfMemoryError("CUDA out of memory"))
    assert not spoils_process(ValueError("seven"))


def test_inline_trains_no_point_after_a_capture_ran_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_capture, "_broken", [BrokenCapture("CUDA out of memory")])
    unfit = inline.Inline().launch(request(tmp_path))
    assert unfit.status == "interrupted"
    assert "out of memory" in unfit.message
    assert "type the same command again" in unfit.message
