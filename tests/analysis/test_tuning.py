"""The best learning rate of each batch size, from what was put in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import bsweep
from bsweep.analysis.cell_tables.common_target import common_target
from bsweep.analysis.cell_tables.tuning import best_by, rates, tuned
from bsweep.analysis.conclusions.recommendations import answers
from bsweep.config.target import target_of
from tests.support.synthetic_study import write_run
from tests.support.synthetic_targets import TARGET, Truth, write_target_run, write_target_study

SEEDS = (-0.004, 0.0, 0.005)  # what seeds add to an accuracy


# As in the first paper, batch 8 collapses at the rate that suits the others, and does not at a
# sixteenth of it.
COLLAPSE = {
    (8, 0.025): 0.93, (8, 0.1): 0.80, (8, 0.4): 0.33,
    (64, 0.025): 0.85, (64, 0.1): 0.90, (64, 0.4): 0.931,
    (256, 0.025): 0.70, (256, 0.1): 0.88, (256, 0.4): 0.929,
}  # fmt: skip


def test_the_best_rate_of_each_batch_is_a_row_and_gives_the_target(tmp_path: Path) -> None:
    for (batch, rate), middle in COLLAPSE.items():
        settings = {"optimizer.lr": rate, "optimizer.lr_rule": "fixed"}
        for seed in range(3):
            write_run(
                tmp_path / "s", local_batch=batch, seed=seed, settings=settings,
                accuracy=middle + SEEDS[(seed + batch) % 3],
            )  # fmt: skip
    study = bsweep.load(tmp_path / "s")
    table = rates(study)
    best = table[table["is_best"]].reset_index().set_index("local_batch")
    assert best["learning_rate"].to_dict() == {8: 0.025, 64: 0.4, 256: 0.4}
    assert best["at_edge"].to_dict() == {8: "lowest", 64: "highest", 256: "highest"}
    assert table["n"].eq(3).all()
    assert table["num_rates"].eq(3).all()
    found = common_target(study)
    assert found
    assert found[0] == target_of(accuracy=0.92)


def test_seeds_that_diverge_count_as_missed(tmp_path: Path) -> None:
    for rate in (0.025, 0.1):
        settings = {"optimizer.lr": rate, "optimizer.lr_rule": "fixed"}
        for seed in range(3):
            status = "diverged" if rate == 0.1 and seed == 1 else "completed"
            write_run(
                tmp_path / "s", local_batch=8, seed=seed, status=status, accuracy=0.9 + rate,
                settings=settings,
            )  # fmt: skip
    table = rates(bsweep.load(tmp_path / "s")).set_index("learning_rate")
    assert table["missed"].to_dict() == {0.025: 0, 0.1: 1}
    assert table["is_best"].to_dict() == {0.025: True, 0.1: False}


def test_runs_without_a_time_have_not_missed_their_target(tmp_path: Path) -> None:
    """The last point of a sweep with `launch.parallel` may run alone."""
    for rate, needed, is_beside in ((0.1, 1.0, True), (0.2, 1.5, False)):
        write_target_run(
            tmp_path / "s", Truth(), batch=32, needed=needed, meta={"beside_others": is_beside},
            settings={"optimizer.lr": rate, "target_accuracy": TARGET},
        )  # fmt: skip
    study, whole = (bsweep.load(tmp_path / "s", beside=beside) for beside in (False, True))
    assert study.runs["reached"].all()
    table = rates(replace(study, runs=study.runs.assign(test_accuracy=[0.93, 0.91])))
    assert table["is_best"].tolist() == [True, False]
    assert table["missed"].eq(0).all()
    assert rates(whole)["metric"].eq("seconds_to_target").all()


def test_words_name_the_score_of_the_table(tmp_path: Path) -> None:
    """Only a run that was interrupted later has reached the target."""
    for rate in (0.1, 0.2, 0.3):
        write_target_run(
            tmp_path / "s", Truth(), batch=32, most_examples=math.inf if rate == 0.3 else 5000,
            settings={"optimizer.lr": rate, "target_accuracy": TARGET},
        )  # fmt: skip
    study = bsweep.load(tmp_path / "s")
    is_reached = study.runs["reached"].eq(True)
    study.runs.loc[is_reached, "status"] = "interrupted"
    assert is_reached.sum() == 1
    assert rates(study)["metric"].eq("test_accuracy").all()
    assert "accuracy in the last evaluation" in best_by(study)


def test_the_recommendation_names_the_score_of_all_rates_that_were_tried(tmp_path: Path) -> None:
    """At the rates that are kept all times are known; at the others, which ran beside, none is."""
    for rule in ("linear", "fixed"):
        settings = {"optimizer.lr_rule": rule, "target_accuracy": TARGET}
        meta = {"beside_others": rule == "fixed"}
        write_target_study(tmp_path / "s", Truth(), (32, 64), settings=settings, meta=meta)
    study = bsweep.load(tmp_path / "s")
    accuracy = study.runs["lr_rule"].map({"linear": 0.9, "fixed": 0.5})
    (answer,) = answers(replace(study, runs=study.runs.assign(test_accuracy=accuracy)))
    assert "rates, by the test accuracy in the last evaluation." in answer.sentences[-1]


def test_a_failed_run_at_another_rate_makes_no_table_of_rates(tmp_path: Path) -> None:
    for rate, momentum, status in (
        (0.1, 0.9, "completed"), (0.2, 0.8, "completed"), (0.2, 0.9, "failed"),
    ):  # fmt: skip
        settings = {"optimizer.lr": rate, "optimizer.momentum": momentum}
        write_run(tmp_path / "s", local_batch=8, status=status, settings=settings)
    study = bsweep.load(tmp_path / "s")
    assert rates(study).empty
    assert len(tuned(study).runs) == 3
