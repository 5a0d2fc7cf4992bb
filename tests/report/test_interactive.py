"""The interactive page in a browser: it answers, can be asked back, and agrees with Python."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.cell_tables import split_models
from bsweep.analysis.study.targets import AMOUNTS, crossings
from bsweep.config.target import Target
from bsweep.plots.drawing import PALE
from tests.report.browser import assert_accessible, drawn, go, opened, page_of, rows, strong
from tests.support.running import compose
from tests.support.split_study import write_split_study
from tests.support.synthetic_study import META, write_run, write_study
from tests.support.synthetic_targets import TARGET, Truth, with_energy, write_target_study

PHONE = {"width": 390, "height": 844}
BATCHES, WORKERS, SEEDS = (64, 256, 1024), (1, 4), 2
HOSTILE = '</script><img src=x onerror="alert(1)">${alert(2)}'
_PLACE_OF_A_CELL = (
    "(() => { const { view } = charts.map, at = (name, value) => view.scale(name)(value)"
    " + view.scale(name).bandwidth() / 2; const box = view.container().querySelector("
    "'canvas').getBoundingClientRect(), [left, top] = view.origin();"
    " return [box.x + left + at('x', 256), box.y + top + at('y', 4)]; })()"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    folder = tmp_path_factory.mktemp("studies") / "asked"
    write_target_study(folder, Truth(), BATCHES, WORKERS, range(SEEDS), noise_scale=300.0)
    meta = META | {"command": f"bsweep run epochs=3 seed=0,1 model.name={HOSTILE!r}"}
    settings = {"optimizer.lr_rule": "linear"}
    run = write_run(
        folder, local_batch=8, status="failed", num_epochs_done=0, message=HOSTILE,
        events=(HOSTILE,), settings=settings, meta=meta,
    )  # fmt: skip
    for rank, (time, is_consequence) in enumerate([(1.0, True), (2.0, False)]):
        error = {
            "message": f"Error of {rank}", "traceback": "Traceback\n  File own.py\n    step()",
            "time": time, "is_consequence": is_consequence,
        }  # fmt: skip
        (run / f"logs/rank.{rank}").mkdir(parents=True)
        (run / f"logs/rank.{rank}/error.json").write_text(json.dumps(error))
    (run / "logs/rank.0/stderr").write_text(f"Traceback\n{HOSTILE}\nValueError: no\n")
    return bsweep.load(folder)


@pytest.fixture(scope="module")
def path(study: analysis.Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(study, tmp_path_factory.mktemp("pages"))


@pytest.mark.full
@pytest.mark.parametrize("screen", [{"width": 1280, "height": 800}, PHONE])
def test_the_first_screen_has_all_of_the_answer(
    browser: Any, path: Path, screen: dict[str, int]
) -> None:
    with opened(browser, path, viewport=screen) as page:
        for part in ("#best", "#amount", "#sure", "#map canvas", "#next", "#warnings"):
            box = page.locator(part).bounding_box()
            assert box["y"] + box["height"] < screen["height"], part
        assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
        for chart in ("map", "curves"):
            assert page.get_attribute(f"#{chart}", "role") == "img"
            assert page.get_attribute(f"#{chart}", "aria-label")
        assert not page.is_visible("#splits"), "no model of the study is split"


@pytest.mark.full
def test_the_page_answers_what_the_terminal_answers(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    wide, narrow = ({"model.name": name} for name in ("wide", "narrow"))
    write_target_study(folder, Truth(), (*BATCHES, 512), settings=wide)
    # A smaller part that is faster, but no alternative.
    write_target_study(folder, Truth(), BATCHES, needed=0.1, settings=narrow)
    study = bsweep.load(folder)
    line, sure, *_ = analysis.answer_lines(study)
    best = analysis.answers(study)[analysis.first_place(study) or 0].prediction
    assert best is not None
    assert line.startswith("wide: ")
    with opened(browser, page_of(study, tmp_path)) as page:
        said = page.inner_text(".answer")
        assert f"Global batch {best.recommended['global_batch']} on 1 worker" in said
        assert f": {best.amount.partition(' (')[0]}, 90 % interval" in said
        assert said.startswith("wide: ")
        assert page.inner_text("#sure") == sure
        assert f"probability {best.recommended['probability_best']:.2f}" in sure
        go(page, objective="worker_seconds")
        assert "probability" not in page.inner_text("#sure")
        go(page, objective="")
        go(page, measured="1")
        assert line in page.inner_text("#sure")


ODD_LINKS = [
    "x=foo", "target=abc", "run=nobody", "sort=nothing", "color=nothing", "hidden=nothing",
    "part=7", "objective=fame", "cell=3x9", "picked=nobody", "smooth=2", "price=-1", "y=x",
    "filter.nothing=1", "filter.num_workers=a..b", "constructor=1", "page=zero", "theme=blue",
]  # fmt: skip


@pytest.mark.full
def test_links_restore_views_or_show_the_defaults(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        before = page.inner_text("#overview")
        for odd in ODD_LINKS:
            page.evaluate("(odd) => { location.hash = `${odd}&logx=1`; }", odd)
            page.wait_for_function("state.logx === '1'")
            drawn(page)
            assert page.inner_text("#overview") == before, odd
            assert page.inner_text("#misread").endswith(f": {odd}")
            go(page, logx="")
            assert page.is_hidden("#misread"), odd
        go(page, **{"x": "steps", "logx": "1", "theme": "dark", "cell": "256x4", "find": "_w4_",
                    "filter.seed": "1", "sort": "num_workers", "smooth": "0.5"})  # fmt: skip
        fragment = page.url.partition("#")[2]
        view = [rows(page, "curves"), page.inner_text("#overview")]
    with opened(browser, path, fragment) as page:
        assert [rows(page, "curves"), page.inner_text("#overview")] == view
        assert page.input_value("#theme") == "dark"
        assert page.input_value("#x") == "steps"
        assert any(row["smooth"] != row["y"] for row in rows(page, "curves"))


def test_a_cell_stands_out_is_selected_and_gives_its_command(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        x, y = page.evaluate(_PLACE_OF_A_CELL)
        page.mouse.move(x, y)
        page.wait_for_function("hovered.length > 0")
        assert len(strong(page, "map", "hovered")) == 1 + SEEDS
        assert strong(page, "curves", "hovered") == strong(page, "map", "hovered")
        assert page.locator("#table tr.hovered").count() == SEEDS
        page.mouse.click(x, y)
        drawn(page)
        assert page.input_value("#cell") == "256x4"
        picked = strong(page, "curves")
        assert len(picked) == SEEDS == page.locator("#table tr.picked").count()
        go(page, cell="", picked=next(iter(picked)))
        assert strong(page, "map") == {"256x4"}
        go(page, picked="", target="0.9999")
        assert {row["seconds"] for row in rows(page, "map")} == {None}, "all missed the target"
        page.mouse.click(*page.evaluate(_PLACE_OF_A_CELL))
        drawn(page)
        assert page.input_value("#cell")
        go(page, target="", cell="256x4")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("#reading button")
        page.wait_for_selector("#reading button:text('Copied')")
        copied = page.evaluate("navigator.clipboard.readText()")
        page.locator("#table tbody tr").first.hover()
        run = page.get_attribute("#table tbody tr >> nth=0", "data-run")
        assert run in strong(page, "curves", "hovered")
    program, verb, *words = shlex.split(copied)
    assert (program, verb, *words[-2:]) == ("bsweep", "run", "target_accuracy=0.9", "study=asked")
    unknown = str(META["command"]).split()[-1]  # an experiment that is not there
    config = compose(*[word for word in words if word != unknown])
    assert (config.num_workers, config.local_batch, config.seed) == (4, 64, SEEDS)


def on_map(page: Any) -> dict[tuple[int, int], float]:
    """Return what the map shows of each cell, by global batch and workers."""
    return {(row["global_batch"], row["num_workers"]): row["seconds"] for row in rows(page, "map")}


def of(line: Line2D) -> tuple[tuple[float, float], ...]:
    """Return the points of a line on paper."""
    return tuple((float(x), float(y)) for x, y in np.asarray(line.get_xydata()))


@pytest.mark.full
def test_both_drawings_of_curves_and_steps_have_the_same_points(
    browser: Any, tmp_path: Path
) -> None:
    study = bsweep.load(write_study(tmp_path / "s", local_batches=(8, 32), epochs=4))
    seconds: list[float] = []
    with opened(browser, page_of(study, tmp_path)) as page:
        for figure, x, y, columns in (
            ("accuracy_by_epoch", "epochs", "test_accuracy", 2),
            ("loss_by_epoch", "epochs", "test_loss", 2),
            ("accuracy_by_time", "seconds", "test_accuracy", 1),
        ):
            panels = plots.FIGURES[figure](study).axes[columns - 1 :: columns]  # the last column
            lines = {of(line) for axes in panels for line in axes.lines}
            go(page, x=x, y=y)
            curves: dict[str, list[tuple[float, float]]] = {}
            for row in rows(page, "curves"):
                curves.setdefault(row["run"], []).append((row["x"], row["y"]))
            on_paper = sorted(points for points in lines if len(points) == 4)
            assert len(on_paper) == len(curves) == 4
            np.testing.assert_allclose(sorted(curves.values()), on_paper, rtol=1e-6)
        for run_id in study.runs.query("num_workers == 2")["run_id"]:
            go(page, run=run_id)
            seconds += [row["seconds"] for row in rows(page, "step") if row["epoch"] == 1]
    bars = [
        bar.get_width()
        for axes in plots.FIGURES["seconds_per_step"](study).axes
        for bar in axes.patches
        if isinstance(bar, Rectangle) and bar.get_facecolor() != to_rgba(PALE)
    ]
    assert sorted(seconds) == pytest.approx(sorted(width for width in bars if width), rel=1e-5)
    assert len(seconds) >= 4


@pytest.mark.full
def test_the_map_shows_the_cells_of_the_analysis(
    browser: Any, path: Path, study: analysis.Study
) -> None:
    cells = analysis.surface(study).set_index(["global_batch", "num_workers"])
    with opened(browser, path) as page:
        assert on_map(page) == pytest.approx(cells["seconds"].to_dict(), rel=1e-6)
        texts = page.evaluate("charts.map.view.data('data_0').map(row => row.label)")
        stars = [row["seconds"] for row in rows(page, "map") if row["is_recommended"]]
    (best,) = cells.loc[cells["is_recommended"], "seconds"]
    assert stars == pytest.approx([best], rel=1e-6)
    assert f"★ {best:.3g}" in texts


TARGETS = (("test_accuracy", 0.9), ("test_accuracy", 0.87), ("test_loss", 1.1), ("test_loss", 1.13))


@pytest.mark.full
def test_times_to_targets_equal_those_of_python(
    browser: Any, path: Path, study: analysis.Study
) -> None:
    rng, curves = np.random.default_rng(0), []
    for count in rng.integers(1, 12, 300):
        levels = [None if level > 10 else level for level in rng.integers(6, 12, count).tolist()]
        curve = {name: np.cumsum(rng.integers(1, 9, count)).tolist() for name in AMOUNTS}
        curve["test_accuracy"] = [level and level / 10 for level in levels]
        curve["test_loss"] = [level and (20 - level) / 10 for level in levels]
        curves.append(curve)
    table = pd.concat(pd.DataFrame({"run_id": run, **curve}) for run, curve in enumerate(curves))
    table = table.rename(columns=AMOUNTS).astype({"test_accuracy": float, "test_loss": float})
    many = "([curves, metric, value]) => curves.map((curve) => toTarget(curve, metric, value))"
    held = (
        "Object.fromEntries(rows.filter((one) => one.curve).map((one) => [one.run_id, one.curve]))"
    )
    with opened(browser, path) as page:
        of_runs = page.evaluate(held)
        for metric, value in TARGETS:
            known = crossings(table, Target(metric, value)).reindex(range(len(curves)))
            known["reached"] = known["reached"].eq(True)
            found = page.evaluate(many, [curves, metric, value])
            for here, (_, there) in zip(found, known.iterrows(), strict=True):
                assert (here is not None) == there["reached"]
                assert here is None or here["is_bound"] == there["is_bound"]
                for name in AMOUNTS if here else ():
                    assert here[name] == pytest.approx(there[f"{name}_to_target"], rel=1e-8)
    assert of_runs.keys() == {*study.evaluations["run_id"]}
    for run_id, evaluated in study.evaluations.groupby("run_id"):
        for name in (*AMOUNTS, "test_accuracy", "test_loss"):
            values = evaluated[AMOUNTS.get(name, name)].tolist()
            assert of_runs[run_id][name] == pytest.approx(values, rel=1e-8)


def test_the_slider_gives_medians_of_pythons_times(
    browser: Any, path: Path, study: analysis.Study
) -> None:
    known = analysis.to_target(study, Target("test_accuracy", 0.6))
    runs = study.runs.set_index("run_id").join(known).dropna(subset="seconds_to_target")
    work = runs["seconds_to_target"] * runs["num_workers"]
    cells = [runs["global_batch"], runs["num_workers"]]
    with opened(browser, path) as page:
        page.fill("#target", "0.6")
        drawn(page)
        assert on_map(page) == pytest.approx(
            runs["seconds_to_target"].groupby(cells).median().to_dict()
        )
        assert "--target-accuracy 0.6" in page.inner_text("#next")
        assert not any(row["is_bound"] for row in rows(page, "map"))
        first = study.evaluations.groupby("run_id")["test_accuracy"].first()
        go(page, target=str(first.min()))  # all had reached it when they were first evaluated
        assert all(row["is_bound"] for row in rows(page, "map"))
        assert page.inner_text("#amount").startswith("≤ ")
        assert "≤ " in page.inner_text("#table tbody")
        go(page, target="0.6", objective="worker_seconds")
        assert on_map(page) == pytest.approx(work.groupby(cells).median().to_dict())
        go(page, objective="money")
        once = on_map(page)
        page.focus("#price")
        page.keyboard.press("Control+A")
        page.keyboard.press("Backspace")
        page.keyboard.type("2.5")
        drawn(page)
        assert page.input_value("#price") == "2.5"
        assert on_map(page) == pytest.approx({cell: 2.5 * price for cell, price in once.items()})
        assert "--price-per-worker-hour 2.5" in page.inner_text("#next code")
        page.evaluate("for (const row of rows) row.curve?.seconds.fill(null)")
        go(page, target="0.61", objective="seconds")  # reached in a time that is not known
        assert page.inner_text("#best").startswith("In no cell did most of the shown runs reach")


def test_the_table_filters_sorts_searches_and_hides_columns(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        everything = {row["run"] for row in rows(page, "curves")}
        page.click('details[data-menu="num_workers"] summary')
        page.uncheck('input[data-filter="num_workers"][value="1"]')
        drawn(page)
        shown = {row["run"] for row in rows(page, "curves")}
        assert shown == {run for run in everything if "_w4_" in run}
        assert {row["num_workers"] for row in rows(page, "map")} == {4}
        assert page.locator("#table tbody tr").count() == len(shown) == len(BATCHES) * SEEDS
        assert f"Runs shown: {len(shown)} of {len(everything) + 1}" in page.inner_text("#count")
        page.click("#clear")
        drawn(page)
        assert {row["run"] for row in rows(page, "curves")} == everything
        page.click('[data-sort="global_batch"]')
        page.click('[data-sort="global_batch"]')
        drawn(page)
        assert page.get_attribute('th[aria-sort="descending"] button', "data-sort") == (
            "global_batch"
        )
        assert "_w1_" in page.inner_text("#table tbody tr:first-child")
        page.fill("#find", "b64 s1")
        drawn(page)
        assert page.locator("#table tbody tr").count() == 2
        page.click("#columns summary")
        page.uncheck('[data-column="seed"]')
        drawn(page)
        assert page.locator('[data-sort="seed"]').count() == 0


@pytest.mark.full
def test_the_energy_to_the_target_is_that_of_python(
    browser: Any, tmp_path: Path, study: analysis.Study
) -> None:
    """By 50 W of a worker, and 0.3 J an example."""
    study = with_energy(study, 50, example_joules=0.3)
    cells = bsweep.predict(study, TARGET, objective="joules").cells
    names = zip(cells["global_batch"], cells["num_workers"], strict=True)
    expected = dict(zip(names, cells["joules"], strict=True))
    best = min(expected, key=lambda cell: expected[cell])
    with opened(browser, page_of(study, tmp_path), "objective=joules") as page:
        assert on_map(page) == pytest.approx(expected, rel=1e-6)
        (chosen,) = [row["name"] for row in rows(page, "map") if row["is_recommended"]]
        assert chosen == f"{best[0]}x{best[1]}"
        assert " --objective joules" in page.inner_text(".first")


@pytest.mark.full
def test_the_page_of_a_run_tells_all_of_it(browser: Any, path: Path, study: analysis.Study) -> None:
    run_id = next(run for run in study.runs["run_id"] if run.startswith("b8_"))
    with opened(browser, path) as page:
        page.click("#table a >> text=b64_w4_horovod_s0")
        drawn(page)
        assert "Seconds" not in page.inner_text("#run"), "no epoch was recorded"
        assert rows(page, "run-curves")
        with page.expect_download() as download:
            page.locator("#run button", has_text="CSV").first.click()
        name = download.value.suggested_filename
        assert re.fullmatch(r"b64_w4_horovod_s0\S*_run-curves\.csv", name)
        page.go_back()
        drawn(page)
        page.evaluate("(run) => go({ run })", run_id)
        drawn(page)
        said = page.inner_text("#run")
        assert said.count(HOSTILE) >= 2, "the message and the end of a log"
        assert "ValueError: no" in said
        assert "rank.1/error.json\nError of 1\nTraceback\n  File own.py\n    step()" in said
        assert "Error of 0" not in said, "it followed from the other"
        events = page.locator("#run table", has=page.locator("caption", has_text="Events"))
        assert HOSTILE in events.inner_text()
        assert page.locator("#run img").count() == 0


@pytest.mark.full
def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&'\""
    write_run(folder, local_batch=8, meta={**META, "cpu": HOSTILE}, events=(HOSTILE,))
    write_run(folder, local_batch=16, message="=1+1")
    path = page_of(bsweep.load(folder, mix=True), tmp_path)
    assert "<img" not in path.read_text()
    with opened(browser, path) as page:
        assert page.inner_text("h1") == folder.name
        assert HOSTILE in page.inner_text("#table")
        assert HOSTILE in page.inner_text("#warnings")
        assert page.locator("img").count() == 0
        text = page.evaluate("csv(['message'], rows)")
        assert "'=1+1" in text
        assert "\n=1+1" not in text


@pytest.mark.full
@pytest.mark.parametrize("fragment", ["", "run=b64_w4_horovod_s0_lr_rulelinear"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, path: Path, scheme: str, fragment: str) -> None:
    with opened(browser, path, fragment, color_scheme=scheme) as page:
        assert_accessible(page)


@pytest.mark.full
def test_keys_reach_all_controls_and_charts_are_saved(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id"))
        wanted = {"objective", "target", "measured", "cell", "reset", "x", "y", "logx", "smooth"}
        assert wanted <= {*reached}
        page.focus("#cell")
        page.keyboard.press("ArrowDown")
        drawn(page)
        assert len(strong(page, "map")) == 1
        for kind, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"global_batch")):
            with page.expect_download() as download:
                page.click(f"#save-map >> text={kind}")
            assert Path(download.value.path()).read_bytes().startswith(begins)
        go(page, objective="money", x="epochs", y="test_loss")
        for chart, columns in (("map", ",money,money_low"), ("curves", ",epochs,test_loss,")):
            with page.expect_download() as download:
                page.click(f"#save-{chart} >> text=CSV")
            assert columns in Path(download.value.path()).read_text().partition("\n")[0]


@pytest.mark.full
def test_a_page_shows_the_sentences_of_the_analysis(browser: Any, tmp_path: Path) -> None:
    folder = write_target_study(tmp_path / "spoken", Truth(), (64, 256), workers=(1, 4))
    meta = {**META, "commit": "f" * 40}
    lost = "out.safetensors was not written: OSError: no space"
    write_run(folder, local_batch=8, status=None, num_epochs_done=1, meta=meta, events=(lost,))
    study = bsweep.load(folder)
    lines = """[
        ...[...document.querySelectorAll("#warnings details:has(> summary > span)")].map((one) =>
            [...one.querySelectorAll("span, p")].map((p) => p.textContent).join(" ").trim()),
        ...[...document.querySelectorAll("#why-lines p")].map((p) => p.textContent),
    ]"""
    shown = [*analysis.recommendation_warnings(study), *analysis.cell_warnings(study)]
    shown += [*study.warnings, *analysis.recommendations(study), *analysis.headlines(study)]
    shown += analysis.missing_recommendations(study)
    assert len(shown) > 5
    with opened(browser, page_of(study, tmp_path)) as page:
        assert page.evaluate(lines) == shown
        page.evaluate("update({ ...study })")  # as a page of `bsweep watch` does
        drawn(page)
        assert page.evaluate(lines) == shown


@pytest.mark.full
def test_charts_of_split_models_have_the_numbers_of_the_figures(
    browser: Any, tmp_path: Path
) -> None:
    split = bsweep.load(write_split_study(tmp_path / "split"))
    charts = ("split_times", "split_memory")
    with opened(browser, page_of(split, tmp_path)) as page:
        times, memory = (rows(page, name) for name in charts)
        times = [row for row in times if row["is_fastest"]]
        for name in charts:
            assert page.locator(f"#{name} canvas").bounding_box()["width"] > 200
        assert all(page.is_visible(name) for name in ("#times", "#save-map", "#cells"))
        go(page, **{"filter.strategy": "tensor"})
        assert {row["way"] for row in rows(page, "split_times")} == {
            "tensor 1x2, 1x4",
            "tensor 2x2",
        }
    ways = split_models.ways(split)
    fastest = ways.loc[ways["is_fastest"], "train_seconds"]
    assert sorted(row["seconds"] for row in times) == pytest.approx(sorted(fastest))
    names = {row["way"] for row in times}
    assert names == {
        "DDP", "sharded 1x2, 1x4", "tensor 1x2, 1x4", "tensor 2x2", "pipeline 1x2, 1x4",
        "PipeDream 1x2, 1x4",
    }  # fmt: skip
    table = split_models.worker_memory(split)
    for name, part in (
        ("parameters", "parameter_bytes"),
        ("optimizer state", "optimizer_bytes"),
        ("older weights", "stashed_bytes"),
    ):
        found = sorted(row["megabytes"] for row in memory if row["part"] == name)
        assert found == pytest.approx(sorted(table.loc[table[part] > 0, part] / 1e6))
