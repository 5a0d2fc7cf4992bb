"""What uneven workers wait for each other, from records with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal
from scipy import stats

import bsweep
from bsweep import analysis, report
from bsweep.analysis.cell_tables.idle import NODE
from bsweep.analysis.study.columns import TABLES, names
from bsweep.runlog.files import RunPaths
from tests.support.synthetic_study import (
    ALLOCATIONS,
    ROUND_EXCHANGE_SECONDS,
    Lists,
    diloco,
    round_seconds,
    write_run,
)

UNIFORM_IDLE = [1.1, 0, 14.6, 4.9]  # of ten rounds, as published
NODES = [NODE.format(node) for node in range(1, 5)]


def write_rounds(
    study: Path, allocation: str, *, seed: int = 0, num_rounds: int = 10,
    lists: Lists | None = None, **others: Any,
) -> Path:  # fmt: skip
    """Write a run of an epoch on four workers; `others` as in `strategy`."""
    return write_run(
        study, local_batch=4, num_workers=4, seed=seed, epochs=1, num_rounds=num_rounds,
        settings=diloco(allocation, lists, **others),
    )  # fmt: skip


def by_variant(table: pd.DataFrame) -> Any:
    return table.droplevel(["num_workers", "local_batch"])


@pytest.mark.full
def test_rounds_are_a_row_a_worker_and_survive_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_write_figures", lambda *_: {})
    folder = write_rounds(tmp_path / "s", "batch_by_flops", num_rounds=2)
    study = bsweep.load(tmp_path / "s")
    assert list(study.rounds) == names(TABLES["rounds"])
    assert len(study.rounds) == 2 * 4
    third = study.rounds.iloc[6]
    assert (third["run_id"], third["round"], third["worker"]) == (folder.name, 2, 2)
    assert (third["local_batch"], third["local_steps"], third["num_examples"]) == (6, 100, 1900)
    assert third["idle_seconds"] == pytest.approx(3.05 - 1.59 * 1.15)
    copy = bsweep.load(report.write(tmp_path / "s").parent)
    assert_frame_equal(copy.rounds, study.rounds)
    assert_frame_equal(analysis.idle_table(copy), analysis.idle_table(study))


def test_a_round_that_was_repeated_counts_once(tmp_path: Path) -> None:
    path = RunPaths(write_rounds(tmp_path / "s", "uniform", num_rounds=3)).metrics
    start, first, second, third, *ends = path.read_text().splitlines()
    again = json.dumps(json.loads(second) | {"began_seconds": [20.0] * 4, "train_loss": 1.0})
    after = json.dumps(json.loads(third) | {"began_seconds": [30.0] * 4})
    path.write_text("\n".join([start, first, second, third, again, after, *ends]) + "\n")
    rounds = bsweep.load(tmp_path / "s").rounds
    assert rounds["round"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert rounds["train_loss"].iloc[4] == 1
    assert rounds["began_seconds"].iloc[[0, 4, 8]].tolist() == [0, 20, 30]


def test_rounds_that_an_epoch_cuts_short_do_not_count_beside_whole_ones(tmp_path: Path) -> None:
    path = RunPaths(write_rounds(tmp_path / "s", "uniform", num_rounds=3)).metrics
    expected = analysis.idle_table(bsweep.load(tmp_path / "s")).iloc[0]
    *records, epoch, end = path.read_text().splitlines()
    changed = {"round": 4, "began_seconds": [30.0] * 4, "idle_seconds": [9.0] * 4}
    cut_short = json.dumps(json.loads(records[-1]) | changed | {"is_whole": False})
    path.write_text("\n".join([*records, cut_short, epoch, end]) + "\n")
    assert_series_equal(analysis.idle_table(bsweep.load(tmp_path / "s")).iloc[0], expected)
    path.write_text("\n".join([records[0], cut_short, epoch, end]) + "\n")
    table = analysis.idle_table(bsweep.load(tmp_path / "s"))
    assert table.iloc[0]["idle_seconds"] == 36, "it has no other"


def test_seeds_repeat_a_policy_whatever_it_filled_in(tmp_path: Path) -> None:
    write_rounds(tmp_path / "s", "uniform")
    for seed, steps in enumerate(((104, 100, 192, 119), (103, 100, 190, 119))):
        write_rounds(tmp_path / "s", "steps_by_speed", seed=seed, lists=(None, steps))
    for seed, steps in enumerate(((100, 90, 100, 100), (100, 95, 100, 100))):
        write_rounds(tmp_path / "s", "uniform", seed=seed, lists=(None, steps))
    cells = by_variant(analysis.cells(bsweep.load(tmp_path / "s").runs))
    assert cells["n"].to_dict() == {
        "uniform": 1,
        "steps_by_speed": 2,
        "uniform local_steps 100,90,100,100": 1,
        "uniform local_steps 100,95,100,100": 1,
    }


def test_idle_seconds_are_summed_and_compared_with_the_baseline(tmp_path: Path) -> None:
    for allocation in ("steps_by_speed", "uniform", "steps_by_flops"):
        for seed in range(3):
            write_rounds(tmp_path / "s", allocation, seed=seed)
    table = by_variant(analysis.idle_table(bsweep.load(tmp_path / "s")))
    assert table.index.tolist() == ["uniform", "steps_by_flops", "steps_by_speed"]
    assert table["n"].tolist() == [3, 3, 3]
    baseline, by_flops = table.loc["uniform"], table.loc["steps_by_flops"]
    assert baseline[NODES].tolist() == pytest.approx([1.01 * seconds for seconds in UNIFORM_IDLE])
    totals = [20.6 * (1 + 0.01 * seed) for seed in range(3)]
    low, high = stats.t.interval(0.95, df=2, loc=np.mean(totals), scale=stats.sem(totals))
    assert baseline["idle_seconds"] == pytest.approx(np.mean(totals))
    assert baseline["idle_seconds_ci95"] == pytest.approx((high - low) / 2)
    assert baseline[f"{NODES[2]}_ci95"] == pytest.approx((high - low) / 2 * 14.6 / 20.6)
    assert np.isnan(baseline["change"])
    idle = 10 * sum(3.172 - seconds for seconds in round_seconds((4,) * 4, (100, 104, 145, 117)))
    assert by_flops["change"] == pytest.approx(idle / 20.6 - 1)
    assert by_flops["change_ci95"] == pytest.approx(0, abs=1e-9), "both are longer by 1 % a seed"
    assert by_flops["exchange_share"] == pytest.approx(0.5 / 3.672, rel=0.01)
    assert by_flops["idle_share"] == pytest.approx(idle / 10 / 4 / 3.672, rel=0.01)
    assert by_flops["examples_per_second"] == pytest.approx(4 * 466 / 3.672, rel=0.02)


def test_the_interval_of_a_change_is_that_of_a_ratio(tmp_path: Path) -> None:
    steps = ((100, 104, 145, 117), (100, 104, 155, 117), (100, 104, 150, 117))
    for seed, of_seed in enumerate(steps):
        write_rounds(tmp_path / "s", "uniform", seed=seed)
        write_rounds(tmp_path / "s", "steps_by_flops", seed=seed, lists=(None, of_seed))
    ours, theirs = (
        np.array([
            10 * sum(max(seconds) - one for one in seconds)
            for seed, of_seed in enumerate(lists)
            for seconds in [round_seconds((4,) * 4, of_seed, seed)]
        ])
        for lists in (steps, ((100,) * 4,) * 3)
    )  # fmt: skip
    ratio = ours.mean() / theirs.mean()
    half = stats.t.ppf(0.975, 2) * stats.sem(ours - ratio * theirs) / theirs.mean()
    by_flops = by_variant(analysis.idle_table(bsweep.load(tmp_path / "s"))).loc["steps_by_flops"]
    assert by_flops[["change", "change_ci95"]].tolist() == pytest.approx([ratio - 1, half])
    assert half > 0.01


def test_other_numbers_of_rounds_are_compared_by_the_idle_time_of_a_round(tmp_path: Path) -> None:
    write_rounds(tmp_path / "s", "uniform", num_rounds=10)
    write_rounds(tmp_path / "s", "steps_by_flops", num_rounds=5, seed=7)
    table = by_variant(analysis.idle_table(bsweep.load(tmp_path / "s")))
    assert table["rounds"].tolist() == [10, 5]
    idle = sum(3.172 - seconds for seconds in round_seconds((4,) * 4, (100, 104, 145, 117)))
    other = table.loc["steps_by_flops"]
    assert other["idle_seconds_per_round"] == pytest.approx(idle * 1.07)
    assert other["idle_seconds"] == pytest.approx(5 * idle * 1.07)
    assert other["change"] == pytest.approx(idle * 1.07 / 2.06 - 1)
    assert np.isnan(other["change_ci95"])  # no seed in common


def test_each_exchange_has_its_own_baseline_and_each_policy_its_place(tmp_path: Path) -> None:
    for allocation in reversed(ALLOCATIONS):
        write_rounds(tmp_path / "t", allocation, num_rounds=1)
    table = by_variant(analysis.idle_table(bsweep.load(tmp_path / "t")))
    assert table.index.tolist() == list(ALLOCATIONS)
    for weighting, rounds in (("uniform", 2), ("fednova", 4)):
        for allocation in ("uniform", "steps_by_flops"):
            write_rounds(tmp_path / "s", allocation, num_rounds=rounds, weighting=weighting)
    write_run(tmp_path / "s", local_batch=4, num_workers=4, epochs=1)  # of Horovod, without rounds
    table = analysis.idle_table(bsweep.load(tmp_path / "s"))
    assert len(table) == 4
    assert table["change"].dropna().nunique() == 1


def test_losses_are_compared_at_the_first_last_midpoint(tmp_path: Path) -> None:
    write_rounds(tmp_path / "s", "uniform", num_rounds=10)
    write_rounds(tmp_path / "s", "batch_by_memory", num_rounds=3)
    study = bsweep.load(tmp_path / "s")
    table = by_variant(analysis.equal_time_losses(study))
    seconds = 2.5 * (max(round_seconds((8, 8, 32, 16), (100,) * 4)) + ROUND_EXCHANGE_SECONDS)
    assert table["elapsed_seconds"].tolist() == pytest.approx([seconds] * 2)
    at_its_end = 3 + 4 / (1 + 3 * 6400 / 5000)
    assert table.loc["batch_by_memory", "train_loss"] == pytest.approx(at_its_end)
    losses = [3 + 4 / (1 + number * 1600 / 5000) for number in range(1, 11)]
    midpoints = 3.55 * (np.arange(10) + 0.5)
    by_then = np.interp(seconds, midpoints, losses)
    assert table.loc["uniform", "train_loss"] == pytest.approx(by_then)
    assert table.loc["uniform", "num_examples"] == pytest.approx(1600 * seconds / 3.55)
    curve = analysis.loss_by_time(study).xs("uniform", level="variant")
    assert curve["train_loss"].tolist() == pytest.approx(losses)
    elapsed = curve.index.get_level_values("elapsed_seconds").tolist()
    assert elapsed == pytest.approx(midpoints)


def test_runs_that_end_with_a_round_are_compared_by_their_last_one(tmp_path: Path) -> None:
    limited: list[dict[str, Any]] = [{}, {"max_rounds": 3}, {"max_seconds": 60.0}]
    for seed, limits in enumerate(limited):
        write_run(
            tmp_path / "s", local_batch=4, num_workers=4, seed=seed, num_rounds=1,
            settings=diloco("uniform", **limits),
        )  # fmt: skip
    study = bsweep.load(tmp_path / "s")
    for table in ("runs", "epochs", "rounds"):
        getattr(study, table).to_csv(tmp_path / f"{table}.csv", index=False)
    study = bsweep.load(tmp_path)
    of_epoch = study.epochs["train_loss"].iloc[-1]
    of_round = study.rounds.loc[study.rounds["round"] == 3]
    runs = study.runs.sort_values("seed")
    assert runs["train_loss"].iloc[0] == pytest.approx(of_epoch, abs=0.05)
    assert runs["train_loss"].iloc[1:].tolist() == of_round["train_loss"].iloc[[4, 8]].tolist()
    assert runs["train_accuracy"].isna().tolist() == [False, True, True]
    assert analysis.ends_in_rounds(study)
    assert analysis.epoch_curves(study)["n"].tolist() == [1] * 3, "their last epochs are fragments"


def test_uneven_steps_are_timed_by_examples(tmp_path: Path) -> None:
    write_rounds(tmp_path / "s", "uniform", num_rounds=2)
    study = bsweep.load(tmp_path / "s")
    assert analysis.step_unit(study) == "step"
    write_rounds(tmp_path / "s", "steps_by_flops", num_rounds=2)
    study = bsweep.load(tmp_path / "s")
    assert analysis.step_unit(study) == "1,000 examples"
    seconds = 1000 / study.epochs["images_per_second"].iloc[0]
    assert analysis.step_times(study)["total_seconds"].tolist() == pytest.approx([seconds] * 2)


def test_batches_are_those_that_workers_had(tmp_path: Path) -> None:
    for allocation in ("uniform", "batch_by_memory"):
        write_rounds(tmp_path / "s", allocation, num_rounds=2)
    write_rounds(tmp_path / "s", "hybrid", num_rounds=2, lists=((16,) * 4, None))
    # Of a run without rounds.
    given = {"strategy": {"name": "allreduce"}, "allocation.local_batches": [2, 2, 2, 10]}
    write_run(tmp_path / "s", local_batch=4, num_workers=4, settings=given)
    cells = by_variant(analysis.cells(bsweep.load(tmp_path / "s").runs))
    assert cells["local_batches"].to_dict() == {
        "diloco uniform": "", "diloco batch_by_memory": "8/8/32/16",
        "diloco hybrid": "16/16/16/16", "allreduce": "2/2/2/10",
    }  # fmt: skip
