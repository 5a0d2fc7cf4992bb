"""The page of a comparison in a browser."""

from __future__ import annotations

import re
from itertools import product
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


@pytest.mark.parametrize(("scheme", "lang"), [("light", "en"), ("dark", "en"), ("light", "ko")])
def test_axe_finds_nothing_in_a_comparison(
    browser: Any, path: Path, scheme: str, lang: str
) -> None:
    axe = pytest.importorskip("axe_core_python", reason="no axe-core-python")
    library = Path(axe.__file__).with_name("axe.min.js").read_text()
    narrow = {"width": 390, "height": 844}  # on which tables scroll
    page = browser.new_page(color_scheme=scheme, bypass_csp=True, viewport=narrow)
    page.goto(f"{path.as_uri()}#lang={lang}")
    page.evaluate(f"() => {{ {library} }}")
    found = page.evaluate("axe.run().then((found) => found.violations)")
    page.close()
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


NAMES = {  # of the studies below, their settings and machines, of options and of statisticians
    "before", "after", "third", "Horovod", "Holm", "bsweep", "compare", "report", "load", "launch",
    "parallel", "across", "hardware", "beside", "True", "cpu", "Test", "CPU", "Other", "commit",
    "seed", "local_batch", "global_batch", "target_accuracy", "English",
}  # fmt: skip


@pytest.fixture(scope="module", params=["before after", "before after third"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that says all that a comparison can say: of cells that are missing, refused, not
    tested, and no longer reach their target, and of runs that are left out.
    """
    folder, target = tmp_path_factory.mktemp("told"), {"target_accuracy": 0.8}
    for batch, seed in product((8, 16, 32, 64), range(3)):
        write_run(folder / "before", local_batch=batch, seed=seed, settings=target)
    for seed in range(3):
        of: dict[str, Any] = {"seed": seed, "settings": target}
        other = {**META, "commit": str(seed) * 40}
        write_run(folder / "after", local_batch=8, accuracy=0.5, meta=other, **of)
        write_run(folder / "after", local_batch=16, **of)
    write_run(folder / "after", local_batch=32, settings=target)
    write_run(folder / "after", local_batch=128, status="failed")
    elsewhere = {**META, "cpu": "Other CPU"}
    write_run(folder / "third", local_batch=8, meta={**elsewhere, "beside_others": True})
    write_run(folder / "third", local_batch=16, meta=elsewhere)
    studies = request.param.split()
    found = analysis.compare(*(folder / name for name in studies))
    write_page(found, folder / "compared.html", f"bsweep compare {request.param}")
    return folder / "compared.html"


def test_a_reader_of_a_comparison_chooses_the_language(browser: Any, told: Path) -> None:
    said: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(told.as_uri())
    english = page.inner_text("main")
    page.select_option("#lang", "ko")
    korean, title = page.inner_text("body"), page.title()
    assert {*re.findall(r"\b[A-Za-z_]{3,}\b", f"{korean} {title}")} <= NAMES
    assert not re.search(r"[{}]|object", korean)
    assert "더는 도달하지 못함 1개 (Horovod, 워커 1개, 워커당 배치 8)" in korean
    assert page.url.endswith("#lang=ko")
    page.reload()
    assert page.inner_text("body") == korean
    page.select_option("#lang", "en")
    assert page.inner_text("main") == english
    page.select_option("#theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    page.close()
    assert said == []


def test_a_comparison_begins_in_the_language_of_the_browser(browser: Any, told: Path) -> None:
    page = browser.new_page(locale="ko-KR")
    page.goto(told.as_uri())
    assert page.evaluate("document.documentElement.lang") == "ko"
    assert page.inner_text("h1").startswith("before 대비 after")
    page.close()


def test_a_comparison_is_in_english_where_no_script_runs(browser: Any, told: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(told.as_uri())
    assert "compared with before" in page.inner_text("h1")
    assert not page.is_visible("#lang")
    page.close()
