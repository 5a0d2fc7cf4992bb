"""Figures over rounds show who waits for whom, and the published numbers beside their model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import bsweep
from bsweep import analysis, plots
from tests.synthetic_study import ALLOCATIONS, ROUND_EXCHANGE_SECONDS, diloco, round_seconds, write_run

FIGURES = ("idle_by_node", "round_timeline", "loss_by_time", "published_idle")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    """All allocations on four uneven workers, three seeds of four rounds."""
    folder = tmp_path_factory.mktemp("studies") / "uneven"
    for name in ALLOCATIONS:
        for seed in range(3):
            write_run(folder, local_batch=4, num_workers=4, seed=seed, epochs=1, settings=diloco(name), num_rounds=4)
    return bsweep.load(folder)


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in (legend.get_title(), *legend.get_texts())]


def test_figures_of_rounds_are_drawn_where_there_are_rounds(uneven: analysis.Study, tmp_path: Path) -> None:
    assert set(FIGURES) <= set(plots.figures(uneven))
    settings = diloco("uniform")
    write_run(tmp_path / "s", local_batch=4, num_workers=4, epochs=1, settings=settings, num_rounds=1)
    alone = bsweep.load(tmp_path / "s")
    assert set(FIGURES) - set(plots.figures(alone)) == {"published_idle"}  # nothing is compared
    for draw in plots.figures(alone).values():
        draw(alone).draw_without_rendering()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_saved_the_same_twice(name: str, uneven: analysis.Study, tmp_path: Path) -> None:
    for number in (1, 2):
        plots.save(plots.FIGURES[name](uneven), tmp_path / f"{number}.svg")
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()


def test_idle_seconds_are_a_bar_a_node_with_total_and_change(uneven: analysis.Study) -> None:
    figure = plots.idle_by_node(uneven)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ALLOCATIONS)
    baseline = [bar.get_width() for bar in axes.containers[0]]
    assert baseline == pytest.approx([0.4 * 1.01 * seconds for seconds in (1.1, 0, 14.6, 4.9)])
    beside = [text.get_text() for text in axes.texts]
    assert beside[0] == "8.3 ± 0.2 s"
    assert beside[3] == "5.2 ± 0.1 s, \N{MINUS SIGN}38 %"
    assert beside[-1] == "total, change"
    assert legend_texts(figure) == ["4 workers, local batch 4", "node 1", "node 2", "node 3", "node 4"]


def test_many_nodes_are_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.synthetic_study.NODE_STEP_SECONDS", (0.01, 0.02) * 8)
    settings = diloco("uniform")
    write_run(tmp_path / "s", local_batch=4, num_workers=16, epochs=1, settings=settings, num_rounds=2)
    figure = plots.idle_by_node(bsweep.load(tmp_path / "s"))
    assert list(figure.axes[0].lines[0].get_xdata()) == pytest.approx([2, 0] * 8)  # type: ignore[arg-type]
    assert "a dot for each node" in plots.caption(figure)


def test_a_timeline_has_a_panel_a_method_and_a_row_a_node(uneven: analysis.Study) -> None:
    figure = plots.round_timeline(uneven)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(ALLOCATIONS)
    by_flops = figure.axes[3]
    compute, idle, exchange = ([bar.get_width() for bar in bars][:4] for bars in by_flops.containers)
    assert compute == pytest.approx(round_seconds((4,) * 4, (100, 104, 145, 117)))
    assert idle == pytest.approx([max(compute) - seconds for seconds in compute])
    assert exchange == pytest.approx([ROUND_EXCHANGE_SECONDS] * 4)
    longest = 3 * (max(round_seconds((4,) * 4, (208, 200, 384, 238))) + ROUND_EXCHANGE_SECONDS)
    assert by_flops.get_xlim() == pytest.approx((0, 1.01 * longest))
    assert plots.caption(figure).startswith("What each node does in rounds 2 to 4 of the first seed.")
    assert legend_texts(figure) == ["4 workers, local batch 4", "compute", "idle", "exchange"]


def test_loss_is_drawn_by_time_and_to_the_end_of_the_comparison(uneven: analysis.Study) -> None:
    figure = plots.loss_by_time(uneven)
    axes, zoomed = figure.axes
    first, last = zoomed.get_xlim()
    assert 0 < first < 3.5 * 3.55 < last and zoomed.get_ylim()[1] < axes.get_ylim()[1]
    *curves, end = axes.lines
    assert len(curves) == len(axes.collections) == len(ALLOCATIONS)
    seconds, losses = (np.asarray(values) for values in curves[-1].get_data())  # uniform, the last by name
    assert seconds[-1] == pytest.approx(3.5 * 3.55)
    assert losses[0] > losses[-1]
    assert list(end.get_xdata()) == pytest.approx([3.5 * 3.55] * 2)  # type: ignore[arg-type]
    assert legend_texts(figure) == ["4 workers, local batch 4, n = 3", *sorted(ALLOCATIONS), "end of the comparison"]


def test_published_idle_times_stand_beside_the_model_and_the_caption_says_what_contradicts(
    uneven: analysis.Study,
) -> None:
    figure = plots.published_idle(uneven)
    published, modelled = ([bar.get_height() for bar in bars] for bars in figure.axes[3].containers)
    assert published == [2.1, 0, 8.6, 1.9]
    assert modelled == pytest.approx(published, abs=0.3)
    assert figure.axes[1].get_title(loc="left") == "A: batch by FLOP/s\n40.4 s, model 17.0 s"
    assert "must idle 1.1 s apart, as in the baseline: 11.9 and 0.0 s are published" in plots.caption(figure)
