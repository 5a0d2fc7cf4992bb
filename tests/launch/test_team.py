"""Processes that train several points of a sweep: as fresh ones do, and none that has failed trains
another.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from bsweep.config import own
from bsweep.launch import team as leading
from bsweep.launch.launcher import LaunchRequest
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.train import team_worker
from bsweep.train.team_worker import TeamPaths
from tests.study.test_run import runs
from tests.support.gpus import on_gpus
from tests.support.running import TINY, bsweep, compose, imported_first, ran_ok, summaries

POINT = (*TINY, "model=tiny_cnn", "epochs=2", "log_every_steps=1")
STRATEGIES = {
    "horovod": ("strategy=horovod",),
    "allreduce": ("strategy=allreduce",),
    "parameter_server": ("strategy=parameter_server", "strategy.num_servers=1"),
}


def numbers(cwd: Path, study: str) -> dict[str, list[dict[str, Any]]]:
    """What the runs of a study computed, but times."""
    timed = {"time", "type", "schema", "servers", "worker_memory"}
    of_runs = {}
    for paths in runs(cwd, study):
        records = (
            record
            for record in read_records(paths.metrics)[0]
            if record["type"] in ("step", "epoch")
        )
        of_runs[paths.folder.name] = [
            {
                key: value
                for key, value in record.items()
                if key not in timed
                and not key.endswith(("seconds", "per_second", "memory_bytes", "p50", "p95"))
            }
            for record in records
        ]
    return of_runs


def launched(cwd: Path, study: str) -> list[tuple[int, int]]:
    """Points for which processes were started, by number of workers and local batch."""
    found = []
    for paths in runs(cwd, study):
        (start,) = (
            record for record in read_records(paths.metrics)[0] if record["type"] == "start"
        )
        if paths.launcher_log.exists():
            found.append((start["config"]["num_workers"], start["local_batch"]))
    return sorted(found)


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_that_trained_a_point_train_the_next_as_fresh_ones_do(
    tmp_path: Path, strategy: str
) -> None:
    given = (*POINT, *STRATEGIES[strategy])
    counts = "1,2" if strategy == "horovod" else "2"
    for study, batches, reuse in (("reused", "8,16,5", "true"), ("fresh", "16,5", "false")):
        grid = (
            "-m",
            f"local_batch={batches}",
            f"num_workers={counts}",
            f"study={study}",
            f"launch.reuse={reuse}",
        )
        ran_ok("run", *grid, *given, cwd=tmp_path)
    workers = [int(count) for count in counts.split(",")]
    assert launched(tmp_path, "reused") == [(count, 8) for count in workers], (
        "the first of each worker count"
    )
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
    epochs = [
        (study, r)
        for study in ("s", "lone")
        for paths in runs(tmp_path, study)
        for r in read_records(paths.metrics)[0]
        if r["type"] == "epoch" and r["global_batch"] == 16
    ]
    peaks = {study: epoch["peak_memory_bytes"] for study, epoch in epochs}
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
    env = imported_first(
        tmp_path,
        "import os\n"
        "if os.environ.get('RANK', os.environ.get('HOROVOD_RANK')) == '1':\n"
        "    import bsweep.train.step as step\n"
        "    plain = step.train_step\n"
        "    def failing(job, *a, **k):\n"
        "        if job.config.local_batch == 16:\n"
        f"            {failure}\n"
        "        return plain(job, *a, **k)\n"
        "    step.train_step = failing\n",
    )
    grid = (
        "-m",
        "local_batch=8,16,5,10",
        "num_workers=2",
        *POINT,
        *STRATEGIES[strategy],
        "study=s",
    )
    result = bsweep("run", *grid, cwd=tmp_path, env=env)
    assert result.returncode == 1, result.stderr
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
        point = compose(
            "local_batch=8",
            "num_workers=2",
            "model=own",
            f"model.target={tmp_path / f'mine{number}.py'}:build",
        )
        keys.append(leading.key_of(own.resolve(point)))
    assert keys[0] == keys[1] != keys[2]
    assert keys[2] != leading.key_of(compose("local_batch=8", "num_workers=2"))


def test_a_pool_keeps_processes_while_other_points_for_them_are_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A point that is launched again takes no other point's place."""
    did: list[str] = []

    class Processes:
        is_spoilt = False

        def __init__(self, kind: str) -> None:
            did.append(kind)

        def can_train(self, config: object) -> bool:
            return True

        def train(self, run: object) -> None:
            did.append("kept")

        def end(self) -> None:
            did.append("end")

    monkeypatch.setattr(leading, "Team", lambda *_: Processes("team"))
    monkeypatch.setattr(leading, "_lone", lambda *_: Processes("lone"))
    points = [compose(*POINT, f"local_batch={size}", "num_workers=2") for size in (8, 16)]
    pool = leading.ProcessPool()
    pool.expect(points)
    for place, is_through in ((0, False), (0, True), (1, True), (1, True)):
        paths = RunPaths(points[place].study_dir / points[place].run_id)
        request = LaunchRequest(points[place], paths, lambda: None, pool=pool)
        with pool.processes_for(request, cast(Any, None)) as processes:
            processes.is_through = is_through
    assert did == ["team", "end", "team", "kept", "end", "lone", "end"]


def test_who_had_better_train_no_other_point_says_so(tmp_path: Path) -> None:
    led = leading.Team.__new__(leading.Team)
    led._through, led._num_points = [tmp_path / "0", tmp_path / "1"], 2
    led._touched_at = time.monotonic()
    for second, is_spoilt in ((b".", False), (team_worker.SPOILT, True)):
        for path, last in zip(led._through, (b".", second), strict=True):
            path.write_bytes(b"." + last)
        led.look_after()
        assert led.is_through
        assert led.is_spoilt == is_spoilt


def test_who_hears_of_no_parent_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As processes on other hosts would, whose parent was killed while they waited."""
    monkeypatch.setattr(team_worker, "PATIENCE_SECONDS", 0.2)
    paths = TeamPaths(tmp_path)
    paths.lifeline.touch()
    paths.points.write_text("first\nsecond")
    lines = team_worker._lines(paths)
    assert next(lines) == b"first"
    with pytest.raises(SystemExit, match="has shown no sign of life"):
        next(lines)  # half a line is none
    paths.points.write_text("first\nsecond\n\n")
    assert list(islice(team_worker._lines(paths), 3)) == [b"first", b"second", b""]


def test_who_hears_of_a_parent_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_worker, "PATIENCE_SECONDS", 1)
    paths, is_over = TeamPaths(tmp_path), threading.Event()
    paths.points.touch()
    paths.lifeline.touch()

    def lead() -> None:
        for _ in range(30):
            time.sleep(0.05)
            paths.lifeline.touch()
        is_over.set()
        paths.points.write_text("first\n")

    thread = threading.Thread(target=lead)
    thread.start()
    assert next(team_worker._lines(paths)) == b"first"
    assert is_over.is_set()
    thread.join()
