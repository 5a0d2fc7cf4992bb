"""Probes of models that are split over workers: real runs of a few steps, at larger and larger
batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsweep import allocation
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.runlog.probe_file import ProbedSplit, SplitBatch
from bsweep.study import side_runs, split_probe
from tests.support.running import bsweep, compose, ran_ok, summaries

POINT = (
    "data=synthetic", "data.num_train=2400", "data.num_test=20", "data.shape=[3,64,64]",
    "data.crop_padding=1", "model=tiny_cnn", "model.width=16", "num_workers=2", "study=s",
    "epochs=1", "launch.threads_per_worker=1", "precision=fp32",
)  # fmt: skip
LIMIT = "launch.memory_limit_mb=[20,20]"


def probed(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Probe a point, and return the ways of splitting in the study's file."""
    ran_ok("probe", *POINT, *words, cwd=folder, timeout=600)
    found: list[dict[str, Any]] = json.loads((folder / "results/s/probe.json").read_text())[
        "splits"
    ]
    return found


@pytest.mark.full
def test_each_way_of_splitting_has_its_largest_batch_in_one_file(tmp_path: Path) -> None:
    (sharded,) = probed(tmp_path, "strategy=sharded", "local_batch=16", LIMIT)
    batches = [batch["local_batch"] for batch in sharded["batches"]]
    largest = sharded["largest_batch"]
    assert sharded["stopped_by"] == "out_of_memory"
    assert batches[0] == 16
    assert batches[-1] == largest >= 16
    peaks = [batch["peak_bytes"] for batch in sharded["batches"]]
    assert peaks == sorted(peaks)
    assert all(batch["step_seconds"] > 0 for batch in sharded["batches"])
    few = ("strategy.microbatches=8", "local_batch=8", "data.num_train=16")
    _, pipeline = probed(tmp_path, "strategy=pipeline", *few)
    assert pipeline["probed"]["strategy.microbatches"] == 8
    assert [batch["local_batch"] for batch in pipeline["batches"]] == [8, 16]
    assert pipeline["stopped_by"] == "examples"
    ran_ok("probe", *POINT, "strategy=ddp", "local_batch=8", LIMIT, cwd=tmp_path)
    whole = json.loads((tmp_path / "results/s/probe.json").read_text())
    assert [one["probed"]["strategy.name"] for one in whole["splits"]] == ["sharded", "pipeline"]
    assert len(whole["workers"]) == 2
    # Within a few MiB of a limit a batch may fit one time and not the next.
    smaller = largest * 3 // 4
    words = ("strategy=sharded", LIMIT, f"local_batch={smaller},{2 * largest}")
    bsweep("run", *POINT, *words, "data.num_train=1200", cwd=tmp_path)
    ends = {batch: end["status"] for batch, end in summaries(tmp_path).items()}
    assert ends == {smaller: "completed", 2 * largest: "out_of_memory"}


@pytest.mark.full
def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    (found,) = probed(tmp_path, "strategy=sharded", "local_batch=128", LIMIT)
    assert found["stopped_by"] == "out_of_memory"
    assert found["largest_batch"] < 128


@pytest.mark.parametrize(
    ("fits", "too_large", "expected"),
    [
        ((8,), (), (16, "")),
        ((8, 16), (32,), (24, "")),
        ((8, 16), (24, 32), (0, "out_of_memory")),
        ((16, 24), (32,), (0, "out_of_memory")),
        ((), (8,), (4, "")),
        ((), (8, 4), (0, "")),
        ((4,), (8,), (0, "out_of_memory")),
        ((512,), (), (0, "examples")),
    ],
)
def test_the_next_batch_is_a_multiple_of_the_micro_batches(
    fits: tuple[int, ...], too_large: tuple[int, ...], expected: tuple[int, str]
) -> None:
    config = compose(*POINT, "strategy=pipeline", "strategy.microbatches=4", "local_batch=8")
    found: dict[int, SplitBatch | None] = {one: SplitBatch(one, 0.01, 1) for one in fits}
    found |= dict.fromkeys(too_large)
    if fits == (512,):
        config = compose(*POINT, "strategy=pipeline", "local_batch=8", "data.num_train=800")
    assert split_probe._next(config, found) == expected


def test_slow_steps_and_full_machines_end_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(*POINT, "strategy=sharded", "local_batch=8")
    seconds = split_probe._MOST_SECONDS / side_runs.TRIED_STEPS
    assert split_probe._next(config, {8: SplitBatch(8, seconds, None)}) == (0, "seconds")
    monkeypatch.setattr(split_probe, "available_bytes", lambda: 1000)
    assert split_probe._next(config, {8: SplitBatch(8, 0.01, 251)}) == (0, "memory")
    assert split_probe._next(config, {8: SplitBatch(8, 0.01, 250)}) == (16, "")
    assert split_probe._next(config, {8: SplitBatch(8, 0.01, None)}) == (0, "memory")


@pytest.mark.full
def test_what_was_measured_before_a_failure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = side_runs.try_out

    def fails_at_16(config: RunConfig, *rest: Any) -> side_runs.Tried | str:
        return "failed: a cable" if config.local_batch == 16 else real(config, *rest)

    monkeypatch.setattr(side_runs, "try_out", fails_at_16)
    config = compose(*POINT, "strategy=sharded", "local_batch=8", f"results_dir={tmp_path}")
    outcome = split_probe.probe(config, lambda line: None)
    assert (outcome.status, outcome.message) == ("failed", "local batch 16: a cable")
    (found,) = allocation.kept_probe(config).splits
    assert (found.largest_batch, found.stopped_by) == (8, "failed")


def test_a_file_that_is_no_probe_is_kept_and_said(tmp_path: Path) -> None:
    path = tmp_path / "results/s/probe.json"
    path.parent.mkdir(parents=True)
    for text, reason in (
        ('{"mine": 1}', "is not a probe of this version"),
        ('{"schema": 3, "news": 1}', "a newer bsweep wrote this file (probe schema 3)"),
    ):
        path.write_text(text)
        ran = bsweep("probe", *POINT, "strategy=sharded", "local_batch=8", cwd=tmp_path)
        assert ran.returncode == 2, ran.stderr
        assert reason in ran.stderr
        assert "move or remove the file" in ran.stderr
        assert path.read_text() == text


def test_whole_and_split_models_share_a_file(tmp_path: Path) -> None:
    config = compose(*POINT, "strategy=sharded", "local_batch=8", f"results_dir={tmp_path}")
    path = allocation.probe_path(config)
    worker = {
        "host": "h", "device": "cpu", "precision": "fp32", "memory_bytes": None,
        "peak_flops": 1e9, "batches": [{"local_batch": 1, "step_seconds": 0.1}],
        "largest_batch": 1, "stopped_by": "seconds",
    }  # fmt: skip
    whole = {"schema": 2, "probed": {}, "workers": [worker], "exchange_seconds": 0.1}
    allocation.write_probe(config, whole)
    assert json.loads(path.read_text()) == {**whole, "splits": []}
    batches = (SplitBatch(8, 0.1, None),)
    found = ProbedSplit(allocation.probed_of_split(config), batches, 8, "seconds")
    allocation.write_split_probe(config, found)
    allocation.write_probe(config, whole)
    assert len(allocation.kept_probe(config).splits) == 1


def test_an_allocation_wants_a_probe_of_whole_models(tmp_path: Path) -> None:
    words = (*POINT, "local_batch=8", f"results_dir={tmp_path}")
    split = compose(*words, "strategy=sharded")
    batches = (SplitBatch(8, 0.1, None),)
    found = ProbedSplit(allocation.probed_of_split(split), batches, 8, "seconds")
    allocation.write_split_probe(split, found)
    allocation.write_split_probe(split, found)
    assert allocation.split_table(split).count("sharded") == 1
    with pytest.raises(ConfigError, match="has only split models"):
        allocation.read_probe(compose(*words, "strategy=diloco", "allocation=hybrid"))
