"""The statistics of a prediction: posteriors right where they can be computed, intervals that
cover, the paper.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bsweep import analysis
from bsweep.analysis.conclusions.prediction_warnings import contradictions
from bsweep.analysis.prediction import critical_batch
from bsweep.analysis.prediction.likelihood import (
    CellRuns,
    cell_runs,
    draw_effects,
    log_likelihood,
    measurements,
)
from bsweep.analysis.prediction.sampler import Array, posterior
from bsweep.analysis.prediction.step_time import Cell, Timing, fit_step_time
from bsweep.analysis.prediction.steps import CriticalBatchPrior, fit_steps
from tests.support.synthetic_targets import Truth

DRAWS = 400


def quantiles(draws: Array) -> tuple[float, float, float]:
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95])
    return float(low), float(middle), float(high)


def test_draws_are_those_of_a_posterior_that_is_known() -> None:
    """Two parameters that the data know to a tenth and correlate by 0.99, and one of which they say
    nothing.
    """
    precision = np.linalg.inv(0.01 * np.array([[1, 0.99], [0.99, 1]]))
    center = np.array([1.0, -2.0])

    def log_likelihood(points: Array, _: Array) -> Array:
        away = points[:, :2] - center
        return np.asarray(-0.5 * np.einsum("ni,ij,nj->n", away, precision, away))

    points = posterior(log_likelihood, 3)
    covariance = np.linalg.inv(precision + np.eye(2))
    assert points[:, :2].mean(axis=0) == pytest.approx(covariance @ precision @ center, abs=0.01)
    assert np.cov(points[:, :2].T) == pytest.approx(covariance, rel=0.1)
    assert points[:, 2].mean() == pytest.approx(0, abs=0.05)
    assert points[:, 2].std() == pytest.approx(1, rel=0.05)
    assert (posterior(log_likelihood, 3) == points).all(), "the same for the same data"


def test_two_modes_are_both_found_in_their_shares() -> None:
    def log_likelihood(points: Array, _: Array) -> Array:
        one, other = (stats.norm.logpdf(points[:, 0], place, 0.05) for place in (-1, 1))
        return np.asarray(np.logaddexp(one, np.log(3) + other))

    assert (posterior(log_likelihood, 1)[:, 0] > 0).mean() == pytest.approx(0.75, abs=0.06)


def test_the_likelihood_integrates_a_normal_over_censored_cells() -> None:
    model, sigma, tau = np.array([[0.3, -0.2]]), np.array([0.2]), np.array([0.5])
    exact = np.array([0.5, 0.1, 0.4])
    covariance = sigma**2 * np.eye(3) + tau**2
    whole = measurements([cell_runs(np.exp(exact)), cell_runs()])
    expected = stats.multivariate_normal(np.full(3, 0.3), covariance).logpdf(exact)
    assert log_likelihood(whole, model, sigma, tau)[0] == pytest.approx(expected)
    bounded = measurements(
        [cell_runs(np.exp(exact), above=[np.exp(0.6)]), cell_runs(below=[np.exp(-0.1)])]
    )
    joint = stats.multivariate_normal(np.full(4, 0.3), sigma**2 * np.eye(4) + tau**2)
    grid = np.linspace(0.6, 4, 4000)
    above = np.trapezoid(joint.pdf(np.column_stack([np.tile(exact, (len(grid), 1)), grid])), grid)
    below = stats.norm.cdf((-0.1 + 0.2) / math.hypot(0.2, 0.5))
    assert log_likelihood(bounded, model, sigma, tau)[0] == pytest.approx(
        np.log(above) + np.log(below), abs=0.01
    )
    twice = [np.repeat(value, 2, axis=0) for value in (model, sigma, tau)]
    of_two = log_likelihood(bounded, twice[0], twice[1], twice[2], np.array([-np.inf, 0.0]))
    assert of_two.tolist() == [log_likelihood(bounded, model, sigma, tau)[0], -np.inf]


@pytest.mark.parametrize(
    ("above", "below"), [([0.43], []), ([0.43, 0.5], []), ([], [-0.4] * 3), ([0.1], [0.3])]
)
def test_effects_of_censored_runs_are_exact_far_from_the_model(
    above: list[float], below: list[float]
) -> None:
    tau, sigma, effects = 0.1, 0.02, np.linspace(-1.5, 1.5, 60_001)
    logs = stats.norm.logpdf(effects, 0, tau)
    logs += sum(stats.norm.logcdf((effects - bound) / sigma) for bound in above)
    logs += sum(stats.norm.logcdf((bound - effects) / sigma) for bound in below)
    density = np.exp(logs - logs.max())
    mean = np.average(effects, weights=density)
    deviation = math.sqrt(np.average((effects - mean) ** 2, weights=density))
    of = measurements([cell_runs(above=np.exp(above), below=np.exp(below))])
    zeros = np.zeros((4000, 1))
    spreads = np.full(4000, sigma), np.full(4000, tau)
    drawn = draw_effects(of, zeros, *spreads, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(4000))
    assert drawn.std() == pytest.approx(deviation, rel=0.06)
    whole = math.log(np.trapezoid(density, effects)) + logs.max()
    assert log_likelihood(of, zeros, *spreads)[0] == pytest.approx(whole, abs=0.01)


def cells_of_grid(
    counts: Iterable[int] = (1, 2), batches: Iterable[int] = (8, 32, 128), passes: int = 1
) -> list[Cell]:
    return [Cell(batch, count, passes) for batch in batches for count in counts]


def timed(truth: Truth, cells: Iterable[Cell], runs: int = 1) -> list[Timing]:
    return [Timing(cell, truth.step_seconds(*cell[:3])) for cell in cells for _ in range(runs)]


def test_a_run_that_was_slowed_moves_a_prediction_little() -> None:
    cells = cells_of_grid()
    timings, seconds = timed(Truth(), cells, 2), Truth().step_seconds(*cells[2][:3])
    slow = Timing(cells[2], 1.6 * seconds)
    whole = fit_step_time([*timings, slow], num_draws=DRAWS)
    assert np.median(whole.log_seconds(cells[2])) == pytest.approx(math.log(seconds), abs=0.05)


def truths(number: int) -> Iterator[tuple[int, Truth, float, float, np.random.Generator]]:
    """Laws drawn as the priors have them: with what the law misses, in steps and in seconds."""
    for seed in range(number):
        rng = np.random.default_rng([seed, 11])
        factor = 10.0 ** rng.standard_normal(5)
        critical, fixed = 128 * factor[0], 0.02 * factor[1] ** 0.5
        sync = fixed / 5 * factor[3]
        truth = Truth(
            minimum_steps=800, minimum_examples=800 * critical, pass_seconds=fixed,
            example_seconds=fixed / 32 * factor[2] ** 0.5, sync_seconds=sync,
            sync_worker_seconds=sync / 10 * factor[4],
            overlap=10.0 ** rng.random(), scatter=0.08 * 2 ** rng.standard_normal(),
            jitter=0.05 * 2 ** rng.standard_normal(),
        )  # fmt: skip
        yield seed, truth, 0.05 * 2 ** rng.standard_normal(), 0.05 * 2 ** rng.standard_normal(), rng


@pytest.mark.full
def test_nine_of_ten_intervals_cover_the_truth_censored_runs_among_them() -> None:
    """Many studies of four batch sizes by three seeds, in half of which the budget of examples ends
    before some do.
    """
    inside, count = Counter[str](), Counter[str]()

    def tell(name: str, draws: Array, value: float) -> None:
        low, _, high = quantiles(draws)
        inside[name] += low <= value <= high
        count[name] += 1

    for seed, truth, missed, missed_seconds, rng in truths(48):
        batches, predicted = (16, 64, 256, 1024), (16, 32, 64, 128, 256, 512, 1024)
        effect = {batch: missed * rng.standard_normal() for batch in predicted}
        most = 0.9 * truth.steps(1024) * 1024 if seed % 2 else math.inf
        runs = {}
        for batch in batches:
            steps = truth.steps(batch) * np.exp(
                effect[batch] + truth.scatter * rng.standard_normal(3)
            )
            budget = most / batch
            runs[float(batch)] = cell_runs(
                steps[steps <= budget], above=np.full((steps > budget).sum(), budget)
            )
        count["censored"] += sum(len(of.above) for of in runs.values())
        if not any(len(of.exact) for of in runs.values()):
            continue
        fit = fit_steps(runs, num_draws=DRAWS, seed=seed)
        tell("S_min", fit.minimum_steps, truth.minimum_steps)
        tell("E_min", fit.minimum_examples, truth.minimum_examples)
        tell("critical batch", fit.critical_batch, truth.minimum_examples / truth.minimum_steps)
        grid = [(batch, workers) for batch in (8, 32, 128) for workers in (1, 2, 4)]
        missing = {(32, 1), (128, 4), (8, 2)}
        slower = {cell: math.exp(missed_seconds * rng.standard_normal()) for cell in grid}
        timings = [
            Timing(Cell(*cell),
            truth.step_seconds(*cell[:3]) * slower[cell] * math.exp(truth.jitter * normal))
            for cell in grid if cell not in missing for normal in rng.standard_normal(2)
        ]  # fmt: skip
        step_time = fit_step_time(timings, num_draws=DRAWS, seed=seed)
        for local_batch, workers in grid:
            cell, batch = Cell(local_batch, workers), local_batch * workers
            further = step_time.log_seconds(cell) + step_time.sigma * rng.standard_normal(DRAWS)
            step = truth.step_seconds(*cell[:2]) * slower[local_batch, workers]
            step *= math.exp(truth.jitter * rng.standard_normal())
            where = "unmeasured" if (local_batch, workers) in missing else "measured"
            tell(f"step, {where} cell", further, math.log(step))
            if batch in predicted:
                needed = (
                    math.log(truth.steps(batch))
                    + effect[batch]
                    + truth.scatter * rng.standard_normal()
                )
                log_steps = fit.log_steps(float(batch)) + fit.sigma * rng.standard_normal(DRAWS)
                tell("time to target", further + log_steps, math.log(step) + needed)
    share = {name: inside[name] / count[name] for name in inside}
    assert count["censored"] > 50
    assert 0.85 <= share["time to target"] <= 0.95, share
    assert all(0.82 <= part <= 0.99 for part in share.values()), share


@pytest.mark.parametrize(("critical", "minimum", "unit"), [(25, 50, 1e4), (1800, 40_000, 1e-3)])
def test_plenty_of_runs_find_the_law_in_any_units(
    critical: float, minimum: float, unit: float
) -> None:
    rng = np.random.default_rng(0)
    law = {float(batch): minimum * (1 + critical / batch) for batch in (8, 32, 128, 512, 2048)}
    runs = {
        batch: cell_runs(steps * np.exp(0.02 * rng.standard_normal(5)))
        for batch, steps in law.items()
    }
    fit = fit_steps(runs, num_draws=DRAWS)
    assert np.exp(np.median(fit.curve(128.0))) == pytest.approx(law[128.0], rel=0.08)
    assert 0.6 < np.median(fit.critical_batch) / critical < 1.6
    longer = {batch: cell_runs(np.exp(of.exact) * unit) for batch, of in runs.items()}
    in_units = fit_steps(longer, num_draws=DRAWS).minimum_steps
    assert in_units == pytest.approx(unit * fit.minimum_steps, rel=1e-6)


def test_few_points_give_wide_intervals_and_more_narrow_them() -> None:
    truth, rng = Truth(), np.random.default_rng(0)

    def width(runs: dict[float, CellRuns], known: CriticalBatchPrior | None = None) -> float:
        low, _, high = quantiles(fit_steps(runs, known, DRAWS).log_steps(512.0))
        assert low < math.log(truth.steps(512)) < high
        return high - low

    widths = [
        width({
            float(batch): cell_runs(truth.steps(batch) * np.exp(0.05 * rng.standard_normal(seeds)))
            for batch in batches
        })
        for batches, seeds in (((128,), 1), ((64, 256), 1), ((16, 64, 256, 1024), 3))
    ]  # fmt: skip
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]
    assert width({128.0: cell_runs([truth.steps(128)])}, CriticalBatchPrior(200.0, 3.0)) < widths[0]


def test_far_from_what_was_measured_intervals_are_wider() -> None:
    runs = {float(batch): cell_runs([Truth().steps(batch)] * 3) for batch in (32, 64, 128, 256)}
    fit = fit_steps(runs, num_draws=DRAWS)
    near, far, farther = (
        float(np.std(fit.log_steps(batch) - fit.curve(batch))) for batch in (96.0, 512.0, 4096.0)
    )
    assert near < far < farther


def test_what_one_worker_count_cannot_tell_stays_wide() -> None:
    truth = Truth(sync_seconds=0.02)

    def width(counts: tuple[int, ...]) -> float:
        timings = timed(truth, cells_of_grid(counts))
        low, _, high = quantiles(fit_step_time(timings, DRAWS).log_seconds(Cell(32, 4)))
        assert low < math.log(truth.step_seconds(32, 4)) < high
        return high - low

    assert width((2,)) > width((2, 3))
    assert width((1,)) > 2 * width((1, 2, 3))


def test_passes_of_an_accumulated_step_exchange_once() -> None:
    truth, unseen = Truth(sync_seconds=0.03, overlap=1.0), Cell(16, 2, 8)
    cells = [cell for passes in (1, 4) for cell in cells_of_grid(batches=(8, 32), passes=passes)]
    timings = timed(truth, cells, 2)
    found = np.exp(np.median(fit_step_time(timings, DRAWS).log_seconds(unseen)))
    assert found == pytest.approx(truth.step_seconds(*unseen[:3]), rel=0.1)


def noise_records(mean_square: float, scatter: float, number: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    square = mean_square + scatter * rng.standard_normal(number)
    variance = 200 * (1 + 0.1 * rng.standard_normal(number))
    return pd.DataFrame({"run_id": "a", "variance": variance, "gradient_square": square})


def test_the_noise_scale_has_a_bootstrap_interval_or_none() -> None:
    records = noise_records(1.0, 0.5)
    found = critical_batch.from_noise_scale(records)
    assert found.ratio_of_sums == pytest.approx(
        records["variance"].sum() / records["gradient_square"].sum()
    )
    assert found.value == pytest.approx(found.ratio_of_sums, rel=0.1)
    assert found.is_known
    assert found.low < 200 < found.high
    lost = critical_batch.from_noise_scale(noise_records(0.05, 1.0))
    assert "not identifiable" in lost.verdict
    assert math.isnan(lost.value)
    assert (
        critical_batch.from_noise_scale(records[:3]).verdict
        == "not identifiable: 5 records are missing"
    )
    assert critical_batch.from_noise_scale(records[:0]).verdict == "not measured"
    alike = pd.concat([records, records.assign(run_id="b")])
    narrower = critical_batch.from_noise_scale(alike)
    assert narrower.high - narrower.low < found.high - found.low


def test_a_noise_scale_that_grows_is_the_mean_of_local_ones() -> None:
    records = noise_records(1.0, 0.1, 240)
    falling = np.geomspace(1, 1 / 30, 240)
    grown = records.assign(gradient_square=records["gradient_square"] * falling)
    found = critical_batch.from_noise_scale(grown)
    assert found.low < 200 * np.mean(1 / falling) < found.high
    assert found.ratio_of_sums == pytest.approx(200 / falling.mean(), rel=0.05)
    assert found.value > 2 * found.ratio_of_sums


def test_neighbouring_records_that_are_alike_widen_the_interval() -> None:
    fewer = noise_records(1.0, 0.5, 30)
    repeated = fewer.loc[fewer.index.repeat(6)].reset_index(drop=True)
    shuffled = repeated.sample(frac=1, random_state=0)
    blocks, apart = (critical_batch.from_noise_scale(table) for table in (repeated, shuffled))
    assert blocks.high - blocks.low > 1.5 * (apart.high - apart.low)


def test_branches_give_the_critical_batch_by_the_same_law() -> None:
    truth = Truth(minimum_steps=40, minimum_examples=8_000)
    batches = np.repeat([64, 128, 256, 512], 2)
    steps = np.array([*map(truth.steps, batches)])
    branches = pd.DataFrame({
        "global_batch": batches, "steps_to_target": steps * np.tile([1, 1.02], 4), "reached": True,
        "is_bound": False, "trained_steps": steps + 9, "steps_between": 1.0,
    })  # fmt: skip
    found = critical_batch.from_branches(branches)
    assert found.is_known
    assert found.low < 200 < found.high
    verdict = critical_batch.from_branches(branches[:2]).verdict
    assert verdict.startswith("not identifiable: 1 batch size reached the target")


def test_estimates_that_disagree_beyond_their_intervals_are_named() -> None:
    def estimate(source: str, low: float, high: float) -> critical_batch.CriticalBatch:
        return critical_batch.CriticalBatch(source, math.sqrt(low * high), low, high)

    noise, steps = estimate("noise scale", 100, 200), estimate("steps to target", 150, 900)
    assert not list(critical_batch.disagreements([noise, steps]))
    (line,) = critical_batch.disagreements(
        [noise, steps, estimate("branched runs", 1000, 2000)][::2]
    )
    assert "from noise scale (100.0 to 200.0) and from branched runs (1000 to 2000)" in line


def test_the_law_does_not_explain_the_papers_collapse_at_batch_8() -> None:
    """All saw as many examples. Whatever S_min and E_min, examples to a target never fall with the
    batch.
    """
    runs = analysis.published().runs
    cells = {
        float(batch): cell_runs(**{"below" if accuracy >= 0.9 else "above": [50 * 50_000 / batch]})
        for batch, accuracy in zip(runs["global_batch"], runs["train_accuracy"], strict=True)
    }
    (line,) = contradictions(cells, 0.08, "per_worker")
    assert line.startswith("batch 32 did not reach the target in 2500000 examples, batch 64 needed")
    assert "learning rate (rule: per_worker)" in line
    del cells[32.0]
    assert not list(contradictions(cells, 0.08, "per_worker")), (
        "that 256 fell short, the law allows"
    )


def test_scatter_between_seeds_contradicts_nothing() -> None:
    rng, truth = np.random.default_rng(0), Truth()
    cells = {
        float(batch): cell_runs(truth.steps(batch) * np.exp(0.08 * rng.standard_normal(3)))
        for batch in (16, 32, 64, 128)
    }
    assert not list(contradictions(cells, 0.08, "linear"))
    cells[256.0] = cell_runs([2 * truth.steps(128)] * 3)
    (line,) = contradictions(cells, 0.08, "fixed")
    assert "steps to the target, batch 128 at most" in line


def test_an_exchange_across_nodes_has_costs_of_its_own() -> None:
    """Two and four workers share a node; eight and sixteen span several, where it takes longer."""
    truth = Truth(sync_seconds=0.002, sync_worker_seconds=0.0005, overlap=1.0)
    across = replace(truth, sync_seconds=0.06, sync_worker_seconds=0.004)

    def seconds(cell: Cell) -> float:
        return (across if cell.num_workers >= 8 else truth).step_seconds(*cell[:3])

    cells = cells_of_grid((1, 2, 4, 8, 16))
    timings = [Timing(cell, seconds(cell)) for cell in cells]
    apart, alike = (fit_step_time(timings, DRAWS, across_from=of) for of in (8, None))
    for cell in (Cell(64, 3), Cell(64, 12)):
        missed, missed_alike = (
            abs(float(np.median(fit.log_seconds(cell))) - math.log(seconds(cell)))
            for fit in (apart, alike)
        )
        assert missed < 0.06
        assert missed < missed_alike
    assert apart.across is not None
    _, across_seconds, _ = apart.across
    assert np.median(across_seconds) > 5 * np.median(apart.strategies[""].sync_seconds)


def test_passes_that_were_timed_alone_tell_the_formula_and_not_their_cell() -> None:
    steps = [Timing(Cell(batch, 1), 0.1 + 0.01 * batch) for batch in (8.0, 32.0)]
    slow = Timing(Cell(128.0, 1), 2 * 1.38, "compute")
    fitted = fit_step_time([*steps, slow], DRAWS)
    assert fitted.cells == tuple(timing.cell for timing in steps)
    assert fitted.effects.shape == (DRAWS, 2)
    assert slow.cell in fitted.passed
    widths = [np.std(fitted.log_seconds(cell)) for cell in (*fitted.cells, slow.cell)]
    assert max(widths[:2]) < widths[2]
