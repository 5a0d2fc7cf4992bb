"""Real probes of real workers."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bsweep.allocation import probes
from bsweep.config.run import RunConfig
from bsweep.measure import probe_worker
from bsweep.runlog.probe_file import Probe
from tests.support.running import TINY, bsweep, compose, exits, imported_first, ran_ok, summaries
from tests.support.training import set_up

DATA = (*TINY, "data.num_train=300", "data.shape=[3,32,32]")
LARGE = (
    *TINY,
    "data.num_train=120",
    "data.shape=[3,64,64]",  # with few channels: much memory and little to compute
    "model=tiny_cnn",
    "model.width=16",
    "study=s",
    "local_batch=8",
    "num_workers=2",
    "epochs=1",
    "launch.threads_per_worker=1",
)
POINT = (*LARGE, "data.num_train=16", "data.shape=[3,8,8]", "model.width=8")
LIMITED = ("launch.slowdown=[1,5]", "launch.memory_limit_mb=[400,24]")
UNEVEN = (*LARGE, "precision=fp32", "strategy=diloco", *LIMITED)


# What oneDNN does on some processors, on any: a batch of 13 has no room, and after that no step of
# the process works.
SPOILT = """
import sys
if not any("resource_tracker" in word for word in sys.orig_argv):
    from bsweep.train import step
    plain, is_spoilt = step.train_step, False

    def train_step(job, batch, part, crops, num_passes):
        global is_spoilt
        if is_spoilt or len(part) > 12:
            is_spoilt = True
            raise RuntimeError("could not create a primitive")
        return plain(job, batch, part, crops, num_passes)

    step.train_step = train_step
"""


def probed(tmp_path: Path, *overrides: str) -> tuple[RunConfig, Probe]:
    ran_ok("probe", *overrides, cwd=tmp_path)
    config = compose(*overrides, f"results_dir={tmp_path}/results")
    return config, probes.read(config)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("uneven")
    result = ran_ok("probe", *UNEVEN, "allocation=hybrid", cwd=folder, fresh=True)
    return folder, result.stdout + result.stderr


@pytest.mark.full
def test_a_probe_sees_who_is_slow_and_who_has_little_memory(uneven: tuple[Path, str]) -> None:
    folder, output = uneven
    config = compose(*UNEVEN, f"results_dir={folder}/results")
    fast, slow = probes.read(config).workers
    both = [batch.local_batch for batch in slow.batches]
    factors = [slow.step_seconds(batch) / fast.step_seconds(batch) for batch in both]
    assert statistics.median(factors) > 1.5
    assert fast.peak_flops / slow.peak_flops > 1.5
    assert slow.largest_batch < fast.largest_batch
    assert slow.stopped_by == "out_of_memory"
    assert (fast.memory_bytes, slow.memory_bytes) == (400 * 2**20, 24 * 2**20)
    assert {batch.local_batch for batch in fast.batches} >= {1, 2, 4, 8, 16}
    for words in ("worker 1: local batch 8: ", "out of memory", "TFLOP/s", "one exchange: "):
        assert words in output
    assert not list((folder / "results/s").glob("*/summary.json"))
    written = json.loads(probes.path_of(config).read_text())
    assert json.loads(json.dumps(asdict(probes.read(config)))) == {
        **written,
        "splits": [],
    }


@pytest.mark.full
def test_a_memory_limit_holds_in_training_as_in_the_probe(
    uneven: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = uneven
    probe = probes.read(compose(*UNEVEN, f"results_dir={folder}/results"))
    largest = probe.workers[1].largest_batch
    limited = ("strategy=allreduce", "launch.memory_limit_mb=[24]")
    alone = (*LARGE, "precision=fp32", "num_workers=1", *limited)
    # Within a few MiB of a limit a batch may fit one time and not the next.
    smaller, larger = largest * 3 // 4, min(120, largest * 2 + 2)
    assert larger >= largest * 3 / 2, "there are examples enough to run out of memory"
    both = f"local_batch={larger},{smaller}"
    exits(1, "run", "-m", *alone, both, cwd=tmp_path, fresh=True)
    ends = {batch: end["status"] for batch, end in summaries(tmp_path).items()}
    assert ends == {larger: "out_of_memory", smaller: "completed"}


LONE = (*POINT, "num_workers=1", "launch=inline", "strategy=single", "launch.memory_limit_mb=[200]")


@pytest.mark.full
def test_a_batch_that_does_not_fit_ends_a_probe(tmp_path: Path) -> None:
    env = imported_first(tmp_path, SPOILT)
    result = ran_ok("probe", *LONE, cwd=tmp_path, env=env)
    (found,) = json.loads((tmp_path / "results/s/probe.json").read_text())["workers"]
    assert [batch["local_batch"] for batch in found["batches"]] == [1, 2, 4, 8]
    assert found["stopped_by"] == "out_of_memory"
    assert "local batch 16: out of memory" in result.stdout


def test_after_a_point_that_does_not_fit_the_same_process_trains_no_other(tmp_path: Path) -> None:
    env = imported_first(tmp_path, SPOILT)
    result = bsweep("run", "-m", *LONE, "local_batch=16,8", cwd=tmp_path, env=env)
    ends = {batch: end["status"] for batch, end in summaries(tmp_path).items()}
    assert ends == {16: "out_of_memory", 8: "interrupted"}, result.stdout + result.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=single", "launch=inline", "num_workers=1"),
        ("strategy=horovod",),
        ("strategy=parameter_server", "allocation.local_batches=[12,4]"),
    ],
)
def test_any_strategy_is_probed(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config, probe = probed(tmp_path, *POINT, *overrides)
    assert len(probe.workers) == config.num_workers
    assert all(
        worker.largest_batch == 16 and worker.stopped_by == "examples" for worker in probe.workers
    )
    own = {batch.local_batch for batch in probe.workers[0].batches}
    assert config.local_batches[0] in own
    assert probe.exchange_seconds is not None
    assert (probe.exchange_seconds == 0) == (config.num_workers == 1)


@pytest.mark.full
def test_an_experiment_is_probed_at_its_first_point_into_a_file_of_choice(tmp_path: Path) -> None:
    small = (*DATA, "data.num_train=20", "model=tiny_cnn", "~data.side", "~model.stem")
    overrides = ("experiment=quickstart", *small, "allocation=batch_by_memory")
    result = ran_ok("probe", *overrides, "allocation.probe=p/q.json", "seed=3,4", cwd=tmp_path)
    found: dict[str, Any] = json.loads((tmp_path / "p/q.json").read_text())
    assert [worker["largest_batch"] for worker in found["workers"]] == [20]
    for words in ("local_batch=8", "num_workers=1", "seed=3"):
        assert f"taking {words}, the first of" in result.stderr


@pytest.mark.full
def test_a_failed_probe_says_why_and_leaves_the_last_one(tmp_path: Path) -> None:
    kept = tmp_path / "results/s/probe.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"schema": 1}')
    limited = ("strategy=allreduce", "launch.memory_limit_mb=[300,0.001]", "model.width=512")
    result = exits(1, "probe", *POINT, *limited, cwd=tmp_path)
    assert "a local batch of 1 is out of memory" in result.stderr, result.stderr
    assert "rank 1" in result.stderr
    assert kept.read_text() == '{"schema": 1}'


LONE_POINT = (*TINY, "model=tiny_cnn", "local_batch=8", "study=s")


@pytest.mark.parametrize(
    ("words", "graph"),
    [
        (("strategy=ddp",), False),
        (("strategy=horovod", "strategy.buckets=2", "launch=horovodrun"), False),
        (("strategy=allreduce",), True),
    ],
)
def test_a_probe_has_graphs_where_the_run_has_them(
    tmp_path: Path, words: tuple[str, ...], graph: bool
) -> None:
    """DDP has no graph of its passes."""
    of_run = compose(*LONE_POINT, "launch=torchrun", *words)
    job = set_up(tmp_path, *LONE_POINT)
    in_probe: Any = of_run.strategy.in_probe
    config = replace(probe_worker.with_graphs_of_run(of_run), strategy=in_probe)
    found = probe_worker.alone(replace(job, config=config))
    assert found.config.graph == graph
