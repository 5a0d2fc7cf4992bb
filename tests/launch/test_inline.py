"""What a failure leaves behind in the process in which it happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep.launch import inline
from bsweep.launch.launcher import LaunchRequest
from bsweep.numerics.graphs import BrokenCapture
from bsweep.runlog.files import RunPaths
from bsweep.train import graph_capture
from tests.support.running import TINY, compose


def test_inline_trains_no_point_after_a_capture_ran_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_capture, "_broken", [BrokenCapture("CUDA out of memory")])
    point = compose(*TINY, "local_batch=8", "num_workers=1", "launch=inline", "strategy=single")
    unfit = inline.Inline().launch(LaunchRequest(point, RunPaths(tmp_path), lambda: None))
    assert unfit.status == "interrupted"
    assert "out of memory" in unfit.message
    assert "type the same command again" in unfit.message
