"""Figures of models split over workers name each way of splitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.cell_tables import split_models as tables
from bsweep.plots.curves import readable
from tests.plots.test_plots import assert_readable, legend_texts
from tests.support.split_study import (
    GLOBAL_BATCH,
    SPLIT,
    seconds_of,
    write_split_run,
    write_split_study,
)

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
