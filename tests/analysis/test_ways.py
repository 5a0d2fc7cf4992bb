"""Predictions that compare ways of splitting a model with workers that hold the whole model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep.analysis.prediction.forecast import problems_of_cells
from bsweep.analysis.prediction.seen_runs import observed
from bsweep.analysis.prediction.step_time import Timing, fit_step_time
from bsweep.analysis.prediction.ways import Way, ways_of
from bsweep.analysis.study.cards import card_of
from bsweep.config.split_strategies import DeepSpeedConfig, PipelineConfig
from bsweep.config.target import target_of
from tests.support.running import ran_ok
from tests.support.synthetic_targets import TARGET, Truth, with_energy, write_target_study

DDP = {"strategy": {"name": "ddp"}}
SHARDED = {
    "strategy": {
        "name": "sharded", "replicas": 1, "reduce": "fp32", "reshard": "forward", "wrap": "blocks",
    }
}  # fmt: skip


def pipeline(microbatches: int, schedule: str = "1f1b") -> dict[str, dict[str, object]]:
    own = {"schedule": schedule, "microbatches": microbatches, "cuts": None}
    return {"strategy": {"name": "pipeline", "replicas": 1, "reduce": "fp32", **own}}


@dataclass(frozen=True)
class Sharded(Truth):
    """Each pass exchanges what grows with (N - 1) / N."""

    byte_seconds: float = 0.05

    def step_seconds(self, local_batch: float, workers: int, passes: int = 1) -> float:
        one = 1.2 * (self.pass_seconds + self.example_seconds * local_batch)
        sync = self.sync_seconds + self.byte_seconds * (workers - 1) / workers
        return passes * math.pow(one**self.overlap + sync**self.overlap, 1 / self.overlap)


@dataclass(frozen=True)
class Staged(Truth):
    """Workers are idle for the bubble of the textbook; messages take no time."""

    microbatches: int = 4

    def step_seconds(self, local_batch: float, workers: int, passes: int = 1) -> float:
        fixed = self.pass_seconds * self.microbatches / workers
        bubble = (workers - 1) / (self.microbatches + workers - 1)
        return passes * (fixed + self.example_seconds * local_batch) / (1 - bubble)


def write(study: Path) -> None:
    staged = {number: Staged(microbatches=number, pass_seconds=0.002) for number in (4, 16)}
    runs: list[tuple[Truth, dict[str, Any], int, int]] = [
        *((Truth(), DDP, batch, workers) for batch in (64, 256, 512) for workers in (1, 2, 4)),
        *((Sharded(), SHARDED, batch, workers) for batch, workers in ((64, 2), (256, 2), (512, 4))),
        *((staged[number], pipeline(number), batch, 2) for number in staged for batch in (64, 256)),
        # Of the one way that ran on four workers, the formula tells the other.
        (staged[4], pipeline(4), 256, 4),
    ]
    for truth, settings, batch, workers in runs:
        write_target_study(study, truth, (batch,), (workers,), seeds=(0, 1), settings=settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = tmp_path_factory.mktemp("ways") / "known"
    write(study)
    return study


@pytest.mark.full
def test_one_prediction_names_the_best_way_of_all(folder: Path) -> None:
    """No run had 16 micro-batches on 4 workers: the formula says how long its steps take."""
    found = bsweep.predict(folder, TARGET, workers=[2, 4], batches=[64, 256, 512])
    cells = found.cells.set_index(["way", "global_batch", "num_workers"])
    ways = set(found.cells["way"])
    of_pipeline = {way for way in ways if way.startswith("pipeline")}
    assert len(of_pipeline) == 2
    (of_16,) = {way for way in of_pipeline if way.endswith("microbatches=16")}
    truth = {"ddp": Truth(), "sharded": Sharded()} | {
        way: Staged(microbatches=int(way.split("=")[-1]), pass_seconds=0.002) for way in of_pipeline
    }
    assert ways == set(truth)
    off = [
        abs(math.log(row["step_seconds"] / truth[way].step_seconds(batch / workers, workers)))
        for (way, batch, workers), row in zip(cells.index, cells.to_dict("records"), strict=True)
        if row["num_runs"]
    ]
    assert np.median(off) < 0.05
    best = found.recommended
    seconds = {
        key: truth[key[0]].steps(key[1]) * truth[key[0]].step_seconds(key[1] / key[2], key[2])
        for key in cells.index
    }
    own = seconds[best["way"], best["global_batch"], best["num_workers"]]
    assert own < 1.1 * min(seconds.values())
    assert f"with {best['way']}" in found.sentence()
    assert found.cells["probability_best"].sum() == pytest.approx(1)
    # The steps to the target are those of the global batch alone.
    assert (cells.groupby("global_batch")["steps"].nunique() == 1).all()
    assert set(found.leave_out["way"]) == ways
    (unseen,) = cells.loc[[(of_16, 256, 4)]].to_dict("records")
    step_seconds = truth[of_16].step_seconds(64, 4)
    assert unseen["num_runs"] == 0
    assert unseen["step_seconds_low"] < step_seconds < unseen["step_seconds_high"]
    assert unseen["local_batch"] == 256, "all workers of a pipeline take the same examples"


def test_what_a_worker_sends_follows_from_parts_and_replicas() -> None:
    def sent(name: str, workers: int, replicas: int, **more: object) -> float:
        settings = {"name": name, "replicas": replicas, "reduce": "fp32", **more}
        card = card_of({"strategy": name, **_dotted({"strategy": settings})})
        way = Way("w", card, parameter_bytes=1000, example_bytes=10)
        return way.cell(64, workers, 1).form.sent_bytes

    sharded = {"reshard": "forward", "wrap": "blocks"}
    assert sent("sharded", 2, 1, **sharded) == pytest.approx(1500)
    assert sent("sharded", 4, 1, **sharded) == pytest.approx(2250)
    assert sent("sharded", 4, 2, **sharded) == pytest.approx(1500 + 500)
    assert sent("sharded", 4, 1, reshard="step", wrap="blocks") == pytest.approx(1500)
    assert sent("tensor", 2, 1) == pytest.approx(10 * 64 / 2)
    assert sent("tensor", 4, 2) == pytest.approx(10 * 32 / 2 + 500)


def _dotted(settings: dict[str, dict[str, object]]) -> dict[str, object]:
    return {f"strategy.{key}": value for key, value in settings["strategy"].items()}


def pair_of(folder: Path, *settings: dict[str, Any]) -> Path:
    """A study with two batches of each of several settings."""
    for one in settings:
        write_target_study(folder / "s", Truth(), (64, 256), workers=(2,), settings=one)
    return folder / "s"


def named(name: str, **settings: object) -> dict[str, Any]:
    return {"strategy": {"name": name, **settings}}


TOPK, SPARSE = ({"compression": {"name": "topk", "density": part}} for part in (0.1, 0.01))
OTHER = "differ in more than batch size"
PIPEDREAM = named("pipedream", replicas=1, reduce="fp32", cuts=None, vertical_sync=False)
ADASUM = named(
    "horovod", op="adasum", buckets=1, fusion_threshold_mb=128, cycle_time_ms=1.0,
    cache_capacity=1024,
)  # fmt: skip


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([named("horovod", op="average"), named("horovod", op="adasum")], OTHER),
        ([SHARDED, ADASUM], OTHER),
        ([named("horovod") | TOPK, named("horovod") | SPARSE], OTHER),
        ([named("horovod") | TOPK, named("allreduce") | SPARSE], OTHER),
        ([PIPEDREAM], "pipedream do not take every step together"),
    ],
)
def test_runs_that_make_other_steps_are_not_compared(
    settings: list[dict[str, Any]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        bsweep.predict(pair_of(tmp_path, *settings), TARGET)


@pytest.mark.full
def test_a_strategy_is_predicted_alone_and_those_of_one_codec_together(tmp_path: Path) -> None:
    apart = pair_of(tmp_path / "apart", SHARDED, ADASUM)
    assert set(bsweep.predict(apart, TARGET, where={"strategy": "horovod"}).cells["way"]) == {""}
    same = pair_of(tmp_path / "same", named("horovod") | TOPK, named("allreduce") | TOPK)
    assert set(bsweep.predict(same, TARGET).cells["way"]) == {"horovod", "allreduce"}


@pytest.mark.full
def test_steps_that_differ_between_ways_are_said(tmp_path: Path) -> None:
    for settings, needed in ((DDP, 1.0), (SHARDED, 2.0)):
        more: dict[str, Any] = {"settings": settings, "needed": needed}
        write_target_study(tmp_path / "s", Truth(), (64, 256), (2,), seeds=range(4), **more)
    warnings = bsweep.predict(tmp_path / "s", TARGET).warnings
    assert any("between strategies" in line for line in warnings)


def split_of(
    settings: dict[str, dict[str, object]], workers: int, seconds: Callable[[int], float],
    **more: object,
) -> dict[str, object]:  # fmt: skip
    """What a probe file has of one way of splitting."""
    batches = [
        {"local_batch": b, "step_seconds": seconds(b), "peak_bytes": None} for b in (16, 32, 64)
    ]
    shared = {"num_workers": workers, "accumulation_steps": 1, **_dotted(settings)}
    return {
        "probed": shared | {"model.name": "resnet18", "data.name": "imagefolder"} | more,
        "batches": batches, "largest_batch": 64, "stopped_by": "out_of_memory",
    }  # fmt: skip


def written(folder: Path, *splits: dict[str, object], **more: object) -> Path:
    path = folder / "probe.json"
    path.write_text(json.dumps({"schema": 2, "splits": splits, **more}))
    return path


@pytest.mark.full
def test_probed_steps_of_a_way_count(folder: Path, tmp_path: Path) -> None:
    """The probe is three times slower than the formula of the runs; one of another model, which
    is faster, does not count.
    """
    path = written(
        tmp_path,
        split_of(SHARDED, 8, lambda batch: 3 * Sharded().step_seconds(batch, 8)),
        split_of(SHARDED, 8, lambda batch: 1e-4, **{"model.name": "vgg16"}),
        split_of(pipeline(32), 8, lambda batch: 1e-4),
    )
    how: dict[str, Any] = {"where": {"strategy": "sharded"}, "workers": [2, 8], "batches": [256]}
    found = bsweep.predict(folder, TARGET, probe=path, **how)
    assert set(found.cells["way"]) == {""}
    (with_probe,) = found.cells[found.cells["num_workers"] == 8].to_dict("records")
    without = bsweep.predict(folder, TARGET, **how).cells
    (unknown,) = without[without["num_workers"] == 8].to_dict("records")
    truth = 3 * Sharded().step_seconds(32, 8)
    assert with_probe["step_seconds"] == pytest.approx(truth, rel=0.1)
    assert with_probe["step_seconds"] > 1.5 * unknown["step_seconds"]
    said = [line for line in found.warnings if "leaves out" in line]
    assert len(said) == 2
    assert "model.name=vgg16" in said[0]
    assert "strategy=pipeline on 8 workers" in said[1]


def test_more_workers_need_less_memory_for_a_split_model(tmp_path: Path) -> None:
    card = card_of(_dotted(SHARDED))
    runs = pd.DataFrame({
        "status": ["out_of_memory", "completed"], "num_workers": [2, 4], "local_batch": [64, 64],
        "global_batch": [128, 256], "passes": 1, "reached": [False, True],
    })  # fmt: skip
    rows = [(32, 1, 32), (64, 1, 64), (128, 2, 64), (256, 4, 64), (512, 4, 128)]
    table = pd.DataFrame(rows, columns=["global_batch", "num_workers", "local_batch"])
    table = table.assign(passes=1, num_reached=[0, 0, 0, 1, 0])
    of_split = problems_of_cells(runs, table, Way("", card))
    assert of_split == ["", "out of memory", "out of memory", "", ""]
    of_whole = problems_of_cells(runs, table, Way())
    assert of_whole == ["", *["out of memory"] * 4]
    probe_found = Way("", card, largest={4: 96})
    assert problems_of_cells(runs, table, probe_found)[-2:] == ["", "out of memory"]


def test_cells_that_bsweep_refuses_are_no_cells() -> None:
    def divides(workers: int, **own: object) -> bool:
        card = card_of(_dotted({"strategy": {**pipeline(4)["strategy"], **own}}))
        return Way("", card).divides(64, workers, 1)

    assert divides(4)
    assert not divides(8), "1f1b needs as many micro-batches as workers"
    assert divides(8, schedule="gpipe")
    assert not divides(4, cuts=[2])
    assert not divides(3, replicas=2)


def test_an_idle_share_is_no_exchange() -> None:
    card = card_of(_dotted(pipeline(4)))
    cells = [Way("p", card, bubbles={2: 0.5}).cell(batch, 2, 1) for batch in (16, 64, 256)]
    fitted = fit_step_time(
        [Timing(cell, 2 * (0.01 + 0.001 * cell.local_batch)) for cell in cells], 200
    )
    *_, bubble, exchange = (float(share.mean()) for share in fitted.shares(cells[-1]))
    assert bubble == pytest.approx(0.5, abs=0.1)
    assert exchange < 0.15


LLAMA = (
    "data=text", "data.path=text", "data.sequence_length=32", "data.subset=256",
    "model=llama_tiny", "model.hidden_size=32", "model.num_layers=2", "model.num_heads=2",
    "study=s", "launch.threads_per_worker=1", "optimizer.lr=0.05", "precision=fp32",
)  # fmt: skip


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zbv"])
def test_only_stages_of_several_workers_send_activations(schedule: Any) -> None:
    of_one, of_two = (
        PipelineConfig(name="pipeline", schedule=schedule, replicas=2).sent_in_pass(workers, 1)[1]
        for workers in (2, 4)
    )
    assert of_one == 0
    assert of_two == {"1f1b": 1, "interleaved_1f1b": 3, "zbv": 2}[schedule] / 2


def test_deepspeed_exchanges_in_each_pass_what_its_stage_divides() -> None:
    cards = [DeepSpeedConfig(name="deepspeed", stage=stage) for stage in (1, 2, 3)]
    assert [card.sent_in_pass(4, 2)[0] for card in cards] == [0.75 * 1.5, 0.75 * 2.5, 0.75 * 3]


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["sharded", "tensor", "pipeline"])
def test_the_formula_tells_what_real_replicas_send(strategy: str, tmp_path: Path) -> None:
    """A step of one pass sends P + E bytes, of two passes P + 2 E or, sharded, 2 P."""
    (tmp_path / "text").write_text("All happy families are alike.\n" * 400)
    words = [*("num_workers=4", "local_batch=8", "accumulation_steps=1,2"), "strategy.replicas=2"]
    words += [f"strategy={strategy}", "epochs=1", "data.subset=64"]
    ran_ok("run", *LLAMA, *words, cwd=tmp_path, timeout=900)
    study = bsweep.load(tmp_path / "results/s")
    passes_of = study.runs.set_index("run_id")["accumulation_steps"].fillna(1).astype(int)
    sent = study.epochs["sent_bytes"] / study.epochs["num_steps"]
    once, twice = (float(sent[study.epochs["run_id"].map(passes_of) == n].iloc[0]) for n in (1, 2))
    run = {str(key): value for key, value in study.runs.iloc[0].items()}
    card = card_of(run)
    assert card
    whole = 4.0 * float(run["num_parameters"])
    of_parameters = card.sent_in_pass(4, 1)[0] * whole
    if strategy == "sharded":
        of_gloo = 0.5 * whole  # It sends twice as much to sum gradients as the formula's ring.
        assert once == pytest.approx(of_parameters + of_gloo, rel=0.01)
        in_passes = 2 * (card.sent_in_pass(4, 2)[0] * whole + of_gloo)
        assert twice == pytest.approx(in_passes, rel=0.01)
        return
    assert 2 * once - twice == pytest.approx(of_parameters, rel=0.1)
    (way,) = ways_of(study, study.runs)[1].values()
    for passes, of_step in ((1, once), (2, twice)):
        cell = way.cell(16 * passes, 4, passes)
        assert passes * cell.form.sent_bytes == pytest.approx(of_step, rel=0.1)
    if strategy == "pipeline":
        recorded = study.epochs["bubble"].astype(float).median()
        assert way.bubbles[4] == pytest.approx(recorded)


@pytest.mark.full
def test_real_runs_of_several_strategies_are_compared(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("All happy families are alike.\n" * 400)
    point = (
        *LLAMA, "num_workers=2", "global_batch=16,32", "local_batch=null", "epochs=3",
        "target_loss=3.5", "evaluate_every_examples=64",
    )  # fmt: skip
    for way in ("ddp", "sharded", "pipeline"):
        ran_ok("run", *point, f"strategy={way}", cwd=tmp_path, timeout=900)
    study = bsweep.load(tmp_path / "results/s")
    seen = observed(study, target_of(None, 3.5))
    steps = seen.runs.groupby("global_batch")["steps_to_target"]
    assert (steps.max() / steps.min() < 1.02).all(), "strategies do not change what a step computes"
    assert len(seen.ways) == 3
    sent = {name: way.cell(32, 2, 1).form.sent_bytes for name, way in seen.ways.items()}
    assert sum(number > 0 for number in sent.values()) == 2
    told = ran_ok("predict", "results/s", "--target-loss", "3.5", "--verbose", cwd=tmp_path)
    assert any(f"with {way}" in told.stdout.replace("\n", " ") for way in seen.ways)


@pytest.mark.full
def test_a_strategy_without_energy_is_left_out_of_the_least_energy(tmp_path: Path) -> None:
    study = with_energy(bsweep.load(pair_of(tmp_path, DDP, SHARDED)), 50)
    study.runs.loc[study.runs["strategy"] != "ddp", "energy_joules"] = np.nan
    found = bsweep.predict(study, TARGET, objective="joules")
    assert found.cells["is_allowed"].equals(found.cells["way"] == "ddp")
    assert found.recommended["way"] == "ddp"
    assert "with a strategy of which no run recorded its energy" in " ".join(repr(found).split())
