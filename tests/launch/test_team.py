"""Processes that train several points of a sweep, a team's or those of a horovodrun: as fresh ones
do, and none that has failed trains another.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bsweep.config import user_code
from bsweep.launch import pool as leading
from bsweep.launch.launcher import LaunchRequest
from bsweep.runlog.files import RunPaths
from bsweep.train import team_files
from bsweep.train.team_files import TeamPaths
from tests.study.test_run import runs
from tests.support.gpus import on_gpus
from tests.support.launching import Scripted
from tests.support.running import (
    TINY,
    before,
    bsweep,
    compose,
    exits,
    forks,
    ran_ok,
    recorded,
    summaries,
)
from tests.train.test_resume import records_of

POINT = (*TINY, "model=tiny_cnn", "epochs=2", "log_every_steps=1")
STRATEGIES = {
    "horovod": ("strategy=horovod",),
    "allreduce": ("strategy=allreduce",),
    "parameter_server": ("strategy=parameter_server", "strategy.num_servers=1"),
}


def numbers(cwd: Path, study: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What the runs of a study computed, but times."""
    return {paths.folder.name: records_of(paths) for paths in runs(cwd, study)}


def launched(cwd: Path, study: str) -> list[tuple[int, int]]:
    """Points for which processes were started, by number of workers and local batch."""
    return sorted(
        (start["config"]["num_workers"], start["local_batch"])
        for paths in runs(cwd, study)
        for start in recorded(paths.folder, "start")
        if paths.launcher_log.exists()
    )


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_that_trained_a_point_train_the_next_as_fresh_ones_do(
    tmp_path: Path, strategy: str
) -> None:
    given = (*POINT, *STRATEGIES[strategy])
    counts = "1,2" if strategy == "horovod" else "2"
    for study, batches, reuse in (("reused", "8,16,5", "true"), ("fresh", "16,5", "false")):
        grid = (f"local_batch={batches}", f"num_workers={counts}", f"launch.reuse={reuse}")
        ran_ok("run", "-m", *grid, *given, f"study={study}", cwd=tmp_path)
    workers = [int(count) for count in counts.split(",")]
    of_each_count = [(count, 8) for count in workers]
    assert launched(tmp_path, "reused") == of_each_count, "the first of each worker count"
    assert launched(tmp_path, "fresh") == [(count, batch) for count in workers for batch in (5, 16)]
    reused, fresh = numbers(tmp_path, "reused"), numbers(tmp_path, "fresh")
    assert fresh
    assert fresh == {run: reused[run] for run in fresh}, "bit for bit"
    assert not list((tmp_path / "results/reused").glob(".team.*"))


@pytest.mark.parametrize("strategy", [on_gpus(name, number=2) for name in ("horovod", "allreduce")])
def test_a_point_gives_its_gpu_memory_back(tmp_path: Path, strategy: str) -> None:
    """A point after a larger one needs no more than a lone run of the same batch."""
    images = ("data=synthetic", "data.num_train=2048", "data.num_test=100", "data.shape=[3,32,32]")
    point = (f"strategy={strategy}", "num_workers=2", "epochs=1", *images)
    for study, batches in (("s", "512,8"), ("lone", "8")):
        words = ("-m", f"local_batch={batches}", f"study={study}", *point)
        ran_ok("run", *words, cwd=tmp_path, fresh=True)
    assert launched(tmp_path, "s") == [(2, 512)]
    peaks = {
        study: record["peak_memory_bytes"]
        for study in ("s", "lone")
        for paths in runs(tmp_path, study)
        for record in recorded(paths.folder, "epoch")
        if record["global_batch"] == 16
    }
    assert peaks["s"] == pytest.approx(peaks["lone"], rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "failure", "said"),
    [
        ("horovod", "raise RuntimeError('own fault')", "rank 1 failed: RuntimeError: own fault"),
        ("allreduce", "os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL"),
    ],
)
def test_a_point_that_fails_costs_itself_and_a_fresh_start(
    tmp_path: Path, strategy: str, failure: str, said: str
) -> None:
    code = f"if rank == '1' and first.config.local_batch == 16: {failure}"
    env = before(tmp_path, "train.step", "train_step", code)
    grid = ("local_batch=8,16,5,10", "num_workers=2", *POINT, *STRATEGIES[strategy], "study=s")
    exits(1, "run", "-m", *grid, cwd=tmp_path, env=env)
    found = summaries(tmp_path)
    assert {batch: end["status"] for batch, end in found.items()} == {
        8: "completed", 16: "failed", 5: "completed", 10: "completed",
    }  # fmt: skip
    assert found[16]["message"].startswith(said)
    assert launched(tmp_path, "s") == [(2, 5), (2, 8)]


@pytest.mark.parametrize(
    ("others", "can"),
    [
        (("local_batch=16", "model=vgg16", "seed=1", "strategy.buckets=2"), True),
        (("num_workers=3",), False),
        (("strategy.cycle_time_ms=2",), False),  # Horovod reads it once
        (("launch.slowdown=[1,2]",), False),
        (("launch=torchrun", "strategy=allreduce"), False),
    ],
)
def test_which_points_the_same_processes_train(others: tuple[str, ...], can: bool) -> None:
    point = ("local_batch=8", "num_workers=2")
    assert (leading.key_of(compose(*point)) == leading.key_of(compose(*point, *others))) == can


@pytest.mark.parametrize(
    "point",
    [
        ("launch.reuse=false",),
        ("launch.memory_limit_mb=[512,512]",),
        ("launch=inline", "strategy=single", "num_workers=1"),
        ("strategy=ddp",),
    ],
)
def test_which_points_need_processes_of_their_own(point: tuple[str, ...]) -> None:
    assert leading.key_of(compose("local_batch=8", "num_workers=2", *point)) is None


def test_points_of_other_code_of_ones_own_need_other_processes(tmp_path: Path) -> None:
    keys = []
    for number in (1, 1, 2):
        (tmp_path / f"mine{number}.py").write_text(
            f"import torch\ndef build(*_, width={number}): return torch.nn.Linear(1, 1)\n"
        )
        model = ("model=own", f"model.target={tmp_path}/mine{number}.py:build")
        point = compose("local_batch=8", "num_workers=2", *model)
        keys.append(leading.key_of(user_code.with_fingerprints(point)))
    assert keys[0] == keys[1] != keys[2]
    assert keys[2] != leading.key_of(compose("local_batch=8", "num_workers=2"))


@pytest.mark.parametrize("report", [team_files.FIT, team_files.UNFIT])
def test_a_team_is_kept_unless_a_process_should_train_no_other_point(
    tmp_path: Path, report: bytes
) -> None:
    """The processes are scripts, which report without training."""
    config = compose(*TINY, "local_batch=8", "num_workers=2", f"results_dir={tmp_path}", "study=s")
    later = replace(config, seed=1)
    paths = RunPaths(config.study_dir / config.run_id)
    paths.logs.mkdir(parents=True)
    teams = leading.ProcessPool()
    other = replace(config, seed=2, num_workers=1)
    assert teams.ordered([config, other, later]) == [config, later, other]
    request = LaunchRequest(config, paths, lambda: None)
    with teams.team_for(request, Scripted(["sleep", "2"]).commands) as team:
        (folder,) = config.study_dir.glob(".team.*")
        for rank, byte in enumerate((team_files.FIT, report)):
            TeamPaths(folder).done(rank).write_bytes(byte)
        team.look_after()
        assert team.is_done
    assert (team.commands[0].poll() is None) == (report == team_files.FIT) == folder.exists()
    teams.end()
    assert not folder.exists()


def test_who_hears_of_no_launcher_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As processes on other hosts would, whose launcher was killed while they waited."""
    paths, now = TeamPaths(tmp_path), [0]
    paths.points.write_text("first\n")
    paths.lifeline.touch()

    def sleep(_: float) -> None:
        now[0] += 30
        if now[0] <= 300:
            os.utime(paths.lifeline, (now[0], now[0]))
        if now[0] == 300:
            paths.points.write_text("first\nsecond\nhalf a line")

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(team_files, "time", clock)
    lines = team_files._lines(paths)
    assert list(islice(lines, 2)) == [b"first", b"second"]
    assert now == [300], "it waits as long as its launcher lives"
    with pytest.raises(SystemExit, match="has shown no sign of life"):
        next(lines)
    assert now == [390]


FAILING = """
import torch
batch = first.config.local_batch
if rank == "1" and batch in (8, 6, 4):
    if first.device.type == "cuda":
        first.vector.parameters.new_empty(1 << 44)
    raise torch.OutOfMemoryError("no room on the GPU")
if rank == "1" and batch == 12:
    raise MemoryError("no room")
"""


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda", number=2)])
def test_a_sweep_goes_on_after_a_failed_point_if_its_processes_can(
    tmp_path: Path, device: str
) -> None:
    env = before(tmp_path, "train.loop", "train_epoch", FAILING)
    point = (*TINY, "model=tiny_cnn", "epochs=1", "study=s", f"device={device}")
    grid = ("-m", "local_batch=8,16,6,4,15,12,10", *point)
    prefix = (forks().horovodrun, "-np", "2", "--gloo")
    result = bsweep("run", *grid, cwd=tmp_path, prefix=prefix, env=env)
    ends = summaries(tmp_path)
    statuses = dict.fromkeys((8, 6, 4, 12), "out_of_memory")
    statuses |= {16: "completed", 15: "completed", 10: "interrupted"}
    assert {batch: end["status"] for batch, end in ends.items()} == statuses, result.stdout
    assert ends[8]["message"].startswith("rank 1 failed: OutOfMemoryError: ")
    assert "not trained" in ends[10]["message"]
    assert "rank 1 failed: MemoryError: no room" in ends[10]["message"]
    assert result.returncode != 0
    printed = result.stdout + result.stderr
    why = "probably because another process of the run has ended"
    assert f"rank 0: the exchange failed, {why}" in printed
    assert "horovod/torch/" not in printed, "where Horovod noticed it says nothing of the cause"
