"""How much uneven workers compute: the study's own numbers, what the policies promise, and what a
person gets wrong.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from bsweep import allocation
from bsweep.allocation import devices, fill_in, probes
from bsweep.config import uneven
from bsweep.config.parsing import conf_dir
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config, save_config
from bsweep.config.values import ConfigError
from bsweep.runlog.probe_file import ProbedBatch, ProbedWorker
from tests.support.refusing import refused
from tests.support.running import compose, options

NODES = ("4 RTX 2080 Ti", "3 RTX 2080 Ti + TITAN RTX", "4 A30", "2 RTX 3090 + 2 V100")
FLOPS = (113.8e12, 117.85e12, 165e12, 133.5e12)
DEVICES = f"allocation.devices={json.dumps(NODES)}"
POINT = ("local_batch=4", "num_workers=4", "strategy=diloco", "model=tiny_cnn", "study=s")
POLICIES = [*options("allocation"), "by_speed"]


def worker(
    seconds_per_example: float,
    largest: int = 64,
    device: str = "cpu",
    **changes: Any,
) -> ProbedWorker:
    """One whose step takes 0.01 s and a time for each example, as all do to a first
    approximation.
    """
    batches = tuple(
        ProbedBatch(batch, 0.01 + seconds_per_example * batch)
        for batch in (1, 2, 4, 8, 16, 32, 64)
        if batch <= largest
    )
    values = {
        "peak_flops": 1e9 / seconds_per_example,
        "memory_bytes": None,
        "stopped_by": "out_of_memory",
        **changes,
    }
    return ProbedWorker("h", device, "fp32", batches=batches, largest_batch=largest, **values)


def write_probe(
    config: RunConfig, workers: list[ProbedWorker], changes: dict[str, Any] | None = None
) -> None:
    path = probes.path_of(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = {
        "schema": 1,
        "probed": probes.settings(config),
        "workers": [asdict(one) for one in workers],
        "exchange_seconds": 0.5,
    }
    path.write_text(json.dumps({**probe, **(changes or {})}))


def resolved(
    tmp_path: Path,
    workers: list[ProbedWorker] | None,
    *overrides: str,
    probe: dict[str, Any] | None = None,
) -> RunConfig:
    config = compose(
        *POINT, f"results_dir={tmp_path}", f"num_workers={len(workers or FLOPS)}", *overrides
    )
    if workers:
        write_probe(config, workers, probe)
    return fill_in(config)


def test_by_seconds_nobody_takes_longer_than_the_slowest() -> None:
    """The study's idle times imply these speeds (`notes` on its table 3); fitted to them, a round
    has next to no idle time.
    """
    of_study = [30.5 / 100 / speed for speed in (1.04, 1.0, 1.92, 1.19)]
    assert uneven.by_seconds(of_study, 100) == (104, 100, 192, 119)
    others = [0.13, 0.2, 0.017, 0.2, 0.199]
    for seconds, every in itertools.product((of_study, others), (1, 7, 100)):
        steps = uneven.by_seconds(seconds, every)
        assert min(steps) == every
        idle = [every * max(seconds) - n * t for n, t in zip(steps, seconds, strict=True)]
        assert all(-1e-9 < rest < t + 1e-9 for rest, t in zip(idle, seconds, strict=True))


def test_drift_is_of_shares() -> None:
    assert not uneven.drifted([1, 2], [2, 4], 0.01)  # all slower alike
    assert not uneven.drifted([1, 1], [1, 1.05], 0.1)
    assert uneven.drifted([1, 1], [1, 2], 0.1)


@pytest.mark.parametrize("total", [4, 5, 19, 20, 1000])
def test_shares_sum_up_and_leave_nobody_without(total: int) -> None:
    for weights in (FLOPS, (1, 1, 1, 1), (1000, 1, 1, 1), (1, 2, 3, 4)):
        parts = uneven.shares(total, weights)
        assert sum(parts) == total
        assert min(parts) >= 1
        assert [parts[i] for i in sorted(range(4), key=lambda i: weights[i])] == sorted(parts)


def test_a_knee_keeps_the_throughput() -> None:
    rates = worker(0.001).rates
    assert uneven.knee_batch(rates, 1, 0.9) == 64  # 0.01 s of each step are fixed
    assert uneven.knee_batch(rates, 1, 0.5) == 8  # 8 / 0.018 of 64 / 0.074
    assert uneven.knee_batch(rates, 32, 0.5) == 32
    # Seconds between probed batches lie on lines.
    assert worker(0.001).step_seconds(48) == pytest.approx(0.058)
    assert worker(0.001, largest=1).step_seconds(1) == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("4x a30", "A30"),
        ("2080 Ti", "RTX 2080 Ti"),
    ],
)
def test_torchs_names_are_known(name: str, key: str) -> None:
    assert devices.flops(name) == devices.flops(key)


def test_names_are_unambiguous_and_every_device_has_its_source() -> None:
    table = yaml.safe_load((conf_dir() / "devices.yaml").read_text())
    names = [
        devices.plain(alias)
        for name, entry in table.items()
        for alias in (name, *entry.get("names", ()))
    ]
    assert len(names) == len(set(names))
    for entry in table.values():
        assert entry["tflops"] > 0
        assert entry["memory_gb"] > 0
        assert entry["source"]
    for other in ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100X", "NVIDIA RTX 6000 Ada Generation"):
        with pytest.raises(ConfigError):
            devices.flops(other)


@pytest.mark.full(but=5)
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_composes_and_resolves(name: str, tmp_path: Path) -> None:
    config = resolved(tmp_path, [worker(0.001), worker(0.002, largest=32)], f"allocation={name}")
    save_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config
    assert fill_in(config) == config, "what is resolved stays as it is"
    batches, steps = {
        "uniform": ((4, 4), (100, 100)),
        "batch_by_flops": ((8, 4), (100, 100)),
        "batch_by_memory": ((64, 32), (100, 100)),
        "steps_by_flops": ((4, 4), (200, 100)),
        "steps_by_speed": ((4, 4), (128, 100)),  # 0.018 s against 0.014
        "by_speed": ((4, 4), (128, 100)),
        "hybrid": ((64, 32), (24, 24)),  # a round of 100 x 0.018 s, at 0.074 s a step
        "network_aware": ((4, 4), (321, 250)),  # 250 x 0.018 s = 9 x 0.5 s
    }[name]
    assert (config.local_batches, config.local_steps) == (batches, steps)
    assert (config.allocation.local_batches is None) == (batches == (4, 4))
    assert (config.allocation.local_steps is None) == (
        name in ("uniform", "batch_by_flops", "batch_by_memory")
    )


def test_hybrid_fits_the_steps_to_its_batches(tmp_path: Path) -> None:
    workers = [worker(0.001), worker(0.004, largest=16)]
    config = resolved(tmp_path, workers, "allocation=hybrid", "allocation.knee=0.6")
    assert config.local_batches == (16, 4)  # most of the second one's time is the examples'
    assert config.local_steps == (100, 100)
    given = resolved(tmp_path, workers, "allocation=hybrid", "allocation.local_batches=[8,8]")
    assert given.local_batches == (8, 8)
    assert given.local_steps == (144, 62)  # 100 x 0.026 s, at 0.042 s a step


def test_network_aware_chooses_the_rounds_length(tmp_path: Path) -> None:
    quick = {"exchange_seconds": 0.001}
    config = resolved(tmp_path, [worker(0.001)] * 2, "allocation=network_aware", probe=quick)
    assert config.local_steps == (1, 1)
    assert getattr(config.strategy, "sync_every", None) == 1


def test_a_global_batch_is_shared_exactly(tmp_path: Path) -> None:
    batch = ("local_batch=null", "global_batch=19", "allocation=batch_by_flops", DEVICES)
    config = resolved(tmp_path, None, *batch)
    assert config.allocation.local_batches == (4, 4, 6, 5)
    assert config.examples_per_step == 19
    twice = resolved(tmp_path, None, *batch, "global_batch=38", "accumulation_steps=2")
    assert twice.allocation.local_batches == (4, 4, 6, 5)
    assert twice.examples_per_step == 38
    memory = ("local_batch=null", "global_batch=24", "allocation=batch_by_memory")
    assert resolved(tmp_path, [worker(1), worker(1, largest=16)], *memory).local_batches == (19, 5)
    for largest in (64, 8):  # an even share of 12 need not fit
        workers = [worker(0.001), worker(1, largest=largest)]
        assert resolved(tmp_path, workers, *memory[:2], "allocation=hybrid").examples_per_step == 24


def test_a_probe_that_ended_before_memory_did_is_doubtful(tmp_path: Path) -> None:
    workers = [worker(1), worker(2, largest=16, stopped_by="seconds")]
    (warning,) = allocation.warnings(resolved(tmp_path, workers, "allocation=batch_by_memory"))
    assert "local batch 16 of worker 1" in warning
    assert "had time for" in warning
    smaller = ("allocation=batch_by_memory", "allocation.local_batches=[8,8]")
    assert not allocation.warnings(resolved(tmp_path, workers, *smaller))
    given = ("allocation=batch_by_memory", "allocation.local_batches=[1,2,3,4]")
    assert not allocation.warnings(resolved(tmp_path, None, *given))


def test_the_run_id_follows_the_lists_and_not_where_they_came_from(tmp_path: Path) -> None:
    policy = ("allocation=steps_by_flops",)
    nominal = resolved(tmp_path, None, *policy, DEVICES)
    given = resolved(tmp_path, None, *policy, "allocation.local_steps=[100,104,145,117]")
    other = resolved(tmp_path, None, *policy, "allocation.local_steps=[100,104,145,118]")
    assert nominal.run_id == given.run_id != other.run_id
    assert [devices.flops(node) for node in NODES] == pytest.approx(FLOPS)


def test_flops_are_nominal_for_all_workers_or_measured_for_all(tmp_path: Path) -> None:
    known = [worker(0.001, device=name) for name in ("NVIDIA A30", "Tesla T4")]
    nominal = resolved(tmp_path, known, "allocation=steps_by_flops")
    assert nominal.local_steps == (round(100 * 165 / 65), 100)
    mixed = [
        worker(0.001, device="NVIDIA A30", peak_flops=3e12),
        worker(0.001, device="GPU of tomorrow", peak_flops=1e12),
    ]
    assert resolved(tmp_path, mixed, "allocation=steps_by_flops").local_steps == (300, 100)


WORKERS = [worker(0.001), worker(0.002, largest=8)]
SMALL = [asdict(worker(1, largest=1))] * 2


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        ("batch_by_memory", {"schema": 99}, ["schema 99", "update bsweep"]),
        ("batch_by_memory", {"workers": 3}, ["not a probe of this version", "bsweep probe"]),
        ("batch_by_memory", {"workers": []}, ["0 workers", "num_workers=2"]),
        ("batch_by_memory model=resnet18", {"workers": SMALL}, ["BatchNorm"]),
        ("batch_by_memory local_batch=null global_batch=100", {}, ["for 8", "accumulation_steps"]),
        ("steps_by_speed local_batch=9", {}, ["local batch 9", "worker 1", "memory for 8 at most"]),
        ("hybrid local_batch=9", {}, ["local batch 9", "worker 1"]),
        ("hybrid allocation.local_batches=[8,9]", {}, ["local batch 9", "worker 1"]),
        ("network_aware local_batch=9", {}, ["local batch 9", "worker 1"]),
        ("batch_by_flops allocation.devices=[A30]", {}, ["names 1 devices", "num_workers=2"]),
        ("batch_by_flops allocation.devices=[A30,RTX309]", {}, ["'RTX309'", "'RTX 3090'"]),
        ("batch_by_flops allocation.devices=[A30,Vega]", {}, ["'Vega'", "bsweep probe"]),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, words: str, changes: dict[str, Any], expected: list[str]
) -> None:
    with refused(*expected):
        resolved(tmp_path, WORKERS, *f"allocation={words}".split(), probe=changes)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "uniform"])
def test_a_missing_probe_is_named_with_its_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, None, f"allocation={name}")
    message = str(caught.value)
    assert str(tmp_path / "s/probe.json") in message
    assert "run `bsweep probe` with the same overrides first" in message
    assert ("allocation.devices" in message) == name.endswith("flops")
    with pytest.raises(ConfigError, match=r"elsewhere\.json"):
        resolved(tmp_path, None, f"allocation={name}", "allocation.probe=elsewhere.json")


@pytest.mark.parametrize(
    ("policy", "change", "key"),
    [
        ("steps_by_speed", "num_workers=3", "num_workers="),
        ("steps_by_speed", "model.width=5", "model.width="),
        ("steps_by_speed", "precision=fp64", "precision="),
        ("steps_by_speed", "launch.hosts='a:1,b:1'", "launch.hosts="),
        # The exchange matters where its time or memory does.
        ("network_aware", "compression=fp16", "compression.name="),
        ("batch_by_memory", "compression=fp16", "compression.name="),
    ],
)
def test_a_probe_of_something_else_is_refused(
    policy: str, change: str, key: str, tmp_path: Path
) -> None:
    point = (*POINT, f"results_dir={tmp_path}", "num_workers=2", f"allocation={policy}")
    write_probe(compose(*point), WORKERS)
    exchanged = "compression=fp16" if policy == "steps_by_speed" else "compression=none"
    assert fill_in(compose(*point, "data.subset=100", "seed=3", exchanged))
    with refused(key, "run `bsweep probe`"):
        fill_in(compose(*point, change))


def test_weights_may_miss_1_by_their_rounding() -> None:
    assert compose(*POINT, "strategy.weights=[0.3333333,0.3333333,0.3333334,0]")
