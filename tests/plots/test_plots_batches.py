"""The figure of batches by epoch, and the labels of the policies that changed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bsweep
from bsweep.analysis.keys import keyed
from bsweep.plots import COLORS, FIGURES
from bsweep.plots.curves import looks
from bsweep.runlog.measured import NoiseScale
from bsweep.runlog.records import BatchChanged, Record, Step
from tests.support.synthetic_study import write_run

SCHEDULE = {"name": "schedule", "factor": 2.0}


def write(study: Path, noise_scale: float, batching: dict[str, Any], seed: int = 0) -> str:
    """Write a run of two epochs of eight steps, whose policy doubles a batch of 8 after the first
    one; return its id.
    """
    records: list[Record] = []
    for number in range(1, 17):
        at: dict[str, Any] = {"epoch": (number + 7) // 8, "epochs_done": number / 8}
        batch = 16 if batching != {"name": "fixed"} and number > 8 else 8
        if batch == 16 and number == 9:
            change = {"epochs_done": 1.0, "before": 8, "global_batch": 16}
            records.append(BatchChanged(message="", inputs={}, **change))
        noise = {"gradient_square": 1.0, "variance": noise_scale, "num_gradients": 2}
        records.append(NoiseScale(num_steps=number, **noise, **at))
        step = {"train_loss": 2.0, "learning_rate": 0.1, "images_per_second": 400.0}
        records.append(Step(step=number, global_batch=batch, **step, **at))
    settings = {"strategy": {"name": "single"}, "batching": batching}
    return write_run(
        study, local_batch=8, seed=seed, epochs=2, settings=settings, more=tuple(records)
    ).name


@pytest.mark.full
def test_the_figure_has_runs_whose_batch_changed(tmp_path: Path) -> None:
    write(tmp_path, 32.0, {"name": "fixed"})
    changing = [write(tmp_path, 32.0 * (1 + seed), SCHEDULE, seed) for seed in (0, 1)]
    study = bsweep.load(tmp_path)
    assert set(study.batches["run_id"]) == set(changing)
    assert len(study.batches) == 2 * 16
    figure = FIGURES["batch_by_epoch"](study)
    batch, noise, _ = figure.axes
    assert list(batch.lines[0].get_ydata()) == [8] * 8 + [16] * 8  # type: ignore[arg-type]
    assert batch.lines[0].get_color() == looks(study)["variant", "batch by schedule"]["color"]
    assert batch.lines[0].get_color() != COLORS[0], "of the fixed batch, as in other figures"
    assert len(batch.lines) == 2, "a line for each run"
    (median,) = noise.lines
    assert list(median.get_ydata()) == pytest.approx([48] * 16)  # type: ignore[arg-type]


def test_labels_name_a_policy_before_its_differing_settings(tmp_path: Path) -> None:
    for batching in ({"name": "noise_scale"}, SCHEDULE, SCHEDULE | {"factor": 4.0}):
        write(tmp_path, 32.0, batching)
    variants = set(keyed(bsweep.load(tmp_path).runs)["variant"])
    assert variants == {"noise_scale", "schedule factor 2", "schedule factor 4"}
