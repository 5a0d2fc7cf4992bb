"""`bsweep predict` on studies with known laws: what it recommends, how sure it says it is, and what
it refuses.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep.analysis.prediction.critical_batch import branches_of
from bsweep.analysis.prediction.forecast import PARTS, Forecast
from bsweep.analysis.prediction.likelihood import cell_runs
from bsweep.analysis.prediction.objectives import choose_cell, parse_objective, with_probabilities
from bsweep.analysis.prediction.seen_runs import chosen_too_low, observed
from bsweep.analysis.prediction.step_time import Cell
from bsweep.analysis.prediction.steps import fit_steps
from bsweep.cli import predict as command
from bsweep.config.target import target_of
from bsweep.config.values import parse_seconds
from bsweep.runlog.probe_file import Probe, ProbedBatch, ProbedWorker
from bsweep.runlog.records import Status
from tests.support.running import ran_ok
from tests.support.synthetic_targets import (
    TARGET,
    Truth,
    with_energy,
    write_branch,
    write_target_run,
    write_target_study,
)

TRUTH = Truth()
CELLS = [(32, 1), (128, 1), (512, 1), (128, 2), (512, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five cells of a grid, two seeds each."""
    study = tmp_path_factory.mktemp("predict") / "known"
    write_target_study(study, TRUTH, (32, 128, 512), seeds=(0, 1))
    return write_target_study(study, TRUTH, (128, 512), workers=(2,), seeds=(0, 1))


@pytest.fixture(scope="module")
def prediction(folder: Path) -> bsweep.analysis.Prediction:
    return bsweep.predict(folder, TARGET)


def test_every_cell_of_the_grid_is_predicted_and_the_truth_lies_within(
    prediction: bsweep.analysis.Prediction,
) -> None:
    cells = prediction.cells
    grid = [*zip(cells["global_batch"], cells["num_workers"], strict=True)]
    assert {*grid} == {(b, n) for b in (32, 64, 128, 256, 512) for n in (1, 2)}
    truth = np.array([TRUTH.seconds(*cell) for cell in grid])
    assert ((cells["typical_low"] < truth) & (truth < cells["typical_high"])).mean() >= 0.8
    assert (np.abs(cells["seconds"] / truth - 1)).median() < 0.1
    assert (cells["seconds_low"] <= cells["typical_low"]).all()
    is_measured = cells["num_runs"] > 0
    assert {cell for cell, known in zip(grid, is_measured, strict=True) if known} == set(CELLS)
    assert (cells["num_reached"][is_measured] == 2).all()
    assert (cells["measured_seconds"].notna() == is_measured).all()
    width = np.log(cells["typical_high"] / cells["typical_low"])
    assert width[is_measured].max() < width[~is_measured].max(), "what was measured is known better"
    parts = cells[[f"{name}_seconds" for name in PARTS]].sum(axis="columns")
    assert parts.to_numpy() == pytest.approx(cells["seconds"].to_numpy())
    assert not prediction.warnings
    limits = {"S_min (steps)": TRUTH.minimum_steps, "E_min (examples)": TRUTH.minimum_examples}
    for name, value in limits.items():
        assert prediction.fits["low"][name] < value < prediction.fits["high"][name]


def test_the_recommendation_is_the_best_cell_with_its_probability(
    prediction: bsweep.analysis.Prediction,
) -> None:
    best, cells = prediction.recommended, prediction.cells
    least = min(map(TRUTH.seconds, cells["global_batch"], cells["num_workers"]))
    assert TRUTH.seconds(best["global_batch"], best["num_workers"]) < 1.05 * least
    assert cells["probability_best"].sum() == pytest.approx(1)
    assert best["probability_close"] >= best["probability_best"]
    named = f"global batch {best['global_batch']} on {best['num_workers']} worker"
    assert repr(prediction).startswith(f"Fastest to a test accuracy of 0.9: {named}")
    assert "<table" in prediction._repr_html_()
    assert "Error without" not in repr(prediction), "fits without a cell take long: on demand"
    assert prediction.as_json()["leave_out"] is None


@pytest.mark.full
def test_errors_of_left_out_cells_are_computed_on_demand(folder: Path) -> None:
    prediction = bsweep.predict(folder, TARGET)
    table = prediction.leave_out
    assert sorted(zip(table["global_batch"], table["num_workers"], strict=True)) == sorted(
        [*CELLS, *CELLS]
    ), "without its batch size, and without its worker count"
    by_batch = table[table["left_out"] == "global_batch"]
    assert by_batch["error"].abs().median() < 0.15
    assert table["is_inside"].sum() >= len(table) - 2
    assert "Error without a cell's worker count (2 worker counts" in repr(prediction)
    assert prediction.as_json()["leave_out"]


def test_one_more_run_brings_most_where_the_choice_is_open(
    prediction: bsweep.analysis.Prediction,
) -> None:
    gains = prediction.gains()
    assert (gains["gain"] >= 0).all()
    assert gains["gain"].max() > 0
    likely = prediction.cells[prediction.cells["probability_best"] > 0.01]
    most = gains.iloc[gains["gain"].argmax()]
    assert [most["global_batch"], most["num_workers"]] in likely[
        ["global_batch", "num_workers"]
    ].to_numpy().tolist()
    worst = (gains["global_batch"] == 32) & (gains["num_workers"] == 1)
    assert gains.loc[worst, "gain"].max() < 1e-3 * gains["gain"].max()


@pytest.mark.full
def test_limits_and_measures_change_what_is_recommended(folder: Path) -> None:
    study = bsweep.load(folder)
    cheapest = bsweep.predict(study, TARGET, objective="cheapest", price_per_worker_hour=3.6)
    assert cheapest.recommended["num_workers"] == 1
    assert cheapest.choice.value == pytest.approx(cheapest.recommended["worker_seconds"] / 1000)
    money, seconds = (cheapest.cells[name].to_numpy() for name in ("money", "worker_seconds"))
    assert money == pytest.approx(seconds / 1000)
    assert cheapest.cells["joules"].isna().all()
    one = bsweep.predict(study, TARGET, objective="fastest,workers<=1", workers=[1, 2, 4])
    assert one.recommended["num_workers"] == 1
    assert set(one.cells["num_workers"]) == {1, 2, 4}
    assert any("4 workers" in warning for warning in one.warnings)
    widths = one.cells.assign(log=np.log(one.cells["seconds_high"] / one.cells["seconds_low"]))
    wide = widths.groupby("num_workers")["log"].mean()
    assert wide[4] > wide[2], "an exchange on four workers was not measured"
    slowest, soonest = one.cells["seconds"].max(), one.cells["seconds"].min()
    deadline = bsweep.predict(study, TARGET, objective=f"deadline={2 * slowest:.0f}s")
    assert deadline.recommended["num_workers"] == 1, "what is in time need not be soonest"
    assert deadline.recommended["probability_in_time"] > 0.9
    with pytest.raises(ValueError, match="no cell meets the deadline"):
        bsweep.predict(study, TARGET, objective=f"deadline={soonest / 3:.0f}s")


@pytest.mark.full
def test_the_least_energy_counts_the_power_of_idle_devices(folder: Path) -> None:
    """By 40 W of a worker whatever it does, and 0.3 J an example; on two workers an exchange leaves
    them idle.
    """
    study = with_energy(bsweep.load(folder), 40, example_joules=0.3)
    found = bsweep.predict(study, TARGET, objective="joules", batches=[32, 64, 128, 256, 512])
    cells = found.cells
    truth = 40 * cells["worker_seconds"] + 0.3 * cells["steps"] * cells["global_batch"]
    assert cells["joules"].to_numpy() == pytest.approx(truth.to_numpy(), rel=0.05)
    assert found.choice.value == pytest.approx(cells["joules"].min(), rel=0.02)
    constant = bsweep.predict(with_energy(study, 50), TARGET, objective="joules")
    assert constant.choice.value == pytest.approx(50 * constant.recommended["worker_seconds"])


@pytest.mark.full
def test_the_command_prints_a_sentence_and_programs_read_json(folder: Path, tmp_path: Path) -> None:
    study = str(folder)
    printed = ran_ok(
        "predict", study, "--target-accuracy", "0.9", "--batches", "64,128", cwd=tmp_path
    ).stdout
    assert len(printed.splitlines()) <= 5
    assert re.search(r"^Run next: .* to save \d+\.\d % of ", printed, re.MULTILINE)
    assert printed.startswith("Fastest to a test accuracy of 0.9: global batch 128 on 2 workers")
    words = ("--target-loss", "0.1", "--json", "--verbose")
    told = ran_ok("predict", study, *words, cwd=tmp_path)
    read = json.loads(told.stdout)
    assert read["target"] == {"metric": "test_loss", "value": 0.1, "part": "test"}
    assert read["cells"][0]["joules"] is None
    assert read["learning_rate_rule"] == "linear"
    assert len(read["critical_batches"]) == 3
    assert read["recommendation"]["global_batch"] in {128, 256}
    assert read["leave_out"]


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--target-accuracy 0.99", "The best median of three evaluations is 0.9"),
        ("--target-accuracy 90", "such as 0.9"),
        ("", "give a target"),
        ("--target-accuracy 0.9 --target-loss 1", "give one target"),
        ("--target-accuracy 0.9 --batches 64 --workers 2", "only one cell"),
        ("--target-accuracy 0.9 --objective fastes", "Did you mean 'fastest'?"),
        ("--target-accuracy 0.9 --objective joules", "the energy of no run is known"),
        ("--target-accuracy 0.9 --where strategy", "as in strategy=horovod"),
        ("--target-accuracy 0.9 --where optimiser=sgd", "Did you mean 'optimizer'?"),
        ("--target-accuracy 0.9 --where global_batch=128", "Run one more batch size"),
    ],
)
def test_what_cannot_be_predicted_is_said_with_the_remedy(
    words: str, says: str, folder: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        command.run([str(folder), *words.split()])


@pytest.mark.full
def test_runs_that_differ_in_more_than_the_grid_have_to_be_chosen(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {}, {"settings": {"epochs": 9, "target_accuracy": 0.9}},
        {"settings": {"optimizer.momentum": 0.8}}, {"workers": 2, "meta": {"cpu": "Other CPU"}},
    ]  # fmt: skip
    for batch in (32, 128):
        for other in others:
            write_target_run(tmp_path / "s", TRUTH, batch=batch, **other)
    study, where = bsweep.load(tmp_path / "s", mix=True), {"hardware": "Test CPU, 2 cores"}
    says = r"different hardware.*Other CPU, 2 cores; Test CPU, 2 cores.*--where hardware="
    with pytest.raises(ValueError, match=says):
        bsweep.predict(study, TARGET)
    with pytest.raises(ValueError, match=r"momentum: 0\.8, 0\.9.*--where optimizer\.momentum=0\.8"):
        bsweep.predict(study, TARGET, where=where)
    found = bsweep.predict(study, TARGET, where={**where, "optimizer.momentum": "0.9"})
    told = "runs of other lengths are the same at a constant rate"
    assert found.cells["num_runs"].sum() == 4, told


@pytest.mark.full
def test_runs_that_never_got_there_count_as_such(tmp_path: Path) -> None:
    most = 360_000.0  # too few examples for the larger batches alone
    batches, seeds = (32, 64, 128, 256, 512, 1024), (0, 1)
    write_target_study(tmp_path / "s", TRUTH, batches, seeds=seeds, most_examples=most)
    study = bsweep.load(tmp_path / "s")
    prediction = bsweep.predict(study, TARGET)
    row = prediction.cells.set_index("global_batch").loc[1024]
    assert row["steps_low"] > 0.85 * most / 1024, "more steps than it was trained"
    assert row["steps_low"] < TRUTH.steps(1024) < row["steps_high"]
    assert (row["num_runs"], row["num_reached"]) == (2, 0)
    assert np.isnan(row["measured_seconds"])
    assert row["is_unreached"]
    assert not row["is_allowed"]
    assert row["probability_best"] == 0
    assert "0 of 2 reached; left out" in repr(prediction)
    assert bsweep.predict(study, TARGET, batches=[64, 1024, 2048]).cells["is_unreached"].iloc[-1]
    unreached = bsweep.predict(study, TARGET, batches=[512, 1024])  # there is nothing else
    assert "No run of this cell reached the target" in unreached.sentence()
    assert any("no run of the recommended cell" in warning for warning in unreached.warnings)


@pytest.mark.full
def test_a_run_too_short_for_any_batch_rules_no_batch_out(tmp_path: Path) -> None:
    for batch, most in ((32, np.inf), (512, np.inf), (128, 0.5 * 32 * TRUTH.steps(32))):
        write_target_run(tmp_path / "s", TRUTH, batch=batch, most_examples=most)
    row = bsweep.predict(tmp_path / "s", TARGET).cells.set_index("global_batch").loc[128]
    assert (row["num_runs"], row["num_reached"]) == (1, 0)
    assert not row["is_unreached"]
    assert row["is_allowed"]


@pytest.mark.full
@pytest.mark.parametrize(("status", "best"), [("completed", 128), ("interrupted", 256)])
def test_a_batch_that_missed_the_target_at_its_end_is_not_recommended(
    status: Status, best: int, tmp_path: Path
) -> None:
    truth = Truth(minimum_examples=640_000, scatter=0.02)
    write_target_study(tmp_path / "s", truth, (32, 128), workers=(2,))
    most = 0.95 * 256 * truth.steps(256)
    write_target_run(tmp_path / "s", truth, batch=256, workers=2, most_examples=most, status=status)
    assert bsweep.predict(tmp_path / "s", TARGET).recommended["global_batch"] == best


@pytest.mark.full
def test_a_run_resumed_on_other_hardware_times_its_own_steps_only(tmp_path: Path) -> None:
    truth = replace(TRUTH, scatter=0.0, jitter=0.0)
    sources = {
        batch: write_target_run(tmp_path / "s", truth, batch=batch) for batch in (64, 128, 256)
    }
    plain = bsweep.predict(tmp_path / "s", TARGET, workers=[1, 2])
    half = int(truth.steps(64) / 2)
    for batch in (128, 256, 512):
        write_branch(tmp_path / "s", sources[64], truth, batch=batch, workers=2, after=half, seed=1)
    prediction = bsweep.predict(tmp_path / "s", TARGET, workers=[1, 2])
    assert (len(prediction.seen.runs), len(prediction.seen.continued)) == (3, 3)
    timed = {cell: seconds for cell, seconds, kind in prediction.seen.timings() if kind == "step"}
    assert timed[Cell(128.0, 2)] == pytest.approx(truth.step_seconds(128, 2)), (
        "on its own workers alone"
    )
    minimum, as_before = (one.fitted.steps.minimum_steps for one in (prediction, plain))
    assert (minimum == as_before).all(), "another run's steps"
    branches = branches_of(prediction.seen).set_index("global_batch")["steps_to_target"]
    begun = prediction.seen.continued["branch_steps"].iloc[0]
    left = 1 - begun / truth.steps(64)
    for batch in (64, 128, 256, 512):
        expected = truth.steps(batch) * (left if batch == 64 else 1)
        assert branches[batch] == pytest.approx(expected, rel=0.02)


def test_the_table_of_steps_has_the_own_steps_of_a_branch(tmp_path: Path) -> None:
    truth = replace(TRUTH, scatter=0.0, jitter=0.0)
    source = write_target_run(tmp_path / "s", truth, batch=64)
    write_branch(tmp_path / "s", source, truth, batch=512, after=2000)
    seconds = bsweep.analysis.step_times(bsweep.load(tmp_path / "s"))["total_seconds"]
    assert [*seconds] == pytest.approx([truth.step_seconds(batch, 1) for batch in (64, 512)])


def test_the_distance_of_evaluations_widens_what_steps_say(tmp_path: Path) -> None:
    widths = []
    for spacing in (0.0, 1000.0):
        runs = {
            float(batch): cell_runs([TRUTH.steps(batch)] * 2, spacing=spacing * 64 / batch)
            for batch in (64, 128, 256)
        }
        drawn = fit_steps(runs, num_draws=2000).log_steps(128.0)
        widths.append(float(np.std(drawn)))
    assert widths[1] > 1.5 * widths[0]
    write_target_run(tmp_path / "s", TRUTH, batch=128, every_examples=40_000)
    of = observed(bsweep.load(tmp_path / "s"), target_of(accuracy=TARGET)).steps()[128.0]
    assert of.resolution == pytest.approx((312 / np.exp(of.exact[0])) ** 2 / 12)


@pytest.mark.full
def test_of_several_learning_rates_each_batch_goes_by_its_best(tmp_path: Path) -> None:
    best = {32: 0.1, 128: 0.2, 512: 0.4}
    for batch, rate in best.items():
        for tried in best.values():
            settings = {"optimizer.lr": tried, "optimizer.lr_rule": "fixed"}
            slower = 1 + abs(np.log2(tried / rate))
            most = np.inf if slower < 3 else 0.9 * batch * TRUTH.steps(batch)
            for seed in (0, 1):
                write_target_run(
                    tmp_path / "s", TRUTH, batch=batch, seed=seed, settings=settings,
                    needed=slower, most_examples=most,
                )  # fmt: skip
    prediction = bsweep.predict(tmp_path / "s", TARGET)
    assert prediction.seen.rates == best
    assert prediction.cells["num_runs"].sum() == 6
    rule = prediction.as_json()["learning_rate_rule"]
    assert rule.endswith(": 0.1 at 32, 0.2 at 128, 0.4 at 512")
    assert any("several learning rates were tried" in warning for warning in prediction.warnings)
    truth = np.array([TRUTH.seconds(int(batch), 1) for batch in prediction.cells["global_batch"]])
    assert (np.abs(prediction.cells["seconds"] / truth - 1)).median() < 0.1
    assert 0 <= max(prediction.seen.optimism.values()) < 0.01, "the others are far worse"
    one = bsweep.predict(tmp_path / "s", TARGET, where={"lr": "0.2"})
    assert not one.seen.rates
    assert one.cells["num_runs"].sum() == 6


def test_the_luckiest_of_equal_learning_rates_is_counted_as_chosen() -> None:
    rng, rates = np.random.default_rng(1), (0.1, 0.2, 0.4, 0.8)
    away = []
    for _ in range(40):
        logs = 0.08 * rng.standard_normal((len(rates), 2))
        runs = pd.DataFrame({
            "global_batch": 64, "lr": np.repeat(rates, 2), "reached": True, "is_bound": False,
            "steps_to_target": np.exp(logs.ravel()),
        })  # fmt: skip
        best = int(logs.mean(axis=1).argmin())
        corrected = logs[best].mean() + chosen_too_low(runs, {64: rates[best]})[64]
        away.append((logs[best].mean(), corrected))
    lowest, mended = np.mean(away, axis=0)
    assert lowest < -0.04
    assert abs(mended) < 0.5 * abs(lowest)


@pytest.mark.full
def test_one_batch_and_its_noise_scale_give_a_wide_prediction(tmp_path: Path) -> None:
    critical, batches = TRUTH.minimum_examples / TRUTH.minimum_steps, [32, 128, 512]
    seeds = (0, 1)
    write_target_study(tmp_path / "s", TRUTH, (128,), (2,), seeds, noise_scale=critical)
    study = bsweep.load(tmp_path / "s")
    prediction = bsweep.predict(study, TARGET, batches=batches, workers=[2])
    by_steps, by_noise, _ = prediction.critical_batches
    assert by_steps.verdict == "not identifiable: 1 batch size is missing"
    assert by_noise.is_known
    assert 0.8 * critical < by_noise.low < by_noise.high < 1.25 * critical
    cells = prediction.cells.set_index("global_batch")
    low, high = (cells[name].astype(float) for name in ("steps_low", "steps_high"))
    for batch in batches:
        assert low[batch] < TRUTH.steps(batch) < high[batch]
    width = np.log(high / low)
    assert width[512] > 2 * width[128]
    assert width[32] > 1.3 * width[128]
    assert any("2 more would test the formula" in warning for warning in prediction.warnings)
    without = replace(study, noise_scales=study.noise_scales[:0])
    with pytest.raises(ValueError, match="Run one more batch size"):
        bsweep.predict(without, TARGET, batches=batches)


def test_a_cell_beyond_the_timed_local_batches_is_marked(tmp_path: Path) -> None:
    for batch, workers in ((256, 1), (512, 1), (512, 2)):
        write_target_run(tmp_path / "s", TRUTH, batch=batch, workers=workers)
    prediction = bsweep.predict(tmp_path / "s", TARGET, batches=[256, 512], workers=[1, 2])
    beyond = prediction.cells.set_index(["global_batch", "num_workers"])["beyond"]
    assert beyond[256, 2] == "local batch 128 (timed: 256 to 512)"
    assert beyond[512, 2] == ""
    assert not prediction.cells.set_index("global_batch")["is_extrapolated"][512].any()


def test_the_best_measured_cell_stands_beside_an_unmeasured_one() -> None:
    rng = np.random.default_rng(0)
    logs = np.stack([rng.normal(-0.05, 1.0, 2000), rng.normal(0.0, 0.05, 2000)], axis=1)
    cells = pd.DataFrame({"problem": "", "is_unreached": False, "num_workers": 1,
                          "num_reached": [0, 1], "measured_seconds": [np.nan, 1.0]})  # fmt: skip
    fastest = parse_objective("fastest")
    choice = choose_cell(with_probabilities(Forecast(cells, logs, logs), fastest), fastest)
    assert (choice.place, choice.measured) == (0, 1)


def test_formulas_that_miss_what_was_measured_are_doubted(tmp_path: Path) -> None:
    for batch, slower in ((32, 1.0), (64, 2.0), (128, 1.0), (256, 2.0)):
        seconds, each = slower * TRUTH.pass_seconds, slower * TRUTH.example_seconds
        truth = replace(TRUTH, pass_seconds=seconds, example_seconds=each)
        write_target_run(tmp_path / "s", truth, batch=batch, needed=slower)
    prediction = bsweep.predict(tmp_path / "s", TARGET)
    assert sum("a formula that does not hold" in line for line in prediction.warnings) == 2


@pytest.mark.full
def test_runs_that_reach_the_target_at_once_are_too_little(tmp_path: Path) -> None:
    write_target_study(tmp_path / "s", TRUTH, (32, 128), every_examples=400_000)
    with pytest.raises(ValueError, match=r"2 runs reached .*evaluate_every_examples=40000"):
        bsweep.predict(tmp_path / "s", TARGET)
    write_target_study(tmp_path / "s", TRUTH, (256, 512))
    prediction = bsweep.predict(tmp_path / "s", TARGET)
    assert any("only an upper bound" in line for line in prediction.warnings)
    write_target_run(tmp_path / "s", TRUTH, batch=1024)
    prediction = bsweep.predict(tmp_path / "s", TARGET, batches=[256, 512, 1024])
    assert not any("only an upper bound" in line for line in prediction.warnings)
    prediction = bsweep.predict(tmp_path / "s", TARGET, batches=[32, 128, 256, 512, 1024])
    assert prediction.recommended["global_batch"] == 32
    assert "reached the target at their first evaluation" in prediction.sentence()
    assert "The best measured cell is global batch 256" in prediction.sentence()
    assert "evaluate_every_examples=40000" in prediction.next_run()


@pytest.mark.full
def test_a_probe_tells_what_an_exchange_costs(tmp_path: Path) -> None:
    write_target_study(tmp_path / "s", TRUTH, (32, 128))
    workers = []
    for slowness in (1, 1.01):
        batches = (ProbedBatch(b, slowness * TRUTH.step_seconds(b, 1)) for b in (8, 32, 128))
        workers.append(ProbedWorker("h", "cpu", "fp32", None, 1e9, tuple(batches), 128, "examples"))
    probed = Probe(1, {"accumulation_steps": 1}, tuple(workers), TRUTH.sync_seconds)
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(asdict(probed)))
    widths = []
    for probe in (None, path):
        found = bsweep.predict(tmp_path / "s", TARGET, workers=[1, 2], probe=probe)
        assert any("exchange on 2 workers" in line for line in found.warnings) == (probe is None)
        (on_two,) = found.cells.query("num_workers == 2 and global_batch == 64").to_dict("records")
        low, high = on_two["step_seconds_low"], on_two["step_seconds_high"]
        assert low < TRUTH.step_seconds(32, 2) < high
        widths.append(np.log(high / low))
    assert widths[1] < 0.5 * widths[0]
    path.write_text("{}")
    with pytest.raises(ValueError, match="bsweep probe"):
        bsweep.predict(tmp_path / "s", TARGET, probe=path)


def test_objectives_and_times_as_people_write_them() -> None:
    assert parse_seconds("2h") == 7200
    assert parse_seconds("1.5m") == 90
    with pytest.raises(ValueError, match="'45' is not a time with a unit"):
        parse_seconds("45")
    both = parse_objective("deadline=30m, workers<=4")
    assert both.deadline_seconds == 1800
    assert both.max_workers == 4
    assert both.minimize == "worker_seconds"
    assert parse_objective("fastest,deadline=30m").minimize == "seconds"
    for text in ("", "deadline=soon", "workers<=0", "fastest,cheapest", "deadline=0s"):
        with pytest.raises(ValueError, match=r"fastest|not a time"):
            parse_objective(text)


@pytest.mark.full
def test_exchange_within_and_across_nodes_is_told_apart_where_both_ran(tmp_path: Path) -> None:
    settings = {"launch.hosts": "node1:2,node2:2"}
    for batch, workers in ((64, 1), (64, 2), (256, 2), (256, 4), (512, 4)):
        write_target_run(tmp_path / "s", TRUTH, batch=batch, workers=workers, settings=settings)
    told = bsweep.predict(tmp_path / "s", TARGET)
    assert "a_s from 4 workers, across nodes (s)" in told.fits.index
    within = told.seen.without("num_workers", 2)
    assert within.across_from() is None, "no exchange within a node is left"
