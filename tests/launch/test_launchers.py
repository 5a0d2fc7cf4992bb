"""The seam between points and what starts their workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep import launch
from bsweep.config.run import RunConfig
from bsweep.launch.launcher import Launcher, LaunchRequest, host_launcher_of, launcher_of
from bsweep.launch.outcome import Outcome
from bsweep.runlog.files import RunPaths
from tests.support.running import compose


def point(name: str) -> RunConfig:
    return compose("local_batch=8", "num_workers=1", f"launch={name}", "strategy=single")


@pytest.mark.parametrize("name", ["horovodrun", "torchrun", "inline"])
def test_all_points_of_a_launcher_have_the_same_one(name: str) -> None:
    """For it may know what an earlier point has left in this process."""
    assert launcher_of(point(name).launch) is launcher_of(point(name).launch)


def test_a_launcher_is_given_all_that_belongs_to_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LaunchRequest] = []

    class Noting(Launcher):
        def launch(self, request: LaunchRequest) -> Outcome:
            asked.append(request)
            return Outcome("completed")

    monkeypatch.setattr(launch, "launcher_of", lambda _: Noting())
    config, paths = point("inline"), RunPaths(tmp_path)
    given = config, paths, lambda: None
    assert launch.launch(*given, "bsweep.measure.probe_worker") == Outcome("completed")
    assert asked == [LaunchRequest(*given, "bsweep.measure.probe_worker")]


def test_another_host_is_reached_by_the_launcher_of_its_card() -> None:
    torchrun, srun = (
        compose("local_batch=8", "num_workers=2", "strategy=ddp", f"launch={name}").launch
        for name in ("torchrun", "srun")
    )
    assert host_launcher_of(torchrun).on_host("h2", torchrun, ["true"])[0] == "ssh"  # type: ignore[arg-type]
    assert "srun" in host_launcher_of(srun).on_host("h2", srun, ["true"])  # type: ignore[arg-type]
