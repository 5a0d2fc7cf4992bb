"""A sweep as its operator sees it, from other processes: plan, status, stop, resume, retry, and two
sweeps at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bsweep.cli import run, study_commands
from bsweep.config.saved import save_config
from bsweep.config.values import ConfigError
from bsweep.launch import stop
from bsweep.runlog import locks
from bsweep.runlog.checkpoint_files import checkpoint_at
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed
from bsweep.study import claims, history, states
from bsweep.study.estimate import Estimate, Timed, timed
from bsweep.study.history import Command, Planned
from bsweep.study.run_point import set_aside
from bsweep.study.states import NEW, State
from bsweep.study.sweep import Sweep
from tests.runlog.test_readers import STEP
from tests.study.test_run import wait_for_records
from tests.support.running import (
    TINY,
    Fork,
    bsweep,
    captured,
    compose,
    exits,
    forks,
    popen,
    ran_ok,
    tool,
    wait_for,
)
from tests.support.saved import save_checkpoint
from tests.support.synthetic_study import write_run

ALONE = ("launch=inline", "strategy=single", "launch.threads_per_worker=1")
QUICK = (*TINY, "model=tiny_cnn", "study=s")


def status(cwd: Path) -> dict[str, Any]:
    result = ran_ok("status", "results/s", "--json", cwd=cwd)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def folder_of(cwd: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in cwd.rglob("*"))


@pytest.mark.full
def test_other_processes_plan_watch_stop_and_resume_a_sweep(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4", "num_workers=2", "strategy=local_sgd", "epochs=4000", *QUICK)
    before = ran_ok("plan", *grid, cwd=tmp_path)
    assert "2 points: 2 new; no estimate" in before.stdout, before.stderr
    assert not list(tmp_path.iterdir()), "a plan writes nothing"
    sweep = Fork("bsweep", "run", *grid, cwd=tmp_path, has_forks=True)
    wait_for_records(tmp_path, "epoch")
    seen = status(tmp_path)
    assert seen["counts"] == {"running": 1, "new": 1}
    assert len(seen["sweeps"]) == 1
    assert seen["seconds_left"] > 0
    (running,) = [point for point in seen["points"] if point["status"] == "running"]
    assert 0 < running["epochs_done"] < running["epochs"] == 4000
    plan = json.loads(bsweep("plan", *grid, "--json", cwd=tmp_path).stdout)
    assert [point["run_id"] for point in plan["points"]] == [
        point["run_id"] for point in seen["points"]
    ]
    assert all(point["worker_hours_left"] > 0 for point in plan["points"])
    assert "finished epochs" in plan["estimated_by"]
    stopped = ran_ok("stop", "results/s", cwd=tmp_path)
    assert "1 interrupted" in stopped.stdout, stopped.stdout + stopped.stderr
    assert sweep.wait(30) == 130
    assert not claims.sweeps(tmp_path / "results/s")
    assert "nothing to stop" in bsweep("stop", "results/s", cwd=tmp_path).stderr
    text = bsweep("status", "results/s", cwd=tmp_path).stdout
    assert "interrupted at epoch" in text
    assert "bsweep resume results/s" in text

    again = Fork("bsweep", "resume", str(tmp_path / "results/s"), cwd=Path("/"), has_forks=True)
    wait_for(lambda: status(tmp_path)["counts"].get("running") == 1)
    os.kill(again.pid, signal.SIGTERM)
    assert again.wait(30) == 130
    assert len(history.read_commands(tmp_path / "results/s")) == 1, "the same command is kept once"


@pytest.mark.full
def test_results_are_repeated_by_retry_alone_and_the_rest_by_resume(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=8", "optimizer.lr=0.01,1e30", "seed=0,1", "epochs=1", *ALONE, *QUICK)
    first = exits(1, "run", *grid, cwd=tmp_path)
    assert status(tmp_path)["counts"] == {"completed": 2, "diverged": 2}, first.stderr
    before = folder_of(tmp_path)
    text = bsweep("status", "results/s", cwd=tmp_path).stdout
    assert text.count(": diverged: the training loss became") == 2
    assert folder_of(tmp_path) == before
    again = exits(1, "run", *grid, cwd=tmp_path)
    assert again.stderr.count("skipped, it diverged") == 2
    assert "bsweep retry" in again.stderr
    resumed = ran_ok("resume", "results/s", cwd=tmp_path)
    assert "nothing is left to do: 2 completed, 2 diverged" in resumed.stdout
    one_of_them = [word for word in grid if word not in ("-m", "seed=0,1")]
    # Another command that leads to it.
    exits(1, "run", "-m", "seed=1", *one_of_them, cwd=tmp_path)
    retried = exits(1, "retry", "results/s", "--status", "diverged", cwd=tmp_path)
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
    moved = exits(1, "retry", "results/t", "--status", "diverged", cwd=tmp_path)
    assert "no longer give 2 of its points" in moved.stderr
    assert not (tmp_path / "results/s").exists()
    assert "the folder was moved" in moved.stderr


@pytest.mark.full
def test_two_sweeps_on_one_study_share_its_points_and_both_complete(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4,6", "epochs=10", "log_every_steps=1", *ALONE, *QUICK)
    with (tmp_path / "said").open("a+") as said:
        sweeps = [
            Fork("bsweep", "run", *grid, cwd=tmp_path, stderr=said, has_forks=True)
            for _ in range(2)
        ]
        codes = [sweep.wait(120) for sweep in sweeps]
    text = (tmp_path / "said").read_text()
    assert codes == [0, 0], text
    assert text.count("completed after") == 3, "each point was trained once"
    assert status(tmp_path)["counts"] == {"completed": 3}


@pytest.mark.full
def test_stop_ends_all_sweeps_of_a_study(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4", "epochs=100000", *ALONE, *QUICK)
    as_scripts_start_it = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", forks().bsweep)
    sweeps = (
        Fork("bsweep", "run", *grid, cwd=tmp_path, has_forks=True),
        popen([*as_scripts_start_it, "run", *grid], tmp_path),
    )
    wait_for((tmp_path / "results/s").exists)
    wait_for(lambda: status(tmp_path)["counts"].get("running") == 2)
    ran_ok("stop", "results/s", cwd=tmp_path)
    assert [sweep.wait(30) for sweep in sweeps] == [130, 130]
    assert status(tmp_path)["counts"] == {"interrupted": 2}
    assert not list(tmp_path.glob("results/s/.sweeps/*"))


@contextlib.contextmanager
def interrupted(paths: RunPaths) -> Iterator[stop.Stopping]:
    """A run within the context is interrupted, at the latest where the context ends."""
    with (
        pytest.raises(KeyboardInterrupt),
        stop.Stopping(compose("local_batch=2"), paths, print) as stopping,
    ):
        yield stopping


def begun(folder: Path) -> RunPaths:
    """A run of which a worker has begun to train."""
    paths = RunPaths(folder)
    paths.heartbeat(0).parent.mkdir(parents=True)
    paths.heartbeat(0).touch()
    return paths


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of the clock by which a run stops; the last one is now."""
    times = [0.0]
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


@pytest.mark.parametrize("then", ["poll", "fail", "end"])
def test_an_interrupt_dropped_by_a_call_still_ends_the_run(tmp_path: Path, then: str) -> None:
    """Imports of torch and numpy drop one at times, or fail by it."""
    went_on = []
    with interrupted(RunPaths(tmp_path)) as stopping:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        if then == "fail":
            raise ImportError("cannot load module more than once per process")
        if then == "poll":
            stopping.poll()
        went_on.append(then)
    assert went_on == [then] * (then == "end")


def test_a_stopped_run_has_the_time_that_its_checkpoint_takes(
    tmp_path: Path, clock: list[float]
) -> None:
    paths = begun(tmp_path)
    with interrupted(paths) as stopping:
        signal.raise_signal(signal.SIGTERM)
        checkpoint_at(paths, epoch=1, position=8).folder.mkdir(parents=True)
        for seconds in (29.0, 58.0, 400.0, 429.0, 431.0):
            clock.append(seconds)
            stopping.poll()
            if seconds == 400:
                save_checkpoint(paths)  # but the workers have still to leave
    assert clock[-1] == 431


def test_a_run_that_is_told_to_stop_has_the_time_of_its_longest_step(
    tmp_path: Path, clock: list[float]
) -> None:
    paths = begun(tmp_path)
    with interrupted(paths) as stopping:
        stopping.poll()
        for seconds in (10, 110, 130):  # when a worker has ended a step
            clock.append(seconds)
            # Somebody sets the clock meanwhile.
            os.utime(paths.heartbeat(0), (-86_400 * seconds,) * 2)
            stopping.poll()
        signal.raise_signal(signal.SIGTERM)
        for seconds in (130 + 129, 130 + 131):
            clock.append(seconds)
            stopping.poll()
    assert clock[-1] == 130 + 131, "30 s and the 100 s of the second step"


def test_a_plan_can_try_points_where_none_is_finished_and_leaves_no_trace(tmp_path: Path) -> None:
    grid = ("-m", "local_batch=2,4,30", "epochs=3", *ALONE, *QUICK)
    result = ran_ok("plan", *grid, "--probe", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)
    assert "2 tried for a few steps" in plan["estimated_by"]
    assert plan["seconds_left"] > 0
    assert not list(tmp_path.iterdir())


def test_a_study_of_which_no_command_is_kept_says_whose_to_type(tmp_path: Path) -> None:
    write_runs(tmp_path / "results/mine", 2, status="failed")
    result = exits(2, "resume", "results/mine", cwd=tmp_path)
    assert "no recorded command for 2 of its runs" in result.stderr
    history.record(tmp_path / "results/mine", ["seed=0"], [compose(*TINY, "local_batch=8")])
    kept = tmp_path / "results/mine/commands.jsonl"
    moved = json.loads(kept.read_text()) | {"folder": "/nowhere/at/all"}
    kept.write_text("{torn\n" + json.dumps(moved) + "\n")
    result = exits(2, "resume", "results/mine", cwd=tmp_path)
    assert "/nowhere/at/all" in result.stderr


def test_a_command_of_another_place_stops_no_command_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again: list[tuple[list[str], set[str]]] = []
    for study in ("both", "inside"):
        (tmp_path / study).mkdir()

    def run_again(_: Path, commands: list[Command], run_ids: set[str], *, repeats: bool) -> int:
        again.append(([command.arguments[0] for command in commands], run_ids))
        return 0

    monkeypatch.setattr(run, "run_again", run_again)
    inside, *outside = (compose(*TINY, f"local_batch={batch}") for batch in (16, 8, 32, 64))
    typed = ("outside", "resume_from=both/a", "resume_from=both/b")
    for config, words in zip(outside, typed, strict=True):
        history.record(tmp_path / "both", [words], [config])
    monkeypatch.setattr(history, "horovodrun_size", lambda: 2)
    for study in ("both", "inside"):
        history.record(tmp_path / study, ["inside"], [inside])
    assert study_commands.resume([str(tmp_path / "both")]) == 1
    # A branch begins before its source, which may be a branch, has ended.
    assert again == [([typed[2], typed[1], typed[0]], {config.run_id for config in outside})]
    assert "horovodrun -np 2" in caplog.text
    with pytest.raises(ValueError, match="start this command inside horovodrun -np 2, too"):
        study_commands.resume([str(tmp_path / "inside")])


def write_runs(study_dir: Path, number: int, status: str = "completed") -> None:
    """Equal runs, which share their files: links are made sooner than files."""
    first = study_dir / "run0"
    write_run(study_dir, local_batch=8, epochs=1, status=status).rename(first)
    for index in range(1, number):
        folder = study_dir / f"run{index}"
        folder.mkdir()
        for path in first.iterdir():
            (folder / path.name).hardlink_to(path)


MEASURED = """
import resource, subprocess, sys, time
with open("said", "w") as said:
    subprocess.run(sys.argv[1:], stdout=said, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


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
def test_ten_thousand_points_take_seconds_and_little_memory(tmp_path: Path) -> None:
    """Two seconds where nothing else runs; by the processor's seconds, of which others' load takes
    more.
    """
    write_many(tmp_path / "results/many")
    for arguments, expected in (
        (("status", "results/many"), "10000 completed"),
        (("plan", "-m", "study=many", *many_points()), "5000 completed, 5000 new; left: about "),
    ):
        command = [sys.executable, "-c", MEASURED, tool("bsweep"), *arguments]
        result = captured(command, cwd=tmp_path, timeout=120, check=True)
        seconds, mebibytes = map(float, result.stdout.split())
        assert seconds < 12, "far below what looking at each point for each other one takes"
        assert mebibytes < 500
        assert expected in (tmp_path / "said").read_text()


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


def test_an_estimate_ends_where_the_limits_of_the_strategy_end_the_run(tmp_path: Path) -> None:
    words = (*TINY, "local_batch=2", "num_workers=2", "strategy=diloco", "strategy.sync_every=5")
    limits = ("strategy.max_rounds=3", "strategy.max_seconds=4", "strategy.max_rounds=3000")
    configs = [compose(*words, "epochs=9", limit) for limit in limits]
    by_rounds, by_seconds, by_epochs = map(history.planned, configs)
    assert by_rounds.num_examples
    assert by_epochs.max_examples is None
    seven = history.planned(compose(*words, "epochs=9", "strategy.max_rounds=7"))
    assert seven.max_examples == 90 + 2 * 20, "an epoch of five rounds, of which one is short"
    half = State("interrupted", epochs_done=9 * 30 / by_rounds.num_examples, can_resume=True)
    for point, seconds in ((by_rounds, 3 * 5 * 0.5), (by_seconds, 4.0)):
        estimate = Estimate([Timed(replace(point, run_id="other"), 0.5, 1.0)])
        assert estimate.seconds(point, NEW) == pytest.approx(seconds + 1)
    assert Estimate([Timed(by_rounds, 0.5)]).seconds(by_rounds, half) == pytest.approx(7.5 / 2)
    ended = State("completed", whole_epochs=1, train_seconds=7.5, num_examples=60.0)
    (timing,) = timed([by_rounds], {by_rounds.run_id: ended})
    assert timing.step_seconds == pytest.approx(0.5), "the one epoch is a fragment"
    history.record(tmp_path, ["x"], configs)
    assert history.read_commands(tmp_path)[0].points == (by_rounds, by_seconds, by_epochs)


def test_a_run_with_steps_of_another_shortens_no_estimate() -> None:
    """The records of a run that goes on from another one's checkpoint begin with that one's."""
    branch = Planned("branch", 1, 10, 1000, 10, "k")
    ended = State("completed", whole_epochs=10, train_seconds=100.0, wall_seconds=20.0)
    estimate = Estimate(timed([branch], {"branch": ended}))
    assert estimate.seconds(replace(branch, run_id="other"), NEW) == pytest.approx(100)
    assert "1 with finished epochs" in estimate.source


def test_who_has_read_enough_is_not_told_of_a_broken_pipe(tmp_path: Path) -> None:
    write_runs(tmp_path / "results/mine", 400)  # more than a pipe holds
    line = '"$0" status results/mine --json | head -c 1; exit "${PIPESTATUS[0]}"'
    result = captured(["bash", "-c", line, tool("bsweep")], cwd=tmp_path, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGPIPE, "{", "")


def test_states_of_what_cannot_be_read_are_states(tmp_path: Path) -> None:
    summaries = [
        write_run(tmp_path, local_batch=8, seed=seed) / "summary.json" for seed in range(4)
    ]
    for path, text in zip(summaries, ('{"schema": 1', "[]", '{"schema": 99}'), strict=False):
        path.write_text(text)
    (tmp_path / "report").mkdir()
    found = states.read_states(tmp_path)
    assert [state.status for state in found.values()] == ["damaged"] * 3 + ["completed"]


def test_a_run_under_way_has_done_what_its_records_say_now(tmp_path: Path) -> None:
    half = replace(STEP, epochs_done=1.5)
    run = write_run(tmp_path, local_batch=8, status=None, num_epochs_done=2, more=(half,))
    paths = RunPaths(run)
    start, step, first, second = paths.metrics.read_bytes().splitlines(keepends=True)
    seconds = [json.loads(epoch)["train_seconds"] for epoch in (first, second)]

    def look(more: bytes, mode: str = "ab") -> tuple[float, int, float | None]:
        with paths.metrics.open(mode) as file:
            file.write(more)
        state = states.state_of_run(paths.folder)
        return state.epochs_done, state.whole_epochs, state.train_seconds

    assert look(start + first[:9], "wb") == (0, 0, None)
    assert look(first[9:]) == (1, 1, seconds[0])
    assert look(step) == (1.5, 1, seconds[0])
    assert look(start + step, "wb") == (1.5, 0, None), "it was cut, to be resumed"
    longer = first.replace(b'"train_loss"', b'"a": 1, "train_loss"')
    assert look(start + longer + second, "wb") == (2, 2, sum(seconds)), (
        "and went further than where one looked"
    )
    for _ in range(2):
        assert look(b"5\n")[1] == 0
        assert states.state_of_run(paths.folder).status == "damaged"


def test_what_is_set_aside_again_and_again_overwrites_nothing(tmp_path: Path) -> None:
    config = compose("local_batch=8", f"results_dir={tmp_path}")
    for number in range(3):
        folder = config.folder
        folder.mkdir(parents=True)
        (folder / str(number)).touch()
        set_aside(config)
    kept = {path.parent.name: path.name for path in config.study_dir.glob(".previous/*/*")}
    assert kept == {f"{config.run_id}.{number + 1}": str(number) for number in range(3)}


def test_a_run_is_set_aside_though_somebody_looks_at_it_meanwhile(tmp_path: Path) -> None:
    config = compose("local_batch=8", f"results_dir={tmp_path}")
    config.folder.mkdir(parents=True)
    claim = claims.claim_of_run(config.folder)
    claim.parent.mkdir()
    claim.touch()
    with claim.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as `is_claimed` does
        looks = threading.Timer(0.02, fcntl.flock, (lock, fcntl.LOCK_UN))
        looks.start()
        set_aside(config)
        looks.join()
    assert not config.folder.exists()


def test_a_repeated_branch_of_a_run_that_has_ended_is_refused_and_stays(tmp_path: Path) -> None:
    words = (*ALONE, *TINY, "local_batch=8", "model=tiny_cnn", f"results_dir={tmp_path}")
    source = compose(*words, "study=t")
    source.folder.mkdir(parents=True)
    save_config(source, RunPaths(source.folder).config)  # completed: it has no checkpoint
    config = compose(*words, "study=s", f"resume_from={source.folder}")
    paths = RunPaths(config.folder)
    paths.folder.mkdir(parents=True)
    save_checkpoint(paths)
    Sweep([config], [], {config.run_id})
    Sweep([config], [], {"another point"}, repeats=True)
    with pytest.raises(ConfigError, match="that run has no complete checkpoint"):
        Sweep([config], [], {config.run_id}, repeats=True)


def test_a_run_that_others_work_at_is_left_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "s/run"
    with claims.run_claimed(folder) as first, claims.run_claimed(folder) as second:
        assert (first, second) == (True, False)
    with claimed(RunPaths(folder).worker_claim(0)), claims.run_claimed(folder) as is_ours:
        assert not is_ours, "a killed sweep has left a worker"


def test_a_sweep_is_known_though_somebody_looked_while_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks whether a claim is held, holds it for a moment."""
    looks = [contextlib.nullcontext(False), contextlib.nullcontext(False)]
    monkeypatch.setattr(locks, "claimed", lambda path: looks.pop() if looks else claimed(path))
    with claims.registered(tmp_path):
        assert len(claims.sweeps(tmp_path)) == 1
        assert not looks


def test_a_sweep_hears_of_each_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Ctrl-C, the second one ends the workers at once."""
    sent: list[int] = []
    monkeypatch.setattr(claims, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(
        claims, "os", SimpleNamespace(getpid=os.getpid, kill=lambda _, n: sent.append(n))
    )
    with claims.registered(tmp_path):
        (sweep,) = claims.sweeps(tmp_path)
        claims.ask_to_stop(tmp_path, sweep)
        wait_for(lambda: len(sent) == 1)
        claims.ask_to_stop(tmp_path, sweep)
        wait_for(lambda: len(sent) == 2)
    assert sent == [signal.SIGTERM] * 2


def test_what_a_killed_sweep_left_is_removed_unless_another_is_at_work(tmp_path: Path) -> None:
    team, hosts = tmp_path / ".team.x", tmp_path / ".preflight.x"
    for folder in (team, hosts):
        folder.mkdir()
        (folder / "points").touch()
    with claimed(tmp_path / ".sweeps/elsewhere.7"), claims.registered(tmp_path):
        assert team.exists(), "it may be the other one's"
    os.utime(hosts, (0, 0))
    with claims.registered(tmp_path):
        pass
    assert not team.exists()
    assert not hosts.exists()
