"""The page's charts of split models have the numbers of the figures, and are there only if a study
has such models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bsweep
from bsweep import analysis
from bsweep.analysis import splitting as tables
from tests.report.browser import go, opened, page_of, rows
from tests.support.split_study import SPLIT, write_split_run, write_split_study

PHONE = {"width": 390, "height": 844}
CHARTS = ("split_times", "split_memory")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    return bsweep.load(write_split_study(tmp_path_factory.mktemp("studies") / "split"))


@pytest.fixture(scope="module")
def path(split: analysis.Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(split, tmp_path_factory.mktemp("pages"))


LOOKS = """() => Object.fromEntries(["color", "shape"].map((of) => {
  const scale = charts.split_times.view.scale(of);
  return [of, Object.fromEntries(scale.domain().map((value) => [value, scale(value)]))];
}))"""


def test_charts_have_the_numbers_of_the_figures(
    browser: Any, path: Path, split: analysis.Study
) -> None:
    with opened(browser, path) as page:
        times, memory = (rows(page, name) for name in CHARTS)
        for name in CHARTS:
            assert page.locator(f"#{name} canvas").bounding_box()["width"] > 200
        looks = page.evaluate(LOOKS)
        of_a_map = [page.is_visible(name) for name in ("#times", "#save-map", "#cells")]
        assert not any(of_a_map), "the study has no target"
        go(page, **{"filter.strategy": "tensor"})
        assert {row["way"] for row in rows(page, "split_times")} == {
            "tensor 1x2, 1x4",
            "tensor 2x2",
        }
    ways = tables.ways(split)
    fastest = ways.loc[ways["is_fastest"], "train_seconds"]
    assert sorted(row["seconds"] for row in times) == pytest.approx(sorted(fastest))
    names = {row["way"] for row in times}
    assert names == {
        "DDP", "sharded 1x2, 1x4", "tensor 1x2, 1x4", "tensor 2x2", "pipeline 1x2, 1x4",
        "PipeDream 1x2, 1x4",
    }  # fmt: skip
    colors: dict[str, set[str]] = {}
    for way in names:
        colors.setdefault(way.split(" ")[0], set()).add(looks["color"][way])
    assert all(len(of_strategy) == 1 for of_strategy in colors.values())
    assert len(set.union(*colors.values())) == len(colors)
    drawn = {(looks["color"][way], str(looks["shape"][way])) for way in names}
    assert len(drawn) == len(names), "each way has its own shape"
    table = tables.worker_memory(split)
    for name, part in (
        ("parameters", "parameter_bytes"),
        ("optimizer state", "optimizer_bytes"),
        ("older weights", "stashed_bytes"),
    ):
        found = sorted(row["megabytes"] for row in memory if row["part"] == name)
        assert found == pytest.approx(sorted(table.loc[table[part] > 0, part] / 1e6))
    places: dict[str, set[int]] = {}
    for row in memory:
        places.setdefault(row["name"], set()).add(row["row"])
    assert len(places) == len(ways), "each cell has its own name"
    # Bars of few workers are beside their name's middle.
    assert {tuple(sorted(of_cell)) for of_cell in places.values()} == {(1, 2), (0, 1, 2, 3)}


@pytest.mark.full
def test_names_of_cells_are_whole_on_a_phone(browser: Any, path: Path) -> None:
    with opened(browser, path, viewport=PHONE) as page:
        names = {row["name"] for row in rows(page, "split_memory")}
        height = page.locator("#split_memory canvas").bounding_box()["height"]
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert max(len(line) for name in names for line in name.split("\n")) <= 24
    assert height > 12 * sum(name.count("\n") + 1 for name in names)


@pytest.mark.full
def test_a_page_of_one_run_has_no_empty_controls(browser: Any, tmp_path: Path) -> None:
    write_split_run(tmp_path / "s", "tensor", 2, SPLIT)
    with opened(browser, page_of(bsweep.load(tmp_path / "s"), tmp_path)) as page:
        empty = "(all) => all.filter((one) => !one.options.length).map((one) => one.id)"
        assert page.eval_on_selector_all("select:visible", empty) == []
        assert not page.is_visible("#bar")
        assert "Runs with a curve here: 1 of 1." in page.inner_text("#curves-say")
