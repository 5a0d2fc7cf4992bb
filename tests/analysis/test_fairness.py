"""Whether a batch effect survives the best learning rate: told from what was put in, or what is
missing is said.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bsweep
from bsweep import analysis, plots, report
from bsweep.analysis.common_target import common_target
from bsweep.analysis.fairness import fairness, seeds_left_out
from bsweep.analysis.numbers import plain
from bsweep.analysis.tuning import rates
from bsweep.config.target import target_of
from bsweep.plots.curves import INK
from tests.plots.test_plots import assert_readable
from tests.support.synthetic_study import write_run
from tests.support.synthetic_targets import Truth, write_target_run

RATES = (0.025, 0.1, 0.4)
SEEDS = (-0.004, 0.0, 0.005)  # what seeds add to an accuracy


def write_sweep(
    folder: Path, accuracy: dict[tuple[int, float], float], seeds: int = 3
) -> analysis.Study:
    """Runs of a batch size and a base rate, the same for all batch sizes, whose final accuracy is
    known.
    """
    for (batch, rate), middle in accuracy.items():
        for seed in range(seeds):
            off = SEEDS[(seed + batch) % 3]
            settings = {"optimizer.lr": rate, "optimizer.lr_rule": "fixed"}
            write_run(
                folder, local_batch=batch, seed=seed, accuracy=middle + off, settings=settings
            )
    return bsweep.load(folder)


# As in the first paper, batch 8 collapses at the rate that suits the others, and does not at a
# sixteenth of it.
COLLAPSE = {
    (8, 0.025): 0.93, (8, 0.1): 0.80, (8, 0.4): 0.33,
    (64, 0.025): 0.85, (64, 0.1): 0.90, (64, 0.4): 0.931,
    (256, 0.025): 0.70, (256, 0.1): 0.88, (256, 0.4): 0.929,
}  # fmt: skip


@pytest.fixture(scope="module")
def collapse(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    return write_sweep(tmp_path_factory.mktemp("studies") / "collapse", COLLAPSE)


def test_a_collapse_that_another_rate_mends_is_one_of_the_rate(collapse: analysis.Study) -> None:
    (one,) = fairness(collapse)
    assert one.rate == "one learning rate for all (0.1)", (
        "the best on average: 0.86 of 0.83 and 0.73"
    )
    assert one.one_rate is not None
    assert one.best_rates is not None
    assert (one.one_rate.worse, one.one_rate.better) == (8, 64)
    assert one.one_rate.low > 0.05
    assert one.best_rates.low < 0 < one.best_rates.high
    assert abs(one.best_rates.value) < 0.01
    (line,) = analysis.fairness_words(collapse)
    assert "With one learning rate for all (0.1), the test accuracy of local batch 8 is 0.1" in line
    assert (
        "With the best rate of each batch size (each seed at the rate that the other seeds find "
        "best), no difference between batch sizes is significant" in line
    )
    assert "may come from the learning rate" in line
    assert "best rate of local batch 8 is the lowest tried" in line
    assert "best rate of local batch 64 and 256 is the highest tried" in line
    told = json.dumps(plain(analysis.fairness_words(collapse)))
    assert '"64 and 256"' not in told, "a page cannot translate it"


def test_the_target_is_what_cells_reach_at_their_best_rates(collapse: analysis.Study) -> None:
    found = common_target(collapse)
    assert found
    assert found[0] == target_of(accuracy=0.92)


def test_an_effect_that_no_rate_mends_survives(tmp_path: Path) -> None:
    worse = {key: value - 0.1 if key[0] == 256 else value for key, value in COLLAPSE.items()}
    study = write_sweep(tmp_path / "s", worse)
    (one,) = fairness(study)
    assert one.best_rates is not None
    assert one.best_rates.worse == 256
    assert one.best_rates.low < 0.1 < one.best_rates.high
    said = "So the batch size has an effect that its best learning rate does not undo."
    assert said in analysis.fairness_words(study)[0]


def test_the_best_rate_of_each_batch_is_a_row(collapse: analysis.Study) -> None:
    table = rates(collapse)
    best = table[table["is_best"]].reset_index()
    assert dict(zip(best["local_batch"], best["learning_rate"], strict=True)) == {
        8: 0.025,
        64: 0.4,
        256: 0.4,
    }
    assert dict(zip(best["local_batch"], best["at_edge"], strict=True)) == {
        8: "lowest",
        64: "highest",
        256: "highest",
    }
    assert table["n"].eq(3).all()
    assert table["num_rates"].eq(3).all()


def test_a_seed_is_scored_at_the_rate_that_the_others_find_best() -> None:
    # The second rate has the best mean, by one seed.
    lucky = np.array([[0.5, 0.5, 0.5], [0.9, 0.45, 0.45]])
    assert list(seeds_left_out(lucky, 1)) == [0.5, 0.45, 0.45]
    # The third seed at the first rate; one was not run.
    diverged = np.array([[0.5, 0.5, np.nan], [0.4, np.inf, 0.4]])
    np.testing.assert_equal(list(seeds_left_out(diverged, 1)), [0.4, 0.5, np.nan])


def test_too_few_seeds_and_rates_are_counted(tmp_path: Path) -> None:
    study = write_sweep(
        tmp_path / "s", {key: COLLAPSE[key] for key in ((8, 0.025), (8, 0.4), (64, 0.4))}, seeds=1
    )
    (line,) = analysis.fairness_words(study)
    assert "cannot tell whether batch sizes differ at the best learning rate of each" in line
    assert "2 more seeds of local batch 8 and 64" in line
    assert "2 more rates of local batch 64; 1 more rate of local batch 8" in line
    assert "does not undo" not in line


def test_one_rate_for_all_says_nothing_of_rates(tmp_path: Path) -> None:
    study = write_sweep(tmp_path / "s", {(8, 0.4): 0.33, (64, 0.4): 0.93})
    assert analysis.fairness_words(study) == []
    assert analysis.fairness_words(analysis.published()) == []
    assert "rate_by_batch" not in plots.figures(study)


def test_what_diverges_at_every_rate_is_named_and_not_compared(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", {key: value for key, value in COLLAPSE.items() if key[0] != 8})
    for rate in RATES:
        for seed in range(3):
            settings = {"optimizer.lr": rate, "optimizer.lr_rule": "fixed"}
            status = "diverged" if seed == 1 else "completed"
            write_run(
                tmp_path / "s",
                local_batch=8,
                seed=seed,
                status=status,
                accuracy=0.9,
                settings=settings,
            )
    (line,) = analysis.fairness_words(bsweep.load(tmp_path / "s"))
    assert (
        "Not compared: local batch 8, because not all seeds stayed finite even at the best rate"
        in line
    )


def test_of_runs_with_a_target_times_are_compared_as_ratios(tmp_path: Path) -> None:
    slow = Truth(scatter=0.01, jitter=0.01)
    for batch in (32, 64):
        for rate, needed in ((0.1, 1.0), (0.2, 1.5)):
            for seed in range(4):
                settings = {"optimizer.lr": rate, "target_accuracy": 0.9}
                write_target_run(
                    tmp_path / "s", slow, batch=batch, seed=seed, needed=needed, settings=settings
                )
    study = bsweep.load(tmp_path / "s")
    (one,) = fairness(study)
    assert one.metric == "seconds_to_target"
    assert one.best_rates is not None
    truth = slow.seconds(32, 1) / slow.seconds(64, 1)
    assert one.best_rates.worse == 32
    assert one.best_rates.is_told
    assert 2.718281828**one.best_rates.value == pytest.approx(truth, rel=0.05)
    assert "local batch 32 takes 1." in analysis.fairness_words(study)[0]


def test_the_figure_says_how_many_of_many_groups_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for momentum in (0.5, 0.9):
        for batch, rate in ((8, 0.1), (8, 0.4), (64, 0.1), (64, 0.4)):
            settings = {"optimizer.lr": rate, "optimizer.momentum": momentum}
            write_run(tmp_path / "s", local_batch=batch, settings=settings)
    for rate in (0.1, 0.4):  # one batch size, which has no panel
        settings = {"optimizer.lr": rate, "optimizer.momentum": 0.99}
        write_run(tmp_path / "s", local_batch=8, settings=settings)
    monkeypatch.setattr("bsweep.plots.rates._MOST_PANELS", 1)
    said = plots.caption(plots.rate_by_batch(bsweep.load(tmp_path / "s")))
    assert said.endswith("Shown for 1 of 2 combinations of the other settings.")


def test_the_page_and_the_figure_show_the_best_rates(
    collapse: analysis.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = plots.rate_by_batch(collapse)
    assert_readable(figure)
    score, rate = figure.axes
    best = next(
        line
        for line in score.lines
        if line.get_color() == INK and len(line.get_xdata()) == 3  # type: ignore[arg-type]
    )
    assert list(best.get_ydata()) == pytest.approx([0.93, 0.931, 0.929], abs=0.002)  # type: ignore[arg-type]
    assert rate.get_yscale() == "log"
    assert "n = 3" in plots.caption(figure)
    monkeypatch.setattr(plots, "FIGURES", {"rate_by_batch": plots.rate_by_batch})
    page = report.write(collapse.folder, tmp_path / "out")
    assert "With the best rate of each batch size (each seed at the rate" in page.read_text()
    assert "| 8 | 3 | 0.025 | " in page.with_name("table.md").read_text()
