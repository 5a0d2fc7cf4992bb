"""`scripts/truth.py` and `scripts/policies.py`, over a small grid of known laws."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bsweep.analysis.prediction.selection import observed
from bsweep.config.target import target_of
from tests.support.running import ROOT
from tests.support.synthetic_study import NUM_TRAIN, train_seconds, write_run
from tests.support.synthetic_targets import TARGET, Truth, write_target_run

sys.path.insert(0, str(ROOT / "scripts"))
import measured_grid
import policies
import truth

LAW = Truth(minimum_steps=2000, scatter=0.0)
GRID = (32, 128, 512)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> measured_grid.Measured:
    folder = tmp_path_factory.mktemp("truth")
    for seed in (1, 2):
        for batch in GRID:
            write_target_run(
                folder / "runs", LAW, batch=batch, seed=seed, noise_scale=180.0, every_examples=2000
            )
            for workers in (1, 2):
                write_run(
                    folder / "steps", local_batch=batch // workers, num_workers=workers, seed=seed
                )
    return measured_grid.measured(folder, target_of(accuracy=TARGET))


def run_of(grid: measured_grid.Measured, batch: int, workers: int, seed: int) -> measured_grid.Run:
    return measured_grid.Run((batch, workers, 1, ""), seed, grid.rates[0])


def step_seconds(batch: int, workers: int, seed: int) -> float:
    return train_seconds(batch // workers, workers, 1, seed) / math.ceil(NUM_TRAIN / batch)


def test_seconds_of_a_cell_are_steps_times_step_seconds(
    grid: measured_grid.Measured,
) -> None:
    assert set(grid.cells) == {(batch, workers, 1, "") for batch in GRID for workers in (1, 2)}
    assert grid.seeds == [1, 2]
    for batch, workers, *_ in grid.cells:
        steps = [step_seconds(batch, workers, seed) for seed in (1, 2)]
        expected = LAW.steps(batch) * sum(steps) / 2  # the median of two
        assert grid.seconds[batch, workers, 1, ""] == pytest.approx(expected, rel=0.02)
    assert min(grid.regret(cell) for cell in grid.cells) == 0


def test_a_run_that_is_played_on_several_workers_takes_as_long_as_there(
    grid: measured_grid.Measured,
) -> None:
    seen = observed(
        measured_grid.played(
            grid, [(run_of(grid, 128, 2, 1), math.inf), (run_of(grid, 32, 1, 2), 3000.0)]
        ),
        grid.target,
    )
    found = seen.runs.set_index("global_batch")
    whole, broken_off = found.loc[128], found.loc[32]
    assert whole["reached"]
    assert not broken_off["reached"]
    assert broken_off["trained_steps"] <= 3000
    assert whole["seconds_to_target"] == pytest.approx(grid.run_seconds(run_of(grid, 128, 2, 1)))
    assert broken_off["status"] == "interrupted"
    assert whole["step_seconds"] == pytest.approx(step_seconds(128, 2, 1))


def test_rules_choose_what_they_predict_to_be_least(grid: measured_grid.Measured) -> None:
    search = measured_grid.Played(grid, (1, 2))
    first = run_of(grid, 128, 1, 1)
    search.runs = [(first, math.inf), (run_of(grid, 512, 2, 1), math.inf)]
    nearest = truth.nearest_measured(grid, search)
    assert nearest[32, 1, 1, ""] == pytest.approx(grid.run_seconds(first))
    assert min(nearest, key=lambda cell: nearest[cell]) in {(128, 1, 1, ""), (512, 2, 1, "")}, (
        "one that was run"
    )
    alone, goodput = truth.throughput_alone(grid, search), truth.goodput(grid, search)
    began = (128, 1, 1, "")
    assert alone[began] == goodput[began] == pytest.approx(grid.run_seconds(first), rel=0.15)
    assert goodput[512, 1, 1, ""] / alone[512, 1, 1, ""] == pytest.approx(
        (512 + 180) / (128 + 180), rel=0.2
    )
    assert truth.error(grid.seconds, grid.seconds, grid.cells) == 0


def test_zeus_settles_on_the_best_batch_of_the_most_workers(grid: measured_grid.Measured) -> None:
    history, stopped = truth.zeus(grid, np.random.default_rng(0))
    best = min((c for c in grid.cells if c[1] == 2), key=lambda cell: grid.seconds[cell])
    assert history[-1][1] == best
    assert 1 < stopped < len(history)
    costs = [cost for cost, _ in history]
    assert costs == sorted(costs)
    cheapest = min(grid.worker_seconds(run_of(grid, best[0], 2, seed)) for seed in (1, 2))
    assert costs[-1] > 0.9 * cheapest * len(history)


def test_least_squares_find_a_law_and_pay_for_starts(grid: measured_grid.Measured) -> None:
    history, _ = truth.least_squares(grid, 1, 3)
    best = min(grid.cells, key=lambda cell: grid.seconds[cell])
    ((spent, choice),) = history
    assert grid.regret(choice) < 0.05, best
    runs = [min(grid.worker_seconds(run_of(grid, b, n, 1)) for n in (1, 2)) for b in GRID]
    probes = [grid.probe_worker_seconds(run_of(grid, *cell[:2], 1)) for cell in grid.cells]
    assert spent == pytest.approx(sum(runs) + sum(probes), rel=0.05)
    starts = sum(grid.runs[run_of(grid, *c[:2], 1)].start_seconds * c[1] for c in grid.cells)
    assert sum(probes) > starts > 0


def test_one_after_another_ends_with_the_soonest_run(grid: measured_grid.Measured) -> None:
    runs = [run for run in grid.runs if run.seed == 1]
    history, stopped = truth.one_after_another(grid, runs, math.inf)
    assert stopped == len(history) == len(runs)
    assert history[-1][1] == min(runs, key=grid.run_seconds).cell
    assert history[-1][0] == pytest.approx(sum(map(grid.worker_seconds, runs)))
    _, stopped = truth.one_after_another(grid, runs, history[2][0])
    assert stopped == 3


def test_halving_ends_with_a_cell_that_is_soon(grid: measured_grid.Measured) -> None:
    history, stopped = truth.halving(grid, np.random.default_rng(0))
    assert stopped == len(history) > 1
    assert grid.regret(history[-1][1]) < 0.5
    whole = sum(grid.worker_seconds(run) for run in grid.runs if run.seed == 1)
    assert history[0][0] < history[-1][0] < 2 * whole


def test_a_choice_is_settled_once_it_stays_close(grid: measured_grid.Measured) -> None:
    best = min(grid.cells, key=lambda cell: grid.seconds[cell])
    worst = max(grid.cells, key=lambda cell: grid.seconds[cell])
    history = [(1.0, best), (2.0, worst), (3.0, best), (4.0, best)]
    told = truth.row(grid, "rule", history, 4)
    assert told["settled_share"] == pytest.approx(3 / grid.cost)
    assert told["cost_share"] == pytest.approx(4 / grid.cost)
    assert told["regret"] == 0
    assert math.isinf(float(str(truth.row(grid, "rule", history[:2], 1)["settled_share"])))
    nothing = truth.row(grid, "rule", [(1.0, None)], 1)
    assert math.isinf(float(str(nothing["regret"])))


def test_a_changing_batch_takes_the_step_seconds_of_each_batch(
    grid: measured_grid.Measured,
) -> None:
    epoch = {batch: NUM_TRAIN / batch * grid.step((batch, 2, 1, "")) for batch in GRID}
    assert epoch[32] > epoch[128]
    changes = pd.DataFrame({"epochs_done": [0.5, 0.7, 1.0], "global_batch": [32, 128, 128]})
    expected = 0.7 * epoch[32] + 0.8 * epoch[128]  # it changed somewhere between 0.5 and 0.7
    assert policies.seconds_to(grid, changes, 1.5, 2) == pytest.approx(expected)
    between = pd.DataFrame({"epochs_done": [0.0], "global_batch": [64]})
    step = math.sqrt(grid.step((32, 2, 1, "")) * grid.step((128, 2, 1, "")))
    assert policies.seconds_to(grid, between, 1.5, 2) == pytest.approx(1.5 * NUM_TRAIN / 64 * step)
    with pytest.raises(ValueError, match="steps of 32 to 512 are known"):
        policies.seconds_to(
            grid, pd.DataFrame({"epochs_done": [0.0], "global_batch": [16]}), 1.5, 2
        )


def test_rules_are_held_against_the_best_fixed_batch_by_equal_seeds() -> None:
    nan = math.nan
    of_rules = {  # seconds and accuracies of three seeds
        "fixed 32": ((10, 11, 12), (0.70, 0.71, 0.70)),
        "fixed 64": ((20, 10, 22), (0.72, 0.74, 0.72)),
        "goodput": ((8, 9, 9), (nan, nan, nan)),
        "cabs": ((11, math.inf, 12), (0.65, 0.66, 0.66)),
        "schedule": ((10, 11, 12), (0.7, 0.71, 0.7)),
    }
    rows = [
        (rule, seed, 2, *each)
        for rule, of in of_rules.items()
        for seed, each in enumerate(zip(*of, strict=True))
    ]
    table = policies.compared(
        pd.DataFrame(rows, columns=["rule", "seed", "num_workers", "seconds", "accuracy"])
    )
    found = table.set_index("rule")
    assert set(table["best_fixed"]) == {"fixed 32"}
    assert set(table["rule"]) == {
        "fixed 64",
        "goodput",
        "cabs",
        "schedule",
    }
    assert found["ratio"]["goodput"] == pytest.approx((8 * 9 * 9 / (10 * 11 * 12)) ** (1 / 3))
    assert found["p_sooner"]["goodput"] < 0.05 < found["p_sooner"]["fixed 64"]
    assert found["p_holm"]["goodput"] == 3 * found["p_sooner"]["goodput"], "of three policies"
    assert found["low"]["goodput"] < found["ratio"]["goodput"] < found["high"]["goodput"] < 1
    assert found["regret"]["goodput"] == pytest.approx((8 / 10 + 9 / 10 + 9 / 12) / 3 - 1), (
        "64 was better once"
    )
    assert found["num_missed"]["cabs"] == 1
    assert found["num_seeds"]["cabs"] == 3
    assert found["p_sooner"]["cabs"] == 1
    assert math.isinf(found["regret"]["cabs"])
    assert (found["ratio"]["schedule"], found["p_sooner"]["schedule"]) == (1, 1), (
        "which never changed"
    )
    assert found["accuracy_difference"]["fixed 64"] == pytest.approx(0.07 / 3)
    assert found["p_less_accurate"]["cabs"] < 0.05
    assert found["p_less_accurate"]["fixed 64"] > 0.95
    assert math.isnan(found["accuracy_difference"]["goodput"]), "runs that ended at the target"


def test_a_missed_target_takes_forever_and_passes_replace_workers(
    grid: measured_grid.Measured,
) -> None:
    of_grid = grid.study.runs
    runs = of_grid[of_grid["num_workers"] == 1].set_index("run_id")
    first, second, third = runs.index[:3]
    runs["batching"], runs["lr_rule"] = "fixed", "linear"
    runs.loc[first, ["batching", "status"]] = "norm_test", "diverged"
    runs.loc[second, ["lr_rule", "local_batch"]] = "adascale", 16
    runs.loc[third, "batching"] = "goodput"
    study = dataclasses.replace(
        grid.study,
        runs=runs.loc[[first, second, third]].reset_index(),
        evaluations=grid.study.evaluations[grid.study.evaluations["run_id"] != first],
    )
    found = policies.times(grid, study)
    batches = runs["global_batch"]
    of = {rule: rows.set_index("num_workers")["seconds"] for rule, rows in found.groupby("rule")}
    missed = of[f"norm_test from {batches[first]}"]
    assert [*missed.index] == [1, 2]
    assert np.isinf(missed).all()
    seconds = of[f"fixed {batches[second]}, AdaScale, passes of 16"]
    assert [*seconds.index] == [2]
    assert np.isfinite(seconds).all()
    assert [*of[f"goodput from {batches[third]}"].index] == [1]


def test_a_grid_that_was_trained_whole_is_read_from_its_study(tmp_path: Path) -> None:
    for batch, workers, seed, rate in itertools.product((32, 128), (1, 2), (1, 2), (0.1, 0.2)):
        write_target_run(
            tmp_path / "s", LAW, batch=batch, workers=workers, seed=seed,
            settings={"optimizer.lr": rate}, needed=1.0 if rate == 0.1 else 1.5,
            every_examples=2000,
        )  # fmt: skip
    target = target_of(accuracy=TARGET)
    grid = measured_grid.measured(tmp_path / "s", target)
    assert grid.rates == [0.1, 0.2]
    assert len(grid.runs) == 16
    for batch, workers, *_ in grid.cells:
        assert grid.seconds[batch, workers, 1, ""] == pytest.approx(
            LAW.seconds(batch, workers), rel=0.1
        )
    run = measured_grid.Run((32, 2, 1, ""), 2, 0.2)
    shutil.rmtree(tmp_path / "s" / grid.runs[run].run_id)
    with pytest.raises(SystemExit, match="these are missing"):
        measured_grid.measured(tmp_path / "s", target)
