"""Points of a sweep at once on one machine: the same numbers on GPUs or cores of their own, and
times that say so.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import bsweep as package
from bsweep import analysis, plots
from bsweep.analysis.prediction.seen_runs import observed
from bsweep.config.launch import ProcessesConfig
from bsweep.config.run import RunConfig
from bsweep.config.target import target_of
from bsweep.launch import environment, resources
from bsweep.launch.resources import Amount, Resources
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_meta
from bsweep.study import branching, history, parallel, states
from bsweep.study.estimate import timed
from bsweep.study.history import Planned
from tests.launch.test_team import numbers
from tests.study.test_operating import status
from tests.study.test_run import runs, wait_for_records
from tests.support.running import (
    TINY,
    Fork,
    before,
    compose,
    exits,
    imported_first,
    ran_ok,
    recorded,
    summaries,
)
from tests.support.saved import save_checkpoint
from tests.support.synthetic_study import META, write_run

POINT = (
    *TINY,
    "model=tiny_cnn",
    "strategy=allreduce",
    "launch.threads_per_worker=1",
    "log_every_steps=1",
)

NOTES_CORES = """
import json, os, sys
if sys.orig_argv[-2:-1] == ["bsweep.train.worker"]:
    with open(f"{sys.orig_argv[-1]}/../../cores.{os.getpid()}", "w") as file:
        json.dump(sorted(os.sched_getaffinity(0)), file)
"""


def cores_of(run: Path) -> set[int]:
    """The cores on which the workers of a run computed."""
    return {core for path in run.glob("cores.*") for core in json.loads(path.read_text())}


@pytest.mark.full
def test_parallel_points_have_own_cores_and_unchanged_numbers(tmp_path: Path) -> None:
    env = imported_first(tmp_path, NOTES_CORES)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("takes two cores")
    grid = ("run", "-m", "local_batch=4,8", "num_workers=1,2", "epochs=2", *POINT)
    pinned = ("taskset", "--cpu-list", ",".join(map(str, cores)))
    ran_ok(*grid, "study=alone", cwd=tmp_path, prefix=pinned)
    beside = ran_ok(
        *grid, "study=beside", "launch.parallel=2", cwd=tmp_path, env=env, prefix=pinned
    )
    assert numbers(tmp_path, "beside") == numbers(tmp_path, "alone") != {}, (
        "bit for bit, under the same ids"
    )
    found = {paths.folder: read_meta(paths) for paths in runs(tmp_path, "beside")}
    flagged = {
        folder.name.split("_")[1] for folder, meta in found.items() if meta.get("beside_others")
    }
    assert flagged == {"w1"}, "two workers fill both cores"
    assert not any("beside_others" in read_meta(paths) for paths in runs(tmp_path, "alone"))
    assert {meta["cores"] for meta in found.values()} == {2}, "the machine's, not the point's"
    assert all(cores_of(run) == set(cores) for run in found if "_w2_" in run.name)
    first, second = (cores_of(run) for run in found if "_w1_" in run.name)
    assert len(first) == len(second) == 1
    assert first != second
    lines = [line for line in beside.stderr.splitlines() if "epoch 1/2" in line]
    assert sorted(line[:5] for line in lines) == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


@pytest.mark.full
def test_points_at_once_are_stopped_together_and_taken_up_again(tmp_path: Path) -> None:
    more = ("epochs=30", "study=s", "launch.parallel=2", "launch.slowdown=[4]")
    grid = ("-m", "local_batch=4,5,90", *more, *POINT)
    sweep = Fork("bsweep", "run", *grid, cwd=tmp_path, has_forks=True)
    wait_for_records(tmp_path, "epoch", num_runs=2)
    assert status(tmp_path)["counts"] == {"running": 2, "new": 1}
    ran_ok("stop", "results/s", cwd=tmp_path)
    assert sweep.wait(60) == 130
    assert status(tmp_path)["counts"] == {"interrupted": 2, "new": 1}
    again = ran_ok("resume", "results/s", cwd=tmp_path)
    assert status(tmp_path)["counts"] == {"completed": 3}, again.stderr
    events = [recorded(paths.folder, "event") for paths in runs(tmp_path)]
    assert sum("resumed" in [one["event"] for one in of_run] for of_run in events) == 2
    # The third one is alone if the first two end at the same time.
    assert sum(read_meta(paths).get("beside_others", False) for paths in runs(tmp_path)) >= 2


def test_a_point_that_fails_is_retried_and_stops_no_other(tmp_path: Path) -> None:
    code = "if first.config.local_batch == 8: os.kill(os.getpid(), 9)"
    env = before(tmp_path, "train.step", "train_step", code)
    grid = ("-m", "local_batch=8,16,4", "epochs=2", "study=s", *POINT)
    given = ("launch.parallel=auto", "launch.retries=1")
    result = exits(1, "run", *grid, *given, cwd=tmp_path, env=env)
    ends = {batch: end["status"] for batch, end in summaries(tmp_path).items()}
    assert ends == {8: "failed", 16: "completed", 4: "completed"}
    assert result.stderr.count("b8_w1_allreduce_s0") == 2, "it was tried twice"
    numbered = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert {line[:6] for line in numbered} == {"[1/3] ", "[2/3] ", "[3/3] "}


def sized(monkeypatch: pytest.MonkeyPatch, num_cores: int, num_gpus: int = 0) -> None:
    """Have this be a machine of so many cores and GPUs."""
    monkeypatch.setattr(resources, "num_cores", lambda: num_cores)
    monkeypatch.setattr(resources, "usable_cores", lambda: tuple(range(num_cores)))
    monkeypatch.setattr(resources, "num_gpus", lambda device: 0 if device == "cpu" else num_gpus)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)


def test_nothing_begins_once_a_signal_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_point(index: int, _: object) -> str:
        (tmp_path / str(index)).touch()
        os.kill(os.getppid(), signal.SIGINT)  # which this process gets from its parent process
        time.sleep(60)
        return "completed"

    sized(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        parallel.run_at_once([point(1, f"seed={seed}") for seed in range(3)], run_point)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_point_whose_process_is_killed_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_point(index: int, _: object) -> str:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "completed"

    sized(monkeypatch, 2)
    configs = [point(1, "launch.threads_per_worker=1", f"seed={seed}") for seed in range(4)]
    statuses = parallel.run_at_once(configs, run_point)
    assert statuses == ["completed", "interrupted", "completed", "completed"]


def point(num_workers: int = 1, *overrides: str) -> RunConfig:
    return compose(
        "local_batch=8", f"num_workers={num_workers}", "launch.parallel=auto", *overrides
    )


def test_a_point_takes_a_core_per_thread_and_per_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, 8)
    assert resources.amount_for(point(1)) == resources.amount_for(point(2)) == Amount(8, 0), (
        "by default all of them"
    )
    assert resources.amount_for(point(2, "launch.threads_per_worker=3")) == Amount(6, 0)
    assert resources.amount_for(point(4, "launch.threads_per_worker=3")) == Amount(8, 0), (
        "no more than there are"
    )
    servers = ("strategy=parameter_server", "strategy.num_servers=2", "launch.threads_per_worker=1")
    assert resources.amount_for(point(3, *servers)) == Amount(5, 0)


def test_a_point_on_gpus_takes_as_many_and_their_part_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, 16, num_gpus=4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7,9")
    machine = resources.of_machine([point()])
    assert machine == Resources(tuple(range(16)), ("2", "3", "5", "7"))
    first = machine.first(resources.amount_for(point(2)))
    assert first == Resources((0, 1, 2, 3, 4, 5, 6, 7), ("2", "3"))
    rest = machine.without([first])
    assert rest.first(resources.amount_for(point(3))) is None
    second = rest.first(resources.amount_for(point(1)))
    assert second == Resources((8, 9, 10, 11), ("5",))
    assert resources.amount_for(point(1, "device=cpu", "launch.threads_per_worker=5")) == Amount(
        5, 0
    )


def test_workers_of_a_pinned_point_see_its_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    launch = point().launch
    assert isinstance(launch, ProcessesConfig)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    for gpus, seen in (((), "2,5,7"), (("5", "7"), "5,7")):
        Resources((0,), gpus).take()
        found = environment.by_file(os.environ, launch)
        assert found["CUDA_VISIBLE_DEVICES"] == seen


def test_points_without_room_for_two_run_in_turn_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, 2)
    reason = resources.why_in_turn([point(1), point(2)]) or ""
    assert "2 cores" in reason
    assert "launch.threads_per_worker=1" in reason
    narrow = [point(1, "launch.threads_per_worker=1"), point(2, "launch.threads_per_worker=1")]
    reason = resources.why_in_turn(narrow) or ""
    assert reason
    assert "launch.threads_per_worker" not in reason
    assert resources.why_in_turn([*narrow, narrow[0]]) is None
    assert resources.why_in_turn(narrow[:1]) == "", "one point has no others"
    alone = compose("local_batch=8", "launch.threads_per_worker=1")
    assert resources.why_in_turn([*narrow, alone]) == ""
    sized(monkeypatch, 8, num_gpus=1)
    assert "1 GPU and 8 cores" in (resources.why_in_turn([point(1), point(1)]) or "")
    sized(monkeypatch, 2)  # which a container grants
    monkeypatch.setattr(resources, "usable_cores", lambda: tuple(range(64)))
    points = [point(1, "launch.threads_per_worker=2")] * 2
    assert len(set(resources.of_machine(points).cores)) == 2
    assert "2 cores have no room" in (resources.why_in_turn(points) or "")


def test_a_run_is_the_same_one_whatever_runs_beside_it() -> None:
    """It has the same id, and takes as long where it is alone."""
    assert history.planned(point()) == history.planned(compose("local_batch=8"))


BESIDE = {**META, "beside_others": True}
SHOWN = ("accuracy_by_epoch", "time_by_batch", "throughput_and_speedup", "accuracy_by_time")


@pytest.mark.full
def test_times_of_parallel_points_are_left_out_but_accuracies_stay(tmp_path: Path) -> None:
    for batch in (8, 16, 32):
        for seed in (0, 1):
            meta = BESIDE if batch == 8 or seed else META
            write_run(tmp_path / "s", local_batch=batch, seed=seed, meta=meta)
    study, whole = package.load(tmp_path / "s"), package.load(tmp_path / "s", beside=True)
    (line,) = (warning for warning in study.warnings if "launch.parallel" in warning)
    assert line.startswith("4 runs shared the machine with other runs")
    assert "--beside" in line
    assert not any("launch.parallel" in warning for warning in whole.warnings)
    cells, of_whole = analysis.cells(study.runs), analysis.cells(whole.runs)
    assert list(cells["n"]) == [2, 2, 2]
    assert cells["test_accuracy"].equals(of_whole["test_accuracy"])
    assert cells["train_seconds"].isna().tolist() == [True, False, False]
    assert [len(seconds) for seconds in cells["train_seconds_points"]] == [0, 1, 1]
    assert of_whole["train_seconds"].notna().all()
    for name in SHOWN:
        shown = plots.FIGURES[name].table(study).index.get_level_values("local_batch")
        batches = {8, 16, 32} if name == "accuracy_by_epoch" else {16, 32}
        assert set(shown) == batches, name
    timed = observed(study, target_of(accuracy=0.5)).timings()
    assert sorted(timing.cell.local_batch for timing in timed) == [16, 32]
    assert len(observed(whole, target_of(accuracy=0.5)).timings()) == 6
    reached = analysis.time_to_target(study, 0.5)
    assert set(reached.index.get_level_values("local_batch")) == {16, 32}
    assert reached["reached"].all()
    warnings = package.predict(study, 0.75, workers=[1]).warnings
    assert any(line.startswith("4 runs shared the machine") for line in warnings)


def test_no_time_of_a_point_is_estimated_by_those_beside_others(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "s", local_batch=8, seed=seed, meta=BESIDE if seed else META)
        for seed in (0, 1)
    ]
    points = [Planned(folder.name, 1, 8, 1000, 3, "k") for folder in folders]
    assert [one.point.run_id for one in timed(points, states.read_states(tmp_path / "s"))] == [
        folders[0].name
    ]


@pytest.mark.parametrize("meta", [META, BESIDE])
def test_a_run_that_goes_on_from_one_beside_others_says_so(
    tmp_path: Path, meta: dict[str, Any]
) -> None:
    source = RunPaths(write_run(tmp_path / "s", local_batch=8, meta=meta))
    save_checkpoint(source)
    branch = RunPaths(tmp_path / "branch")
    branch.folder.mkdir()
    config = compose("local_batch=16", f"resume_from={source.folder}")
    assert branching.begin(config, branch) == (meta is BESIDE)


@pytest.mark.full
def test_a_study_timed_beside_others_alone_says_what_is_accurate(tmp_path: Path) -> None:
    for batch in (8, 64):
        write_run(tmp_path / "s", local_batch=batch, meta=BESIDE)
    study = package.load(tmp_path / "s")
    lines = analysis.headlines(study)
    assert lines[0].startswith("Most accurate: local batch 64 on 1 worker")
    assert not any("Fastest" in one for one in lines)
    with pytest.raises(
        ValueError, match=r"other runs \(launch\.parallel\).*launch\.parallel=1.*beside=True"
    ):
        package.predict(tmp_path / "s", 0.75)
    assert package.predict(
        package.load(tmp_path / "s", beside=True), 0.75, workers=[1, 2]
    ).seen.timings()
