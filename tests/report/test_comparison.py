"""The page of a comparison in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bsweep import analysis
from bsweep.report.comparison import write_page
from tests.support.synthetic_study import META, write_run, write_study

DARK, LIGHT = "rgb(20, 23, 26)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    write_study(folder / "before", local_batches=(8, 16), seeds=2)
    write_study(folder / "after", local_batches=(8, 16), seeds=2)
    write_run(folder / "after", local_batch=8, seed=2, meta={**META, "cpu": "<img src=x>"})
    found = analysis.compare(folder / "before", folder / "after")
    write_page(found, folder / "compared.html", "bsweep compare before after")
    return folder / "compared.html"


@pytest.mark.full
@pytest.mark.parametrize(("scheme", "background"), [("light", LIGHT), ("dark", DARK)])
def test_a_comparison_looks_like_a_report(
    browser: Any, path: Path, scheme: str, background: str
) -> None:
    said: list[str] = []
    page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    found = page.evaluate("getComputedStyle(document.body).backgroundColor")
    wide = page.evaluate("document.documentElement.scrollWidth")
    images = page.locator("img").count()
    page.close()
    assert said == [path.as_uri()]
    assert (found, images) == (background, 0)
    assert wide <= 390


def test_a_comparison_runs_only_its_own_script(path: Path) -> None:
    policy = re.search(r'Security-Policy" content="([^"]*)"', path.read_text())
    assert policy is not None
    assert "default-src 'none'; script-src 'sha256-" in policy[1]
    assert "unsafe" not in policy[1]
    assert path.read_text().count("<script") == 1


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_comparison(browser: Any, path: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_core_python", reason="no axe-core-python")
    library = Path(axe.__file__).with_name("axe.min.js").read_text()
    narrow = {"width": 390, "height": 844}  # on which tables scroll
    page = browser.new_page(color_scheme=scheme, bypass_csp=True, viewport=narrow)
    page.goto(path.as_uri())
    page.evaluate(f"() => {{ {library} }}")
    found = page.evaluate("axe.run().then((found) => found.violations)")
    page.close()
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.full
def test_a_reader_of_a_comparison_chooses_the_look(browser: Any, path: Path) -> None:
    said: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    page.select_option("#theme", "dark")
    assert page.url.endswith("#theme=dark")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    page.close()
    assert said == []


@pytest.mark.full
def test_a_comparison_is_there_where_no_script_runs(browser: Any, path: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri())
    assert "compared with before" in page.inner_text("h1")
    assert not page.is_visible("#theme")
    page.close()
