"""What the parts of a step take, on real workers, and what is said of it."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep.measure import profile_worker
from bsweep.numerics import optim
from bsweep.numerics.timing import Timeline
from bsweep.runlog import profile_file
from bsweep.runlog.profile_file import Anatomy
from bsweep.train import graph_capture, step
from tests.support.gpus import on_gpus
from tests.support.running import TINY, compose, ran_ok
from tests.support.training import set_up

POINT = (*TINY, "model=tiny_cnn", "local_batch=8", "study=s", "epochs=1")
ALONE = (*POINT, "strategy=single", "launch=inline")
PARTS = {"data", "forward", "backward", "exchange", "optimizer", "loop"}


def test_phases_divide_time_and_inner_ones_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    timeline = Timeline(torch.device("cpu"))
    for _ in range(2):
        # Begin at 0, 1 and 2.
        with timeline.phase("loop"), timeline.phase("exchange"), timeline.phase("optimizer"):
            time.perf_counter()  # 3; they end at 4, 5 and 6
        time.perf_counter()  # 7 is in no phase
    assert timeline.totals() == {"loop": 4, "exchange": 4, "optimizer": 4}


@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda")])
def test_every_part_of_a_step_is_timed_and_nothing_is_trained(device: str, tmp_path: Path) -> None:
    job = set_up(tmp_path, *POINT, "accumulation_steps=2", f"device={device}")
    before = job.vector.parameters.clone()
    # One may be interrupted between two clocks.
    every = [profile_worker.dissect(job, most_rounds=4) for _ in range(8)]
    assert min(abs(sum(one.parts.values()) / one.step_seconds - 1) for one in every) < 0.05
    found = every[0]
    assert found.parts.keys() == PARTS
    assert min(found.parts.values()) > 0
    assert found.untimed_step_seconds > 0
    assert found.wait_seconds == 0
    assert torch.equal(job.vector.parameters, before)
    optim.set_learning_rate(job.optimizer, 0.1)
    step.train_step(
        job, torch.arange(16), torch.arange(16), job.inputs.crops(1, job.config.seed), 2
    )
    assert not torch.equal(job.vector.parameters, before), "a step would have trained"


@pytest.mark.full
@pytest.mark.parametrize(
    "policy",
    [
        ("batching=schedule", "batching.every_epochs=0.5"),
        ("batching=cabs", "batching.every_steps=2"),  # its batch is proportional to the rate
    ],
)
def test_no_policy_changes_the_batch_of_a_profile(policy: tuple[str, ...], tmp_path: Path) -> None:
    job = set_up(tmp_path, *POINT, "accumulation_steps=2", *policy)
    profile_worker.dissect(job, most_rounds=30)
    assert job.policy.shares(0.0) == job.policy.of_batches([16])


@pytest.mark.parametrize("device", [on_gpus("cuda")])
def test_a_graph_is_one_part_and_its_kernels_are_counted(device: str, tmp_path: Path) -> None:
    job = set_up(tmp_path, *POINT, f"device={device}", "graph=true")
    graph_capture.capture(job)
    parts = profile_worker.dissect(job, most_rounds=4).parts
    assert parts.keys() == {"graph", "exchange", "optimizer", "loop"}
    busy = profile_worker.trace(job, tmp_path / "trace.json")
    assert busy is not None
    assert busy > 0


def test_a_gpu_is_busy_while_any_kernel_runs_that_is_no_exchange() -> None:
    def event(
        begin: float, seconds: float, name: str = "gemm", cat: str = "kernel"
    ) -> dict[str, Any]:
        return {"cat": cat, "name": name, "ts": begin * 1e6, "dur": seconds * 1e6}

    kernels = [event(0, 2), event(1, 0.5), event(1, 2), event(5, 1, cat="gpu_memcpy")]
    others = [
        event(10, 5, "ncclDevKernel_AllReduce"),
        event(20, 5, cat="cpu_op"),
        {"ph": "M", "name": "process"},
    ]
    assert profile_worker._busy_seconds([*kernels, *others]) == pytest.approx(4)


def ranges(trace: Path) -> set[str]:
    return {
        event["name"] for event in json.loads(trace.read_text())["traceEvents"] if "dur" in event
    }


def test_a_worker_in_this_process_is_profiled(tmp_path: Path) -> None:
    result = ran_ok("profile", *ALONE, "local_batch=4,8", cwd=tmp_path)
    assert "taking local_batch=4, the first of" in result.stderr
    *_, sentence, trace = result.stdout.splitlines()
    assert ranges(tmp_path / trace) >= {*PARTS, "aten::convolution"}
    config = compose(*ALONE, "local_batch=4", f"results_dir={tmp_path}/results")
    assert sentence == profile_file.bottleneck(profile_file.read_anatomies(config))
    assert not list((tmp_path / "results/s").glob("*/summary.json"))


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [("strategy=horovod",), ("strategy=ddp",), ("strategy=diloco", "allocation.local_steps=[2,1]")],
)
def test_workers_are_profiled_together(overrides: tuple[str, ...], tmp_path: Path) -> None:
    point = (*POINT, "num_workers=2", *overrides)
    result = ran_ok("profile", *point, cwd=tmp_path)
    config = compose(*point, f"results_dir={tmp_path}/results")
    workers = profile_file.read_anatomies(config)
    assert [one.parts.keys() for one in workers] == [PARTS, PARTS]
    # On a machine that others use, too.
    for one in workers:
        assert sum(one.parts.values()) == pytest.approx(one.step_seconds, rel=0.25)
    assert (
        workers[0].overlaps == ("strategy=ddp" in overrides) == ("exchange in it" in result.stdout)
    )
    traces = sorted(profile_file.folder_of(config).glob("trace.*"))
    assert [str(path.relative_to(tmp_path)) for path in traces] == result.stdout.splitlines()[-2:]
    assert all(ranges(path) >= PARTS for path in traces)


def worker_of(wait: float | None = None, busy: float | None = None, **parts: float) -> Anatomy:
    seconds = {"step_seconds": 1.0, "untimed_step_seconds": 1.0}
    return Anatomy(parts=parts, **seconds, wait_seconds=wait, busy_seconds=busy, overlaps=False)


WAITS = (0.4, 0.5, 0.0)


@pytest.mark.parametrize(
    ("workers", "part", "said"),
    [
        ([worker_of(forward=0.3, backward=0.6, exchange=0.1)], "computing", "90%"),
        ([worker_of(forward=0.2, backward=0.2, exchange=0.6, wait=0.1)] * 2, "exchange", "60%"),
        ([worker_of(forward=0.4, exchange=0.6, wait=w) for w in WAITS], "waiting", "worker 2"),
        ([worker_of(forward=0.6, data=0.4)], "data", "40%"),
        ([worker_of(forward=0.3, backward=0.6, exchange=0.1, busy=0.2)], "launch", "70%"),
        ([worker_of(graph=0.9, exchange=0.1, busy=0.85)], "computing", "90%"),
    ],
)
def test_the_largest_part_that_is_no_computing_is_named(
    workers: list[Anatomy], part: str, said: str
) -> None:
    sentence = profile_file.bottleneck(workers)
    assert sentence.startswith(f"{part}: ")
    assert said in sentence
