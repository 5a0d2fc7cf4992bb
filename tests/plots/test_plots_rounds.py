"""Figures over rounds show who waits for whom, and the loss over time; that of changing batches
shows what a policy did; those of models split over workers name each way of splitting.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.cell_tables import split_models as tables
from bsweep.plots.curves import COLORS, looks, readable
from bsweep.runlog.records import NoiseScale, Record
from tests.plots.test_plots import assert_readable, legend_texts
from tests.runlog.test_readers import CHANGE, STEP
from tests.support.split_study import (
    GLOBAL_BATCH,
    SPLIT,
    seconds_of,
    write_split_run,
    write_split_study,
)
from tests.support.synthetic_study import ALLOCATIONS, META, diloco, write_run

NAMES = [
    "uniform (4 each)", "batch by FLOP/s (4/4/6/5)", "batch by memory (8/8/32/16)", ("steps by "
    "FLOP/s (4 each)"),
    "steps by speed (4 each)", "hybrid (4/4/16/8)", "network-aware (4 each)",
]  # fmt: skip


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    """All allocations on four uneven workers, three seeds of four rounds, launched in the order of
    the allocations.
    """
    folder = tmp_path_factory.mktemp("studies") / "uneven"
    for place, name in enumerate(ALLOCATIONS):
        for seed in range(3):
            launched = META | {"launched_at": float(seed * len(ALLOCATIONS) + place)}
            settings: dict[str, Any] = {"settings": diloco(name), "meta": launched, "num_rounds": 4}
            write_run(folder, local_batch=4, num_workers=4, seed=seed, epochs=1, **settings)
    return bsweep.load(folder)


@pytest.mark.full
def test_idle_seconds_are_a_bar_a_node_with_total_and_change(uneven: analysis.Study) -> None:
    figure = plots.idle_by_node(uneven)
    (axes,) = figure.axes
    order = list(np.argsort(analysis.idle_table(uneven)["idle_seconds"], kind="stable"))
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [NAMES[place] for place in order]
    bars: list[Any] = [container for container in axes.containers if hasattr(container, "patches")]
    of_baseline = bars[order.index(0)]
    baseline = [bar.get_width() for bar in of_baseline]
    intervals = of_baseline.errorbar.lines[2][0].get_segments()
    half = analysis.idle_table(uneven)["node 3: idle_seconds_ci95"].iloc[0]
    assert half > 0
    assert np.ptp(intervals[2][:, 0]) == pytest.approx(2 * half)
    assert baseline == pytest.approx([0.4 * 1.01 * seconds for seconds in (1.1, 0, 14.6, 4.9)])
    beside = [text.get_text() for text in axes.texts]
    assert beside[order.index(0)] == "8.3 ± 0.2 s"
    assert beside[order.index(3)] == "5.2 ± 0.1 s, \N{MINUS SIGN}38 %"
    assert beside[-1] == "total, change"
    assert legend_texts(figure) == ["4 workers", "node 1", "node 2", "node 3", "node 4"]


@pytest.mark.full
def test_loss_is_drawn_by_time_with_bands_and_the_end_of_the_shortest(
    uneven: analysis.Study,
) -> None:
    figure = plots.loss_by_time(uneven)
    axes, zoomed = figure.axes
    first, last = zoomed.get_xlim()
    middle = 3.5 * 3.55  # of the last of four rounds
    assert 0 < first < middle < last
    assert zoomed.get_ylim()[1] < axes.get_ylim()[1]
    assert axes.get_yscale() == "log"
    *curves, end = axes.lines
    assert len(curves) == len(axes.collections) == len(ALLOCATIONS)
    seconds, losses = (np.asarray(values) for values in curves[0].get_data())
    assert seconds[-1] == pytest.approx(middle)
    assert losses[0] > losses[-1]
    assert list(end.get_xdata()) == pytest.approx([middle] * 2)  # type: ignore[arg-type]
    assert legend_texts(figure) == ["4 workers", *NAMES, "the same time for all"]
    assert "n = 3 seeds" in plots.caption(figure)


def write_batches(study: Path, noise_scale: float, policy: str, seed: int = 0) -> str:
    """Write a run of two epochs of eight steps, whose policy, if not `fixed`, doubles a batch of 8
    after the first one; return its id.
    """
    records: list[Record] = [] if policy == "fixed" else [CHANGE]
    for number in range(1, 17):
        at: dict[str, Any] = {"epoch": (number + 7) // 8, "epochs_done": number / 8}
        batch = 16 if policy != "fixed" and number > 8 else 8
        noise: dict[str, Any] = {"gradient_square": 1.0, "variance": noise_scale}
        records.append(NoiseScale(num_steps=number, num_gradients=2, **noise, **at))
        records.append(replace(STEP, step=number, global_batch=batch, **at))
    settings = {"strategy": {"name": "single"}, "batching": {"name": policy}}
    return write_run(
        study, local_batch=8, seed=seed, epochs=2, settings=settings, more=tuple(records)
    ).name


@pytest.mark.full
def test_the_figure_has_runs_whose_batch_changed(tmp_path: Path) -> None:
    write_batches(tmp_path, 32.0, "fixed")
    changing = [write_batches(tmp_path, 32.0 * (1 + seed), "schedule", seed) for seed in (0, 1)]
    study = bsweep.load(tmp_path)
    assert set(study.batches["run_id"]) == set(changing)
    assert len(study.batches) == 2 * 16
    figure = plots.FIGURES["batch_by_epoch"](study)
    batch, noise, _ = figure.axes
    assert list(batch.lines[0].get_ydata()) == [8] * 8 + [16] * 8  # type: ignore[arg-type]
    assert batch.lines[0].get_color() == looks(study)["variant", "batch by schedule"]["color"]
    assert batch.lines[0].get_color() != COLORS[0], "of the fixed batch, as in other figures"
    assert len(batch.lines) == 2, "a line for each run"
    (median,) = noise.lines
    assert list(median.get_ydata()) == pytest.approx([48] * 16)  # type: ignore[arg-type]


FIGURES = ("time_by_split", "memory_by_worker")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    return bsweep.load(write_split_study(tmp_path_factory.mktemp("studies") / "split", seeds=2))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("style", [None, *plots.STYLES])
@pytest.mark.parametrize("name", FIGURES)
def test_they_are_readable(name: str, style: str | None, split: analysis.Study) -> None:
    figure = plots.FIGURES[name](split, style)
    figure.draw_without_rendering()
    if style is None:
        assert_readable(figure)
    boxes = [legend.get_window_extent() for legend in figure.legends]
    boxes += [box for axes in figure.axes if (box := axes.get_tightbbox())]
    for at, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[at + 1 :])


@pytest.mark.full
def test_time_by_split_names_replicas_and_has_the_fastest_settings(split: analysis.Study) -> None:
    figure = plots.time_by_split(split)
    names = legend_texts(figure)
    assert {"DDP", "tensor 1x2, 1x4", "tensor 2x2", "pipeline 1x2, 1x4"} <= set(names)
    assert f"global batch {GLOBAL_BATCH}" in names
    drawn = {
        round(float(y), 6) for line in figure.axes[0].lines for y in np.atleast_1d(line.get_ydata())
    }
    for strategy, how in (("tensor", {"replicas": 2}), ("pipeline", {"microbatches": 8})):
        for seed in range(2):  # both seeds are drawn
            assert round(seconds_of(strategy, 4, how) * (1 + 0.01 * seed), 6) in drawn
    assert round(seconds_of("pipeline", 4, {"microbatches": 4}), 6) not in drawn
    ways = tables.ways_in_words(tables.ways(split))
    assert set(map(str, ways.values())) <= set(names)


def test_no_two_ways_of_splitting_share_a_cell(tmp_path: Path) -> None:
    """Each key of the cards that changes what a run costs tells its cells apart."""
    base: dict[str, Any] = {**SPLIT, "schedule": "1f1b", "microbatches": 4, "cuts": None}
    write_split_run(tmp_path / "s", "pipeline", 4, base, local_batch=32)
    changes = {
        "replicas": 2, "reduce": "bf16", "schedule": "gpipe", "microbatches": 8, "cuts": [2, 3, 5],
    }  # fmt: skip
    for key, value in changes.items():
        write_split_run(tmp_path / "s", "pipeline", 4, {**base, key: value}, local_batch=32)
    sharded = {**SPLIT, "reshard": "forward", "wrap": "blocks"}
    for change in ({}, {"reshard": "step"}, {"wrap": "model"}, {"replicas": 2}):
        write_split_run(tmp_path / "s", "sharded", 4, {**sharded, **change}, local_batch=32)
    study = bsweep.load(tmp_path / "s")
    cells = analysis.cells(study.runs)
    assert (cells["n"] == 1).all()
    assert len(cells) == 10
    shown = readable(study, cells).index.get_level_values("variant")
    assert shown.nunique() == 10
    assert "sharded, replicas 1, ZeRO-2, gathered by blocks" in set(map(str, shown))
