"""A sweep as its operator sees it, from other processes: plan, status, stop, resume, retry, and two
sweeps at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bsweep.core import terminal
from bsweep.launch import inline, stop
from bsweep.launch.launcher import LaunchRequest
from bsweep.runlog import following, locks, reading
from bsweep.runlog.checkpoint_files import checkpoint_at, request_stop
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed, is_claimed
from bsweep.runlog.reading import read_records
from bsweep.runlog.records import Step
from bsweep.study import attempts, attendance, commands, overview, states
from bsweep.study.commands import Planned
from bsweep.study.estimate import Estimate, Timed
from bsweep.study.states import NEW, State
from tests.support.running import TINY, Fork, bsweep, compose, forks, popen, ran_ok, tool
from tests.support.synthetic_study import META, write_run

ALONE = ("launch=inline", "strategy=single", "launch.threads_per_worker=1")
QUICK = (*TINY, "model=tiny_cnn", "study=s")


STEP = Step(
    epoch=2, step=9, train_loss=1.0, learning_rate=0.1, images_per_second=None, global_batch=8,
    epochs_done=1.5
)  # fmt: skip


def status(cwd: Path) -> dict[str, Any]:
    result = ran_ok("status", "results/s", "--json", cwd=cwd)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def wait_for_epoch(cwd: Path, number: int = 1, timeout: float = 90) -> None:
    ends = time.monotonic() + timeout
    while time.monotonic() < ends:
        for path in cwd.glob("results/s/*/metrics.jsonl"):
            if sum(record["type"] == "epoch" for record in read_records(path)[0]) >= number:
                return
        time.sleep(0.1)
    raise AssertionError("no epoch was recorded")


def folder_of(cwd: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in cwd.rglob("*"))


@pytest.mark.full
def test_other_processes_plan_watch_stop_and_resume_a_sweep(
    tmp_path: Path,
) -> None:
    grid = ("-m", "local_batch=2,4", "num_workers=2", "strategy=local_sgd", "epochs=4000", *QUICK)
    before = ran_ok("plan", *grid, cwd=tmp_path)
    assert "2 points: 2 new; no estimate" in before.stdout, before.stderr
    assert not list(tmp_path.iterdir()), "a plan writes nothing"
    sweep = Fork("bsweep", "run", *grid, cwd=tmp_path, has_forks=True)
    wait_for_epoch(tmp_path)
    seen = status(tmp_path)
    assert seen["counts"] == {"running": 1, "new": 1}
    assert len(seen["sweeps"]) == 1
    assert seen["seconds_left"] > 0
    (running,) = [point for point in seen["points"] if point["status"] == "running"]
    assert 0 < running["epochs_done"] < running["epochs"] == 4000
    planned = bsweep("plan", *grid, "--json", cwd=tmp_path)
    plan = json.loads(planned.stdout)
    assert [point["run_id"] for point in plan["points"]] == [
        point["run_id"] for point in seen["points"]
    ]
    assert all(point["worker_hours_left"] > 0 for point in plan["points"])
    assert "finished epochs" in plan["estimated_by"]
    stopped = ran_ok("stop", "results/s", cwd=tmp_path)
    assert "1 interrupted" in stopped.stdout, stopped.stdout + stopped.stderr
    assert sweep.wait(30) == 130
    assert not attendance.sweeps(tmp_path / "results/s")
    assert "nothing to stop" in bsweep("stop", "results/s", cwd=tmp_path).stderr
    text = bsweep("status", "results/s", cwd=tmp_path).stdout
    assert "interrupted at epoch" in text
    assert "bsweep resume results/s" in text

    again = Fork("bsweep", "resume", str(tmp_path / "results/s"), cwd=Path("/"), has_forks=True)
    ends = time.monotonic() + 60
    while status(tmp_path)["counts"].get("running") != 1:
        assert time.monotonic() < ends
        assert again.poll() is None
    os.kill(again.pid, signal.SIGTERM)
    assert again.wait(30) == 130
    assert len(commands.read_commands(tmp_path / "results/s")) == 1, "the same command is kept once"


@pytest.mark.full
def test_results_are_repeated_by_retry_alone_and_the_rest_by_resume(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=8", "optimizer.lr=0.01,1e30", "seed=0,1", "epochs=1", *ALONE, *QUICK)
    first = bsweep("run", *grid, cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    assert status(tmp_path)["counts"] == {
        "completed": 2,
        "diverged": 2,
    }, first.stderr
    before = folder_of(tmp_path)
    text = bsweep("status", "results/s", cwd=tmp_path).stdout
    assert text.count(": diverged: the training loss became") == 2
    assert folder_of(tmp_path) == before
    again = bsweep("run", *grid, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr.count("skipped, it diverged") == 2
    assert "bsweep retry" in again.stderr
    resumed = ran_ok("resume", "results/s", cwd=tmp_path)
    assert "nothing is left to do: 2 completed, 2 diverged" in resumed.stdout
    nothing = bsweep("retry", "results/s", "--status", "failed", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "nothing to retry: no point of a command has the state failed" in nothing.stderr
    meant = bsweep("retry", "results/s", "--status", "faild", cwd=tmp_path)
    assert meant.returncode == 2
    assert "Did you mean 'failed'?" in meant.stderr
    one_of_them = [word for word in grid if word not in ("-m", "seed=0,1")]
    # Another command that leads to it.
    assert bsweep("run", "-m", "seed=1", *one_of_them, cwd=tmp_path).returncode == 1
    retried = bsweep("retry", "results/s", "--status", "diverged", cwd=tmp_path)
    assert retried.returncode == 1
    assert "[2/2]" in retried.stderr
    assert "completed already" not in retried.stderr
    assert len(list(tmp_path.glob("results/s/.previous/*"))) == 2, "each is repeated once"
    (victim, *_) = tmp_path.glob("results/s/b8*/summary.json")
    victim.unlink()  # as if it had been killed
    assert status(tmp_path)["counts"].get("interrupted") == 1
    bsweep("resume", "results/s", cwd=tmp_path)
    assert status(tmp_path)["counts"] == {"completed": 2, "diverged": 2}
    watched = bsweep("status", "results/s", "--json", "--watch", cwd=tmp_path)
    assert [json.loads(line)["counts"] for line in watched.stdout.splitlines()] == [
        {"completed": 2, "diverged": 2}
    ]
    plan = json.loads(bsweep("plan", *grid, "study=s,t", "--json", cwd=tmp_path).stdout)
    assert plan["counts"] == {"completed": 2, "diverged": 2, "new": 4}
    assert "(2 completed)" in plan["estimated_by"]
    (tmp_path / "results/s").rename(tmp_path / "results/t")
    moved = bsweep("retry", "results/t", "--status", "diverged", cwd=tmp_path)
    assert moved.returncode == 1
    assert "no longer give 2 of its points" in moved.stderr
    assert not (tmp_path / "results/s").exists()
    assert "the folder was moved" in moved.stderr


@pytest.mark.full
def test_two_sweeps_on_one_study_share_its_points_and_both_complete(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4,6", "epochs=10", "log_every_steps=1", *ALONE, *QUICK)
    outputs = [(tmp_path / f"said{number}").open("w") for number in range(2)]
    sweeps = [
        Fork("bsweep", "run", *grid, cwd=tmp_path, stderr=output, has_forks=True)
        for output in outputs
    ]
    assert [sweep.wait(120) for sweep in sweeps] == [0, 0], [
        Path(output.name).read_text() for output in outputs
    ]
    said = "".join(Path(output.name).read_text() for output in outputs)
    assert said.count("completed after") == 3, "each point was trained once"
    assert status(tmp_path)["counts"] == {"completed": 3}


@pytest.mark.full
def test_stop_ends_all_sweeps_of_a_study(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4", "epochs=100000", *ALONE, *QUICK)
    # As scripts start it.
    in_background = [
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        forks().bsweep,
        "run",
        *grid,
    ]
    sweeps = (
        Fork("bsweep", "run", *grid, cwd=tmp_path, has_forks=True),
        popen(in_background, tmp_path),
    )
    ends = time.monotonic() + 60
    while not (tmp_path / "results/s").exists() or status(tmp_path)["counts"].get("running") != 2:
        assert time.monotonic() < ends
    ran_ok("stop", "results/s", cwd=tmp_path)
    assert [sweep.wait(30) for sweep in sweeps] == [130, 130]
    assert status(tmp_path)["counts"] == {"interrupted": 2}
    assert not list(tmp_path.glob("results/s/.sweeps/*"))


@pytest.mark.parametrize("then", ["poll", "fail", "end"])
def test_an_interrupt_dropped_by_a_call_still_ends_the_run(tmp_path: Path, then: str) -> None:
    """Imports of torch and numpy drop one at times, or fail by it."""
    went_on = []

    def run() -> None:
        with stop.Stopping(compose("local_batch=2"), RunPaths(tmp_path), print) as stopping:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            if then == "fail":
                raise ImportError("cannot load module more than once per process")
            if then == "poll":
                stopping.polled_with(lambda: None)()
            went_on.append(then)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert went_on == [then] * (then == "end")


def test_what_fails_by_an_interrupt_is_no_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sweep's own process, a moment after the last poll."""

    def measure(*_: Any, **__: Any) -> None:
        stopping.polled_with(lambda: None)()
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise RecursionError("import numpy.linalg as linalg")

    monkeypatch.setitem(
        sys.modules, "bsweep.measure.probe_worker", SimpleNamespace(measure=measure)
    )
    config, paths = compose("local_batch=2", *ALONE), RunPaths(tmp_path)
    outcomes = list[Any]()

    def launched(poll: Callable[[], None]) -> None:
        request = LaunchRequest(config, paths, poll, "bsweep.measure.probe_worker")
        outcomes.append(inline.Inline().launch(request))

    with pytest.raises(KeyboardInterrupt), stop.Stopping(config, paths, print) as stopping:
        launched(stopping.polled_with(lambda: None))
    assert not outcomes


def test_a_stopped_run_has_the_time_that_its_checkpoint_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, clock = RunPaths(tmp_path), [0.0]
    paths.alive(0).parent.mkdir(parents=True)
    paths.alive(0).touch()
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
    saved = checkpoint_at(paths, epoch=1, position=8)
    facts = {
        "epoch": 1,
        "position": 8,
        "num_steps": 1,
        "num_workers": 1,
        "metrics_bytes": 0,
        "metrics_crc32": 0,
        "sha256": {},
        "train_seconds": 0.5,
        "time": 0,
    }

    def run() -> None:
        with stop.Stopping(compose("local_batch=2"), paths, print) as stopping:
            poll = stopping.polled_with(lambda: None)
            signal.raise_signal(signal.SIGTERM)
            saved.folder.mkdir(parents=True)
            for seconds in (29.0, 58.0, 400.0, 429.0, 431.0):
                clock.append(seconds)
                poll()
                if seconds == 400:
                    saved.complete(facts)  # but the workers have still to leave

    with pytest.raises(KeyboardInterrupt):
        run()
    assert clock[-1] == 431


def test_a_run_that_is_told_to_stop_has_the_time_of_its_longest_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, clock = RunPaths(tmp_path), [0.0]
    paths.alive(0).parent.mkdir(parents=True)
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: clock[-1]))

    def run() -> None:
        with stop.Stopping(compose("local_batch=2"), paths, print) as stopping:
            poll = stopping.polled_with(lambda: None)
            poll()  # before a worker has begun
            for seconds in (10, 110, 130):  # when one has ended a step
                clock.append(seconds)
                paths.alive(0).touch()
                # Somebody sets the clock meanwhile.
                os.utime(paths.alive(0), (-86_400 * seconds,) * 2)
                poll()
            signal.raise_signal(signal.SIGTERM)
            for seconds in (130 + 129, 130 + 131):
                clock.append(seconds)
                poll()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert clock[-1] == 130 + 131, "30 s and the 100 s of the second step"


def test_a_signal_is_told_though_the_run_was_to_stop_already(tmp_path: Path) -> None:
    """A search that has a run interrupted by its file goes on, unless somebody else asked it
    to stop meanwhile.
    """
    paths, said = RunPaths(tmp_path), list[str]()
    paths.alive(0).parent.mkdir(parents=True)
    paths.alive(0).touch()

    def run() -> None:
        with stop.Stopping(compose("local_batch=2"), paths, said.append) as stopping:
            request_stop(paths)
            stopping.polled_with(lambda: None)()
            assert not said
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert said == ["ending at once"]


def test_an_interrupt_dropped_before_a_run_ends_it_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "is_interrupted", False)
    with contextlib.suppress(KeyboardInterrupt):
        terminal.interrupt(signal.SIGTERM, None)
    with (
        pytest.raises(KeyboardInterrupt),
        stop.Stopping(compose("local_batch=2"), RunPaths(tmp_path), print),
    ):
        pass


def test_a_plan_can_try_points_where_none_is_finished_and_leaves_no_trace(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4,30", "epochs=3", *ALONE, *QUICK)
    result = ran_ok("plan", *grid, "--probe", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)
    assert "2 tried for a few steps" in plan["estimated_by"]
    assert plan["seconds_left"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status", "results/mein"), "Did you mean 'results/mine'?"),
        (("resume", "results/empty"), "no run and no command"),
        (("stop", "results/mine"), "nothing to stop"),
        (("retry", "results/mine", "--status", "finished"), "unknown"),
        (("retry", "results/mine", "--status", ","), "--status ',' names no state. Known: failed,"),
        (("status",), "usage: bsweep status"),
        (("plan", "lokal_batch=8"), "Did you mean 'local_batch'?"),
    ],
)
def test_what_cannot_be_done_is_said_in_plain_words(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "results/empty").mkdir(parents=True)
    write_runs(tmp_path / "results/mine", 1)
    result = bsweep(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert expected in result.stderr, result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_a_study_of_which_no_command_is_kept_says_whose_to_type(tmp_path: Path) -> None:
    write_runs(tmp_path / "results/mine", 2, status="failed")
    result = bsweep("resume", "results/mine", cwd=tmp_path)
    assert result.returncode == 2
    assert "no recorded command for 2 of its runs" in result.stderr
    rows, source = overview.of_study(tmp_path / "results/mine")
    assert "bsweep resume" not in overview.status_text(tmp_path, rows, source, []), "it runs none"
    moved = {
        "time": 0,
        "arguments": ["local_batch=8"],
        "folder": "/nowhere/at/all",
        "num_processes": None,
    }
    columns = {
        "columns": ["run_id", "num_workers", "examples_per_step", "num_examples", "epochs", "kind"]
    }
    line = json.dumps({**moved, **columns, "points": [["run0", 1, 8, 90, 1, "k"]]})
    (tmp_path / "results/mine/commands.jsonl").write_text("{torn\n" + line + "\n")
    result = bsweep("resume", "results/mine", cwd=tmp_path)
    assert result.returncode == 2
    assert "/nowhere/at/all" in result.stderr


def write_runs(study_dir: Path, number: int, status: str = "completed") -> None:
    """Runs as `status` reads them: it takes records for whole that have the checksum and the number
    of epochs of their summary.
    """
    records = b'{"schema": 1, "train_seconds": 0.75, "type": "epoch"}\n' * 20
    for index in range(number):
        paths = RunPaths(study_dir / f"run{index}")
        paths.folder.mkdir(parents=True)
        paths.config.touch()
        if index:  # links are made sooner than files
            for path in (paths.metrics, paths.meta):
                path.hardlink_to(study_dir / "run0" / path.name)
        else:
            paths.metrics.write_bytes(records)
            paths.meta.write_text(json.dumps(META))
        ended = {
            "schema": 1,
            "run_id": f"run{index}",
            "status": status,
            "message": "",
            "epochs": 20,
        }
        numbers = {
            "strategy": "single",
            "num_workers": 1,
            "local_batch": 8,
            "global_batch": 8,
            "seed": index,
        }
        rest = {
            "num_steps": 4,
            "train_seconds": 1.5,
            "wall_seconds": 2.5,
            "images_per_second": 60.0,
            "warnings": [],
        }
        means = dict.fromkeys(
            ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "sent_bytes")
        )
        rest["metrics_crc32"] = zlib.crc32(records)
        paths.summary.write_text(json.dumps({**ended, **numbers, **rest, **means}, indent=2))


MEASURED = """
import resource, subprocess, sys, time
with open("said", "w") as said:
    subprocess.run(sys.argv[1:], stdout=said, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study of `write_many`, which is looked at alone."""
    folder = tmp_path_factory.mktemp("many")
    write_many(folder / "results/many")
    return folder


def write_many(study_dir: Path, count: int = 10_000) -> None:
    """So many runs, half of which are of `many_points`."""
    write_runs(study_dir, count)
    point = compose("local_batch=1", *many_points(count)[2:])
    for number in range(count // 2):
        config = replace(point, local_batch=1 + number % 80, seed=number // 80)
        (study_dir / f"run{number}").rename(study_dir / config.run_id)


def many_points(count: int = 10_000) -> tuple[str, ...]:
    """A grid of so many points, a multiple of 80, of no study yet."""
    return ("local_batch=range(1,81)", f"seed=range({count // 80})", *ALONE, *QUICK[:-1])


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status", "results/many"), "10000 completed"),
        (("status", "results/many", "--json"), '"completed": 10000'),
        (("plan", "-m", "study=other", *many_points()), "10000 new"),
        (("plan", "-m", "study=many", *many_points()), "5000 completed, 5000 new; left: about "),
    ],
    ids=["status", "status --json", "plan of new points", "plan of which half is done"],
)
def test_ten_thousand_points_take_seconds_and_little_memory(
    many: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """Two seconds where nothing else runs; by the processor's seconds, of which others' load takes
    more.
    """
    command = [sys.executable, "-c", MEASURED, tool("bsweep"), *arguments]
    result = subprocess.run(
        command, cwd=many, capture_output=True, text=True, timeout=120, check=True
    )
    seconds, mebibytes = map(float, result.stdout.split())
    assert seconds < 12, "far below what looking at each point for each other one takes"
    assert mebibytes < 500
    assert expected in (many / "said").read_text()


def test_an_estimate_is_a_line_through_what_was_timed() -> None:
    def point(batch: int, workers: int = 1, kind: str = "k") -> Planned:
        return Planned(f"b{batch}w{workers}{kind}", workers, batch * workers, 1000, 10, kind)

    line = [Timed(point(batch), 0.01 + 0.001 * batch, 5.0) for batch in (8, 16, 64)]
    estimate = Estimate(line)
    assert estimate.seconds(point(32), NEW) == pytest.approx(1000 / 32 * 0.042 + 5)
    assert estimate.seconds(point(32), State("completed")) == 0
    half = State("interrupted", epochs_done=5, can_resume=True)
    assert estimate.seconds(point(32), half) == pytest.approx((1000 / 32 * 0.042 + 5) / 2)
    assert estimate.seconds(point(32, workers=2), NEW) == pytest.approx(1000 / 64 * 0.042 + 5), (
        "as with one worker"
    )
    assert estimate.seconds(point(32, kind="other"), NEW) is None
    assert Estimate(line[:1]).seconds(point(16), NEW) == pytest.approx(
        1000 / 16 * 0.018 / 8 * 16 + 5
    )
    assert "3 completed" in estimate.source
    assert "at most 0%" in estimate.source
    other = Timed(point(8, kind="other"), 0.1)
    assert "at most" not in Estimate([*line[:2], other]).source, "each line goes through all"
    falling = [Timed(point(8), 0.02), Timed(point(64), 0.01)]
    assert 0 < (Estimate(falling).seconds(point(128), NEW) or 0) < 10, (
        "no step takes less than none"
    )


def test_an_estimate_takes_as_long_for_each_point_however_many_were_timed() -> None:
    points = [Planned(str(number), 1, 1 + number % 80, 1000, 10, "k") for number in range(20_000)]
    began = time.process_time()
    estimate = Estimate([Timed(point, 0.01, 5.0) for point in points[::2]])
    assert all(estimate.seconds(point, NEW) for point in points)
    assert time.process_time() - began < 2, (
        "to look at each timed point for each open one takes minutes"
    )


def test_who_has_read_enough_is_not_told_of_a_broken_pipe(tmp_path: Path) -> None:
    write_runs(tmp_path / "results/mine", 400)  # more than a pipe holds
    line = '"$0" status results/mine --json | head -c 1; exit "${PIPESTATUS[0]}"'
    result = subprocess.run(
        ["bash", "-c", line, tool("bsweep")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGPIPE, "{", "")


def test_a_claim_ends_with_its_process_and_is_seen_by_others(tmp_path: Path) -> None:
    with claimed(tmp_path / "a") as is_ours:
        assert is_ours
        assert is_claimed(tmp_path / "a")
        assert not is_claimed(tmp_path / "b")
    assert not is_claimed(tmp_path / "a")


def test_states_of_what_cannot_be_read_are_states(tmp_path: Path) -> None:
    write_runs(tmp_path, 4)
    for index, text in enumerate(('{"schema": 1', "[]", '{"schema": 99}')):
        (tmp_path / f"run{index}/summary.json").write_text(text)
    (tmp_path / "report").mkdir()
    found = states.read_states(tmp_path)
    assert [state.status for state in found.values()] == ["damaged"] * 3 + ["completed"]


def test_of_a_run_under_way_only_new_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def checked(line: bytes, place: str) -> dict[str, Any]:
        read.append(line)
        return reading.checked(line, place)

    monkeypatch.setattr(following, "checked", checked)
    paths = RunPaths(
        write_run(tmp_path, local_batch=8, status=None, num_epochs_done=2, more=(STEP,))
    )
    start, step, first, second = paths.metrics.read_bytes().splitlines(keepends=True)
    seconds = [json.loads(epoch)["train_seconds"] for epoch in (first, second)]

    def look(more: bytes, mode: str = "ab") -> tuple[float, int, float | None, int]:
        read.clear()
        with paths.metrics.open(mode) as file:
            file.write(more)
        state = states.state_of_run(paths.folder)
        return state.epochs_done, state.whole_epochs, state.train_seconds, len(read)

    assert look(start + first[:9], "wb") == (0, 0, None, 1)
    assert look(first[9:]) == (1, 1, seconds[0], 1)
    assert look(b"") == (1, 1, seconds[0], 0)
    assert look(step) == (1.5, 1, seconds[0], 1)
    assert look(start + step, "wb") == (1.5, 0, None, 2), "it was cut, to be resumed"
    longer = first.replace(b'"train_loss"', b'"a": 1, "train_loss"')
    assert look(start + longer + second, "wb") == (2, 2, sum(seconds), 3), (
        "and went further than where one looked"
    )
    for _ in range(2):
        assert look(b"5\n")[1] == 0
        assert states.state_of_run(paths.folder).status == "damaged"


def test_what_is_set_aside_again_and_again_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for number in range(3):
        folder.mkdir()
        (folder / str(number)).touch()
        attempts._set_aside(folder, folder)
    assert {path.parent.name: path.name for path in tmp_path.glob(".previous/*/*")} == {
        "run.1": "0",
        "run.2": "1",
        "run.3": "2",
    }


def test_a_sweep_is_known_though_somebody_looked_while_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks whether a claim is held, holds it for a moment."""
    looks = [contextlib.nullcontext(False), contextlib.nullcontext(False)]
    monkeypatch.setattr(locks, "claimed", lambda path: looks.pop() if looks else claimed(path))
    sweep = attendance.Attendance()
    sweep.join(tmp_path)
    assert len(attendance.sweeps(tmp_path)) == 1
    assert not looks
    sweep.leave()


def test_what_a_killed_sweep_left_is_removed_unless_another_is_at_work(tmp_path: Path) -> None:
    team, hosts = tmp_path / ".team.x", tmp_path / ".preflight.x"
    for folder in (team, hosts):
        folder.mkdir()
        (folder / "points").touch()
    first, second = attendance.Attendance(), attendance.Attendance()
    with claimed(tmp_path / ".sweeps/elsewhere.7"):
        first.join(tmp_path)
        assert team.exists(), "it may be the other one's"
        first.leave()
    os.utime(hosts, (0, 0))
    second.join(tmp_path)
    second.leave()
    assert not team.exists()
    assert not hosts.exists()
