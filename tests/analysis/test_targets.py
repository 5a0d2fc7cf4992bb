"""When a run reaches its target: one rule, by evaluations where a run has them and by epochs' ends
where not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bsweep
from bsweep import analysis
from bsweep.analysis.study.targets import AMOUNTS
from bsweep.analysis.study.targets import crossing as crossing_of
from bsweep.config.target import Target
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import SCHEMA
from tests.support.synthetic_study import train_seconds, write_run

RUN = "b16_w1_horovod_s0"


def add(folder: Path, *records: dict[str, object]) -> None:
    lines = (json.dumps({"schema": SCHEMA, "time": 0.0, **record}) + "\n" for record in records)
    with RunPaths(folder).metrics.open("a") as file:
        file.writelines(lines)


def evaluated(folder: Path, *accuracies: float | None) -> None:
    """Add an evaluation each 100 steps."""
    add(folder, *(evaluation(100 * number, value) for number, value in enumerate(accuracies, 1)))


def evaluation(num_steps: int, accuracy: float | None) -> dict[str, object]:
    return {
        "type": "evaluation", "epoch": 1, "num_steps": num_steps, "num_examples": 16 * num_steps,
        "epochs_done": num_steps / 100, "train_seconds": 0.5 * num_steps, "test_accuracy": accuracy,
        "test_loss": None if accuracy is None else 1 - accuracy,
    }  # fmt: skip


def crossing(study: analysis.Study, **target: float) -> Any:
    return analysis.to_target(study, analysis.target_of(**target)).loc[RUN]


def test_an_epochs_end_is_an_evaluation_where_a_run_tells_none(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=16)
    study = bsweep.load(tmp_path / "s")
    assert study.evaluations["num_steps"].tolist() == [3125, 6250, 9375]
    assert study.evaluations["num_examples"].tolist() == [50_000, 100_000, 150_000]
    assert study.evaluations["epochs_done"].tolist() == [1, 2, 3]
    assert study.evaluations["train_seconds"].iloc[-1] == pytest.approx(train_seconds(16, 1))
    assert study.evaluations["test_accuracy"].tolist() == study.epochs["test_accuracy"].tolist()
    assert study.noise_scales.empty


def test_evaluations_on_record_count_and_those_of_a_repeated_stretch_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "s", local_batch=16)
    write_run(tmp_path / "s", local_batch=8)
    noise = {
        "type": "noise_scale", "epoch": 1, "num_steps": 9, "epochs_done": 0.1, "num_examples": 90,
        "gradient_square": -1.0, "variance": 2.0, "num_gradients": 2, "gradient_batch": 8,
    }  # fmt: skip
    evaluated(folder, 0.1, 0.1, 0.1)
    add(folder, *(evaluation(steps, 0.2) for steps in (200, 300)), noise)
    study = bsweep.load(tmp_path / "s")
    own = study.evaluations[study.evaluations["run_id"] == RUN]
    assert own["num_steps"].tolist() == [100, 200, 300]
    assert own["test_accuracy"].tolist() == [0.1, 0.2, 0.2]
    assert len(study.evaluations) == 3 + 3
    assert study.noise_scales[["run_id", "gradient_square"]].to_numpy().tolist() == [[RUN, -1.0]]
    for name in ("runs", "epochs", "evaluations"):
        getattr(study, name).to_csv(tmp_path / f"{name}.csv", index=False)
    again = bsweep.load(tmp_path)
    pd.testing.assert_frame_equal(again.evaluations, study.evaluations, check_dtype=False)


def test_the_crossing_is_that_of_the_smoothed_curve(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "s", local_batch=16)
    evaluated(folder, 0.5, 0.95, 0.6, 0.7, 0.8, None, 0.9, 0.9)  # 0.95 is luck; one was not taken
    study = bsweep.load(tmp_path / "s")
    row = crossing(study, accuracy=0.85)
    assert row["reached"]
    assert not row["is_bound"]
    told = row[[f"{name}_to_target" for name in ("steps", "examples", "epochs", "seconds")]]
    assert told.tolist() == pytest.approx([600, 9600, 6, 300])  # 0.8 at 500 steps, 0.9 at 700
    assert crossing(study, loss=0.15)["steps_to_target"] == pytest.approx(600)
    assert crossing(study, accuracy=0.5)["is_bound"]
    assert crossing(study, accuracy=0.5)["steps_to_target"] == 100
    never = crossing(study, accuracy=0.92)
    assert not never["reached"]
    assert np.isnan(never["seconds_to_target"])
    assert never["trained_steps"] == 800
    assert never["best"] == 0.9


SCORES = st.lists(st.integers(0, 12).map(lambda level: level / 12), min_size=1, max_size=12)


@given(scores=SCORES, level=st.integers(1, 12), is_loss=st.booleans())
def test_a_run_that_stops_at_its_target_has_the_time_of_one_that_goes_on(
    scores: list[float], level: int, is_loss: bool
) -> None:
    target = Target("test_loss", 1 - level / 12) if is_loss else Target("test_accuracy", level / 12)
    values = np.array([1 - score for score in scores] if is_loss else scores)
    amounts = np.cumsum(np.arange(1.0, 1 + 4 * len(values)).reshape(-1, 4), axis=0)
    whole = crossing_of(amounts, values, target)
    best = target.best_median(values.tolist())
    assert whole["reached"] == (target.sign * best >= target.sign * target.value)
    ends = [
        end for end in range(1, 1 + len(values)) if target.is_confirmed_by(values[:end].tolist())
    ]
    assert bool(ends) == whole["reached"]
    for end in range(1, 1 + len(values)):
        stopped = crossing_of(amounts[:end], values[:end], target)
        assert stopped["reached"] == (end in range(ends[0], 1 + len(values)) if ends else False)
        if stopped["reached"]:
            assert all(
                stopped[f"{name}_to_target"] == whole[f"{name}_to_target"] for name in AMOUNTS
            )
            assert stopped["is_bound"] == whole["is_bound"]
        elif whole["reached"]:
            assert all(stopped[f"trained_{name}"] <= whole[f"{name}_to_target"] for name in AMOUNTS)


def test_runs_that_name_a_target_have_columns_of_it(tmp_path: Path) -> None:
    settings = {"optimizer.momentum": 0.5, "target_accuracy": 0.7}
    for seed, last in enumerate((0.8, 0.6)):
        folder = write_run(tmp_path / "s", local_batch=16, seed=seed, settings=settings)
        evaluated(folder, 0.5, 0.6, 0.9, last)
    write_run(tmp_path / "s", local_batch=32)
    study = bsweep.load(tmp_path / "s")
    first, second, other = (study.runs.iloc[row] for row in range(3))
    assert (first["reached"], second["reached"]) == (True, False)
    told = first[["steps_to_target", "examples_to_target", "seconds_to_target"]].tolist()
    assert told == pytest.approx([250, 4000, 125])
    assert np.isnan(second["epochs_to_target"])
    assert np.isnan(other["seconds_to_target"])
    assert other["reached"] is not True
    assert not {"reached", "steps_to_target"} & {*analysis.cell_keys(study.runs)}
    assert analysis.to_target(study, analysis.target_of(0.55))["reached"].iloc[:2].all()
    for name in ("runs", "epochs"):
        getattr(study, name).to_csv(tmp_path / f"{name}.csv", index=False)
    as_reported = bsweep.load(tmp_path).runs["steps_to_target"]
    assert as_reported.iloc[0] == pytest.approx(250)
