"""A report opens with what to train with, or says what is missing for that; its maps and tables
hold the prediction.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.cell_tables.common_target import supported_target
from bsweep.analysis.cell_tables.tuning import tuned
from bsweep.analysis.study.caching import caching
from bsweep.report.recommended import recommended
from bsweep.report.tables import tables
from tests.plots.test_plots import assert_readable
from tests.support.synthetic_study import META, diloco, write_run
from tests.support.synthetic_targets import TARGET, Truth, write_target_run, write_target_study

BATCHES, WORKERS = (16, 64, 256), (1, 4)
EXACT = Truth(scatter=0.02, jitter=0.01)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    folder = tmp_path_factory.mktemp("studies") / "targets"
    settings = {"target_accuracy": TARGET}
    return bsweep.load(
        write_target_study(folder, EXACT, BATCHES, WORKERS, seeds=(0, 1), settings=settings)
    )


@pytest.fixture(scope="module")
def cells(study: analysis.Study) -> pd.DataFrame:
    return analysis.surface(study)


@pytest.mark.full
def test_the_map_has_the_true_times_and_their_causes(
    study: analysis.Study, cells: pd.DataFrame
) -> None:
    of = cells.set_index(["global_batch", "num_workers"])
    assert {*of.index} == {*itertools.product((16, 32, 64, 128, 256), WORKERS)}
    truth = pd.Series({cell: EXACT.seconds(*cell) for cell in of.index})
    assert ((of["seconds_low"] <= truth) & (truth <= of["seconds_high"])).sum() >= 9
    fastest = of[truth == truth.min()].iloc[0]
    assert fastest["is_recommended"] or fastest["is_alternative"]
    assert {batch for batch, _ in of.index[of["num_runs"] == 0]} == {32, 128}
    front = of[of["is_on_front"]]
    assert [workers for _, workers in front.index] == [1, 4]
    for batch, workers in front.index:
        assert truth[batch, workers] <= 1.05 * truth.xs(workers, level=1).min()
    assert of["probability_on_front"].between(0, 1).all()
    assert front["probability_on_front"].min() > 0.3
    assert of["bottleneck"][16, 1] == "fixed"  # 20 ms of 28
    # Critical batch 200: more than half of the examples are further.
    assert of["bottleneck"][256, 1] == "large_batch"
    fixed = EXACT.pass_seconds / EXACT.step_seconds(16, 1)
    assert of["bottleneck_share"][16, 1] == pytest.approx(fixed, abs=0.1)
    assert analysis.recommendation_warnings(study) == []
    assert "until a test accuracy of 0.9" in plots.caption(plots.time_to_target(study))
    assert set(analysis.time_to_target(study)["seconds"]) == set(study.runs["seconds_to_target"])


def test_figures_are_readable_and_the_map_frames_what_was_measured(
    study: analysis.Study, cells: pd.DataFrame
) -> None:
    for name in ("time_surface", "pareto_front"):
        figure = plots.FIGURES[name].draw(study, cells)
        assert_readable(figure)
        assert "a test accuracy of 0.9" in plots.caption(figure)
    (axes,) = plots.FIGURES["time_surface"].draw(study, cells).axes
    framed = [patch for patch in axes.patches if not patch.get_fill()]
    assert len(axes.patches) - len(framed) == len(cells)
    assert len(framed) == (cells["num_runs"] > 0).sum()
    assert len(axes.lines) == 1 + cells["is_alternative"].sum()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["16", "32", "64", "128", "256"]
    best = cells.loc[cells["is_recommended"]].iloc[0]
    assert any(f"{best['seconds']:.0f}\n" in text.get_text() for text in axes.texts)


@pytest.mark.full
def test_a_study_that_names_no_target_has_the_one_that_most_cells_reach(tmp_path: Path) -> None:
    write_target_study(tmp_path / "s", EXACT, BATCHES)
    for batch in (1024, 512):  # ended long before: no more than a third of the way
        write_target_run(
            tmp_path / "s", EXACT, batch=batch, most_examples=EXACT.steps(batch) * batch / 3
        )
    study = bsweep.load(tmp_path / "s")
    target, why = supported_target(study) or (None, "")
    assert target is not None
    assert target.metric == "test_accuracy"
    assert 0.2 < target.value < 0.4, "four of five cells: a third of the way to 0.9"
    sentences = analysis.recommendations(study)
    assert f"a test accuracy of {target.value:g}: global batch " in sentences[0]
    assert why in sentences[1]
    assert why in plots.caption(plots.time_to_target(study))
    assert set(analysis.time_to_target(study)["target"]) == {target.value}
    assert analysis.missing_recommendations(study) == []


def test_a_loss_below_zero_may_be_the_target(study: analysis.Study) -> None:
    losses = study.evaluations.assign(test_loss=study.evaluations["test_loss"] - 2)
    found = supported_target(replace(study, evaluations=losses.assign(test_accuracy=math.nan)))
    assert found is not None
    assert found[0].value == pytest.approx(-1.9, abs=0.02)


def test_chance_is_that_of_the_data_of_each_cell(study: analysis.Study) -> None:
    evaluations = study.evaluations.assign(test_accuracy=study.evaluations["test_accuracy"] / 2)
    for chance, is_learned in ((0.01, True), (0.5, False)):
        is_most = study.runs["global_batch"] != BATCHES[0]
        runs = study.runs.assign(chance=is_most.map({True: chance, False: 0.01}))
        found = supported_target(replace(study, runs=runs, evaluations=evaluations))
        assert (found is not None) == is_learned, chance


@pytest.mark.full
@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ((0.99,), ["No run reached a test accuracy of 0.99. ", "3 of 3 cells"]),
        ((TARGET, 0.8), ["The runs name 2 targets. "]),
    ],
)
def test_the_supported_target_is_taken_and_said(
    targets: tuple[float, ...], says: list[str], tmp_path: Path
) -> None:
    for batch in BATCHES:
        for target in targets:
            settings = {"target_accuracy": target}
            run = write_target_run(tmp_path / "s", EXACT, batch=batch, settings=settings)
            run.rename(f"{run}_{target}")
    first, basis = analysis.recommendations(bsweep.load(tmp_path / "s"))
    assert first.startswith("Fastest to a test accuracy of 0.9")
    assert all(text in basis for text in says)


@pytest.mark.full
def test_runs_that_missed_at_all_rates_or_had_no_memory_stay(tmp_path: Path) -> None:
    target = {"target_accuracy": TARGET}
    for batch in (*BATCHES, 1024):
        most = math.inf if batch < 1024 else EXACT.steps(batch) * batch * 0.8
        for rule in ("linear", "sqrt"):
            write_target_run(
                tmp_path / "s", EXACT, batch=batch, most_examples=most,
                settings=target | {"optimizer.lr_rule": rule},
            )  # fmt: skip
    write_target_run(
        tmp_path / "s", EXACT, batch=2048, most_examples=0, settings=target, status="out_of_memory"
    )
    study = bsweep.load(tmp_path / "s")
    num_runs = tuned(study).runs.groupby("global_batch").size()
    assert num_runs.to_dict() == dict.fromkeys(BATCHES, 1) | {1024: 2, 2048: 1}
    (answer,) = analysis.answers(study)
    assert answer.prediction is not None
    problems = answer.prediction.cells.set_index("global_batch")["problem"]
    assert problems[2048] == "out of memory"
    assert set(problems[list(BATCHES)]) == {""}


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ({"settings": {"batching.name": "schedule", "batching.factor": 2.0}}, "batching=fixed"),
        ({"epochs": 1}, "epochs=2"),
        # Which each run has in its only evaluation.
        ({"epochs": 1, "settings": {"target_accuracy": 0.2}}, "two evaluations"),
        ({"accuracy": 0.1}, "Fewer than half of the cells"),
        ({"settings": diloco("uniform"), "num_workers": 4, "num_rounds": 2}, "DiLoCo"),
    ],
)
def test_what_is_missing_for_a_recommendation_is_said(
    runs: dict[str, Any], says: str, tmp_path: Path
) -> None:
    for batch in BATCHES:
        write_run(tmp_path / "s", local_batch=batch, **runs)
    (missing,) = analysis.missing_recommendations(bsweep.load(tmp_path / "s"))
    assert says in missing


@pytest.mark.full
def test_of_one_cell_it_is_said_what_is_missing_and_which_command_gets_it(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "one", local_batch=64, seed=seed)
        write_run(tmp_path / "s", local_batch=64, seed=seed)
    assert analysis.missing_recommendations(bsweep.load(tmp_path / "one")) == [], (
        "nobody asks for a batch"
    )
    for momentum in (0.5, 0.7):
        write_run(tmp_path / "s", local_batch=32, settings={"optimizer.momentum": momentum})
    study = bsweep.load(tmp_path / "s")
    assert analysis.recommendations(study) == []
    missing, *_ = analysis.missing_recommendations(study)
    assert "only one cell (global batch 64 on 1 worker)" in missing
    assert "bsweep run local_batch=32,64,128 study=s" in missing
    assert "bsweep recommend local_batch=32,64,128 num_workers=1 study=s --target-acc" in missing
    assert analysis.surface(study).empty
    assert not set(plots.figures(study)) & {"time_surface", "pareto_front"}
    assert not list(recommended(study))


@pytest.mark.full
def test_validation_scores_are_named_so_everywhere(tmp_path: Path) -> None:
    """Only what was measured once, at the end, is a test accuracy."""
    for batch in BATCHES:
        settings = {"target_accuracy": 0.8, "data.validation_share": 0.1}
        run = write_run(tmp_path / "s", local_batch=batch, settings=settings)
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"final_test_accuracy": 0.8125}))
    study = bsweep.load(tmp_path / "s")
    with caching():
        results = next(tables(study))
        lines = [*analysis.recommendations(study), *analysis.headlines(study)]
        lines += [*analysis.in_short(study), results.caption]
        for name in ("accuracy_by_time", "accuracy_by_epoch", "accuracy_and_loss_by_batch"):
            figure = plots.FIGURES[name](study)
            labels = [axes.get_ylabel() for axes in figure.axes]
            assert "Validation accuracy" in labels
            lines += [*labels, plots.caption(figure)]
    assert [line for line in lines if re.search(r"(?i)\btest\b", line)] == []
    assert lines[0].startswith("Fastest to a validation accuracy of 0.8: global batch")
    assert {"validation accuracy", "validation loss"} <= set(results.cells)
    assert list(results.cells["test accuracy, measured once"]) == ["0.8125"] * len(BATCHES)
    assert bsweep.predict(study, 0.8).target.part == "validation"
    write_run(tmp_path / "s", local_batch=16)
    mixed = bsweep.load(tmp_path / "s")
    assert "their accuracies and losses cannot be compared" in analysis.cell_warnings(mixed)[-1]
    assert "test or validation accuracy" in next(tables(mixed)).cells


@pytest.mark.full
def test_different_hardware_has_a_recommendation_each(tmp_path: Path) -> None:
    for number, cpu in enumerate(("Old CPU", "New CPU")):
        for batch in BATCHES[:2]:
            settings = {"target_accuracy": TARGET, "launch.ssh_port": number or None}
            truth, meta = Truth(pass_seconds=0.02 / (1 + number)), META | {"cpu": cpu}
            write_target_run(
                tmp_path / "s", truth, batch=batch, seed=number, settings=settings, meta=meta
            )
    study = bsweep.load(tmp_path / "s", mix=True)
    with caching():
        one, other = analysis.recommendations(study)
        cells = analysis.surface(study)
        assert {line.partition(":")[0] for line in (one, other)} == set(cells["where"])
        assert all("CPU" in where for where in cells["where"])
        assert len(plots.time_surface(study).axes) == 2
