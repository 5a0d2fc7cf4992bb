"""Probes of models that are split over workers: real runs of a few steps, at larger and larger
batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsweep.allocation import probes
from bsweep.config.run import RunConfig
from bsweep.launch import Outcome
from bsweep.runlog.probe_file import ProbedSplit
from bsweep.study import side_runs, split_probe
from tests.support.running import compose, exits, ran_ok, summaries

POINT = (
    "data=synthetic", "data.num_train=2400", "data.num_test=20", "data.shape=[3,64,64]",
    "data.crop_padding=1", "model=tiny_cnn", "model.width=16", "num_workers=2", "study=s",
    "epochs=1", "launch.threads_per_worker=1", "precision=fp32",
)  # fmt: skip
LIMIT = "launch.memory_limit_mb=[20,20]"


def probed(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Probe a point, and return the ways of splitting in the study's file."""
    ran = ran_ok("probe", *POINT, *words, cwd=folder, timeout=600)
    splits: list[dict[str, Any]] = json.loads((folder / "results/s/probe.json").read_text())[
        "splits"
    ]
    for split in splits:
        assert split["probed"]["strategy.name"] in ran.stdout
    return splits


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
    exits(1, "run", *POINT, *words, "data.num_train=1200", cwd=tmp_path)
    ends = {batch: end["status"] for batch, end in summaries(tmp_path).items()}
    assert ends == {smaller: "completed", 2 * largest: "out_of_memory"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of 1000 free bytes, on which a probe of a pipeline's runs takes no time."""
    machine = Machine(f"results_dir={tmp_path}")
    monkeypatch.setattr(side_runs, "try_out", machine.try_out)
    monkeypatch.setattr(split_probe, "available_bytes", lambda: 1000)
    return machine


class Machine:
    """Says how a run at a local batch ends; batches are multiples of 4, for 4 micro-batches."""

    def __init__(self, *words: str) -> None:
        pipeline = ("strategy=pipeline", "strategy.microbatches=4", "local_batch=8")
        self.config = compose(*POINT, "data.num_train=100", *pipeline, *words)
        self.most, self.seconds, self.bytes = 99, 0.01, 1
        self.tried: list[int] = []
        self.failure = Outcome("out_of_memory", "no room")

    def try_out(self, config: RunConfig, *_: object) -> side_runs.Tried | Outcome:
        batch = config.local_batch or 0
        self.tried.append(batch)
        if batch > self.most:
            return self.failure
        return side_runs.Tried(self.seconds, 0.0, 100, peak_bytes=self.bytes * batch or None)

    def probed(self) -> tuple[Outcome, ProbedSplit]:
        outcome = split_probe.probe(self.config, lambda _: None)
        (found,) = probes.read_or_empty(self.config).splits
        return outcome, found


@pytest.mark.parametrize(
    ("key", "value", "tried", "largest", "stopped_by"),
    [
        ("most", 31, [8, 16, 32, 24], 24, "out_of_memory"),
        ("most", 23, [8, 16, 32, 24], 16, "out_of_memory"),
        ("most", 4, [8, 4], 4, "out_of_memory"),
        ("most", 99, [8, 16, 32, 64], 64, "examples"),
        ("seconds", 100.0, [8], 8, "seconds"),
        ("bytes", 31, [8, 16], 16, "memory"),
        ("bytes", 0, [8], 8, "memory"),  # which nobody recorded
    ],
)
def test_batches_double_and_halve_to_the_largest_that_fits(
    machine: Machine, key: str, value: float, tried: list[int], largest: int, stopped_by: str
) -> None:
    setattr(machine, key, value)
    outcome, found = machine.probed()
    assert outcome.status == "completed"
    assert machine.tried == tried
    assert (found.largest_batch, found.stopped_by) == (largest, stopped_by)


def test_what_was_measured_before_a_failure_is_written(machine: Machine) -> None:
    machine.most, machine.failure = 8, Outcome("failed", "a cable")
    outcome, found = machine.probed()
    assert (outcome.status, outcome.message) == ("failed", "local batch 16: a cable")
    assert (found.largest_batch, found.stopped_by) == (8, "failed")


def test_a_file_that_is_no_probe_is_kept_and_said(tmp_path: Path) -> None:
    path = tmp_path / "results/s/probe.json"
    path.parent.mkdir(parents=True)
    for text, reason in (
        ('{"mine": 1}', "is not a probe of this version"),
        ('{"schema": 3, "news": 1}', "a newer bsweep wrote this file (probe schema 3)"),
    ):
        path.write_text(text)
        ran = exits(2, "probe", *POINT, "strategy=sharded", "local_batch=8", cwd=tmp_path)
        assert reason in ran.stderr
        assert "move or remove the file" in ran.stderr
        assert path.read_text() == text
