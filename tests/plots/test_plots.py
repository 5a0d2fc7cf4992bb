"""Figures show the right data, with the right labels, and leave nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.study.caching import caching
from bsweep.plots.curves import COLORS, MARKERS, looks
from bsweep.plots.styles import settings_of
from tests.support.split_study import WAYS, write_split_run
from tests.support.synthetic_study import (
    META,
    diloco,
    server,
    server_step_seconds,
    train_seconds,
    write_run,
    write_study,
)

BATCHES = (8, 16, 32, 64, 128, 256)


def lines(axes: Axes) -> Mapping[str, tuple[list[float], list[float]]]:
    """The lines of a panel with two points or more, by colour and marker."""
    return {
        f"{line.get_color()} {line.get_marker()}": (list(line.get_xdata()), list(line.get_ydata()))  # type: ignore[arg-type]
        for line in axes.lines
        if len(line.get_xdata()) > 1  # type: ignore[arg-type]
    }


def look(study: analysis.Study, name: str, value: object) -> str:
    """The colour and marker of a setting, as in `lines`."""
    of = looks(study)[name, value]
    return f"{of['color']} {of['marker']}"


def legend_texts(figure: Figure) -> list[str]:
    return [
        text.get_text()
        for legend in figure.legends
        for text in (legend.get_title(), *legend.get_texts())
    ]


def assert_readable(figure: Figure, page_inches: float = 7) -> None:
    """Nothing leaves the page, which is as wide as a paper's text, and no text says an
    identifier.
    """
    figure.draw_without_rendering()
    width, height = figure.get_size_inches()
    drawn = figure.get_tightbbox()
    assert width <= page_inches
    assert -0.02 <= drawn.x0 < drawn.x1 <= width + 0.02
    assert -0.02 <= drawn.y0 < drawn.y1 <= height + 0.02
    said = [text.get_text() for text in figure.findobj(Text)]
    assert not [text for text in (*said, plots.caption(figure)) if "_" in text]


def tick_labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    return bsweep.load(write_study(tmp_path_factory.mktemp("studies") / "grid"))


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure_is_saved_the_same_twice_and_leaves_nothing_behind(
    suffix: str, grid: analysis.Study, tmp_path: Path
) -> None:
    settings = dict(matplotlib.rcParams)
    first, second = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    for path in (first, second):
        plots.save(plots.throughput_and_speedup(grid), path)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 1_000
    assert dict(matplotlib.rcParams) == settings


@pytest.mark.full
@pytest.mark.parametrize("style", plots.STYLES)
def test_a_figure_for_a_paper_has_its_width_and_embedded_fonts(
    style: str, grid: analysis.Study, tmp_path: Path
) -> None:
    settings = settings_of(style)
    for name in ("time_surface", "accuracy_by_time", "time_by_batch"):
        figure = plots.FIGURES[name](grid, style)
        assert figure.get_figwidth() == settings["figure.figsize"][0], name
        assert figure.get_figheight() < 9, name
        plots.save(figure, tmp_path / "one.pdf")
        assert_readable(figure, page_inches=settings["figure.figsize"][0])
        saved = (tmp_path / "one.pdf").read_bytes()
        fonts = re.findall(rb"/FontDescriptor (\d+) 0 R", saved)
        assert fonts, name
        for number in fonts:
            body = saved.partition(b"\n%s 0 obj\n" % number)[2]
            assert b"/FontFile2" in body.partition(b"endobj")[0], name
            assert b"DejaVu" not in body.partition(b"endobj")[0], name
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()}
        assert sizes <= {settings["font.size"], settings["legend.fontsize"], 5.5, 7}, name


def test_an_unknown_style_is_named_with_those_there_are(grid: analysis.Study) -> None:
    with pytest.raises(ValueError, match=r"style icm: unknown. Did you mean 'icml'.*thesis"):
        plots.FIGURES["accuracy_by_time"](grid, "icm")


@pytest.mark.full
def test_time_by_batch_shows_points_fit_and_the_published_curve(grid: analysis.Study) -> None:
    figure = plots.time_by_batch(grid)
    seconds, relative = figure.axes
    assert tick_labels(seconds) == [str(batch) for batch in BATCHES]
    assert seconds.get_xscale() == "log"
    x, y = lines(seconds)[look(grid, "num_workers", 2)]
    assert x == list(BATCHES)
    assert y == pytest.approx([train_seconds(batch, 2) for batch in BATCHES])
    fit_x, fit_y = (
        np.asarray(values) for values in lines(seconds)[look(grid, "num_workers", 1)[:-1]]
    )
    np.testing.assert_allclose(fit_y, 600 + 30_000 / fit_x)
    published_x, published_y = lines(relative)["#7A7A7A *"]
    assert published_x == list(BATCHES)
    assert published_y[0] == pytest.approx(14892 / 2069)
    assert "published" in plots.caption(figure)
    texts = legend_texts(figure)
    assert "600 + 30000 / b" in texts[1]
    assert "1599 + 106885 / b" in texts[3]
    assert "\N{MINUS SIGN}10 to +8" in texts[3]
    other = replace(grid, runs=grid.runs.assign(num_train=1_000))
    assert len(plots.time_by_batch(other).axes) == 1
    assert "published" not in plots.caption(plots.time_by_batch(other))
    assert "published" not in str(legend_texts(plots.accuracy_and_loss_by_batch(other)))


def test_repeats_get_bars_bands_and_their_number(tmp_path: Path) -> None:
    study = bsweep.load(write_study(tmp_path / "s", num_workers=(1,), seeds=3))
    with caching():
        by_batch, by_epoch = plots.accuracy_and_loss_by_batch(study), plots.loss_by_epoch(study)
    assert "n = 3 per point." in plots.caption(by_batch)
    half = analysis.cells(study.runs)["train_accuracy_ci95"].to_numpy()
    bars = by_batch.axes[0].containers[0].lines[2][0].get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose([(bar[1, 1] - bar[0, 1]) / 2 for bar in bars], half)
    assert "n = 3" in plots.caption(by_epoch)
    assert len(by_epoch.axes[0].collections) == 6


@pytest.mark.full
def test_runs_that_did_not_complete_are_crossed_at_their_batch(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(16, 32, 64), num_workers=(1,))
    write_run(tmp_path / "s", local_batch=8, status="diverged", num_epochs_done=2)
    write_run(tmp_path / "s", local_batch=128, status="out_of_memory", num_epochs_done=0)
    study = bsweep.load(tmp_path / "s")
    figure = plots.throughput_and_speedup(study)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in crosses] == [(8, 0), (128, 0)]  # type: ignore[misc]
    assert "Crosses" in plots.caption(figure)
    assert legend_texts(figure)[-1] == "run not completed: diverged, out of memory"
    assert "8" in tick_labels(figure.axes[0])
    by_epoch = plots.accuracy_by_epoch(study)
    assert legend_texts(by_epoch)[-1] == "incomplete run"
    assert any(line.get_marker() == "x" for line in by_epoch.axes[0].lines)


ODD: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "one batch": (write_study, {"local_batches": (64,), "num_workers": (2,)}, "time_by_batch"),
    "many batches": (
        write_study, {"local_batches": tuple(range(1, 17)), "num_workers": (2,)}, "time_by_batch"
    ),
    "nothing completed": (
        write_run, {"local_batch": 8, "status": "failed", "num_epochs_done": 0}, ""
    ),
    "one round": (
        write_run, {"settings": diloco("uniform"), "local_batch": 4, "num_workers": 4, "epochs": 1,
                    "num_rounds": 1}, "idle_by_node loss_by_time"
    ),
    "pipedream": (
        write_split_run, {"strategy": WAYS[-1][0], "workers": 2, "how": WAYS[-1][1]},
        "time_by_split memory_by_worker",
    ),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", ODD)
def test_odd_studies_are_drawn_too(case: str, tmp_path: Path) -> None:
    write, settings, names = ODD[case]
    write(tmp_path / "s", **settings)
    study = bsweep.load(tmp_path / "s")
    with caching():
        drawn = {name: draw(study) for name, draw in plots.figures(study).items()}
    assert set(names.split()) <= set(drawn)
    for figure in drawn.values():
        assert_readable(figure)
    if case == "many batches":
        assert len(tick_labels(drawn["time_by_batch"].axes[0])) <= 14


@pytest.fixture(scope="module")
def sharding(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    folder = tmp_path_factory.mktemp("studies") / "sharding"
    for name in ("layer", "memory"):
        write_study(
            folder, local_batches=(50,), num_workers=(1, 4, 8), settings=server(name), epochs=2
        )
    ring = {
        "strategy": {"name": "allreduce", "algorithm": "ring"},
        "model": {"name": "vgg16", "dropout": 0.5},
    }
    write_study(folder, local_batches=(50,), num_workers=(4,), settings=ring, epochs=2)
    return bsweep.load(folder)


@pytest.mark.full
def test_figures_are_those_that_a_study_has_the_numbers_for(
    sharding: analysis.Study, grid: analysis.Study
) -> None:
    of_splits = {"time_by_split", "memory_by_worker"}
    of_others = {"idle_by_node", "loss_by_time", "batch_by_epoch", "larger_clusters", *of_splits}
    assert set(plots.FIGURES) - set(plots.figures(grid)) == {"server_load", *of_others}
    assert "server_load" in plots.figures(sharding)
    assert "time_surface" not in plots.figures(sharding), "its runs are too short to predict"
    assert "seconds_per_step" not in plots.figures(analysis.published())


def test_bars_split_a_step(sharding: analysis.Study) -> None:
    figure = plots.seconds_per_step(sharding)
    four = figure.axes[1]
    assert [label.get_text() for label in four.get_yticklabels()] == [
        "ring all-reduce", "parameter server, by memory", "parameter server, by layer",
    ]  # fmt: skip
    compute, exchange, wait = ([bar.get_width() for bar in bars] for bars in four.containers)
    assert exchange[1:] == pytest.approx([2, 4 * 0.743])
    assert wait[1:] == pytest.approx([0.025, 0.025])
    assert compute[1:] == pytest.approx([3.975, 3.975])


@pytest.mark.full
def test_a_study_of_servers_has_its_workers_as_axis(
    sharding: analysis.Study,
) -> None:
    figure = plots.throughput_and_speedup(sharding)
    throughput, speedup = figure.axes
    assert tick_labels(throughput) == tick_labels(speedup) == ["1", "4", "8"]
    names = ["ring all-reduce", "parameter server, by layer", "parameter server, by memory"]
    assert legend_texts(figure) == ["local batch 50", *names, "ideal"]
    for place, name in enumerate(("layer", "memory"), 1):
        x, y = lines(speedup)[f"{COLORS[place]} {MARKERS[place]}"]
        assert x == [1, 4, 8]
        assert y == pytest.approx(
            [workers * 5 / server_step_seconds(workers, name) for workers in (1, 4, 8)]
        )
    assert_readable(plots.server_load(sharding))
    lone = replace(sharding, servers=sharding.servers.groupby("run_id").head(1))
    figure = plots.server_load(lone)
    assert {axes.get_xlabel()[:4] for axes in figure.axes} <= {"", "Busy"}


@pytest.mark.full
def test_a_loss_that_exploded_is_cut_and_said_and_so_is_one_below_zero(tmp_path: Path) -> None:
    study = bsweep.load(write_study(tmp_path / "s", local_batches=(8, 16, 32), num_workers=(1,)))
    assert "Triangles" not in plots.caption(plots.loss_by_epoch(study))
    study.epochs.loc[0, "train_loss"] = 1e6
    figure = plots.loss_by_epoch(study)
    training, test = figure.axes
    assert training.get_ylim()[1] < 10
    (triangle,) = [
        line for line in training.lines if line.get_transform() == training.get_xaxis_transform()
    ]
    assert (triangle.get_marker(), *triangle.get_data()) == ("^", [1], [1])
    assert not any(line.get_transform() == test.get_xaxis_transform() for line in test.lines)
    assert "Triangles" in plots.caption(figure)
    study.epochs["train_loss"] *= -1
    figure = plots.loss_by_epoch(study)
    assert figure.axes[0].get_yscale() == "log"
    assert "Triangles" in plots.caption(figure)


STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy.name": "horovod"},
    {"strategy": {"name": "ddp", "hook": "none"}},
    *(
        {"strategy": {"name": "allreduce", "algorithm": name}}
        for name in ("ring", "tree", "native")
    ),
    *({"compression.name": name} for name in ("topk", "dgc", "powersgd", "qsgd")),
)


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    """Nine ways to exchange, launched in the order above, at one batch size; only codecs lead to
    other losses.
    """
    folder = tmp_path_factory.mktemp("studies") / "strategies"
    for place, settings in enumerate(STRATEGIES):
        meta = META | {"launched_at": float(place)}
        write_run(folder, local_batch=64, num_workers=2, settings=settings, meta=meta)
    study = bsweep.load(folder)
    for times, codec in enumerate(("topk", "dgc", "powersgd", "qsgd"), 2):
        run_ids = study.runs.loc[study.runs["compression"] == codec, "run_id"]
        is_coded = study.epochs["run_id"].isin(run_ids)
        study.epochs.loc[is_coded, ["train_loss", "test_loss"]] *= times
    return study


def test_cells_of_one_batch_and_worker_count_are_dots_in_launch_order(
    strategies: analysis.Study,
) -> None:
    figure = plots.time_by_batch(strategies)
    (axes,) = figure.axes
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert names == [
        "Horovod", "DDP", "ring all-reduce", "tree all-reduce", "native all-reduce",
        "Horovod, top-k", "Horovod, DGC", "Horovod, PowerSGD", "Horovod, QSGD",
    ]  # fmt: skip
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(dots.get_ydata()) == list(range(9))  # type: ignore[arg-type]
    assert list(dots.get_xdata()) == pytest.approx([train_seconds(64, 2)] * 9)  # type: ignore[arg-type]
    assert "local batch 64" in legend_texts(figure)[0]
    drawn = [(look["color"], look["marker"]) for look in looks(strategies).values()]
    assert len(set(drawn)) == len(drawn), "a look means the same in all figures"


@pytest.mark.full
def test_curves_that_coincide_are_one_and_named(strategies: analysis.Study) -> None:
    figure = plots.loss_by_epoch(strategies)
    training = figure.axes[0]
    assert len(training.lines) == len(figure.axes[1].lines) == 5
    assert legend_texts(figure)[1:3] == ["Horovod and 4 equal to it", "Horovod, top-k"]
    assert "5 variants with equal values: Horovod; DDP; ring all-reduce;" in plots.caption(figure)


@pytest.mark.full
def test_time_to_target_marks_what_does_not_reach_it(tmp_path: Path) -> None:
    study = bsweep.load(write_study(tmp_path / "s", num_workers=(1,)))
    study.evaluations.loc[study.evaluations["run_id"] == "b8_w1_horovod_s0", "test_accuracy"] = 0.2
    figure = plots.time_to_target(study)
    (axes,) = figure.axes
    missed = [line for line in axes.lines if line.get_transform() == axes.get_xaxis_transform()]
    (marker,) = missed
    assert marker.get_marker() == "^"
    assert (list(marker.get_xdata()), list(marker.get_ydata())) == ([8], [1])  # type: ignore[arg-type]
    (curve,) = [line for line in axes.lines if line.get_marker() == "o"]
    known = analysis.time_to_target(study)["seconds"].dropna()
    assert list(curve.get_xdata()) == [16, 32, 64, 128, 256]  # type: ignore[arg-type]
    assert list(curve.get_ydata()) == known.tolist()  # type: ignore[arg-type]
    figure.draw_without_rendering()
    label = axes.yaxis.label.get_window_extent()
    assert label.height <= axes.get_window_extent().height
    assert legend_texts(figure)[-1] == "not reached"


@pytest.mark.full
def test_guessing_is_a_line_beside_accuracies_near_it_which_alone_are_left_out(
    tmp_path: Path,
) -> None:
    """A run that never started takes nothing from the others."""
    folder = write_study(tmp_path / "s", num_workers=(1,), local_batches=(8, 32))
    never = write_run(folder, local_batch=64, status="failed", num_epochs_done=0)
    (never / "metrics.jsonl").unlink()
    study = bsweep.load(folder)
    assert study.runs["num_classes"].isna().sum() == 1
    study.epochs.loc[study.epochs["epoch"] == 1, ["train_accuracy", "test_accuracy"]] = 0.15
    figure = plots.accuracy_by_epoch(study)
    for axes in figure.axes:
        assert any(list(line.get_ydata()) == [0.1, 0.1] for line in axes.lines)  # type: ignore[arg-type]
    assert "chance: 0.1" in legend_texts(figure)
    of_accuracy = {"accuracy_by_epoch", "accuracy_by_time", "time_to_target"}
    assert of_accuracy <= set(plots.figures(study))
    study.evaluations["test_accuracy"] = 0.1
    for table in (study.runs, study.epochs):
        table[["train_accuracy", "test_accuracy"]] = 0.1
    assert [name for name in plots.figures(study) if "accuracy" in name or "target" in name] == []
    assert "nothing was measured" in plots.caption(plots.accuracy_by_time(study))
