"""The page of a comparison in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bsweep import analysis
from bsweep.report.comparison import write_page
from tests.report.browser import assert_accessible, opened
from tests.support.synthetic_study import write_study

BACKGROUND = "getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(20, 23, 26)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    write_study(folder / "before", local_batches=(8, 16), seeds=2)
    write_study(folder / "after", local_batches=(8, 16), seeds=2)
    found = analysis.compare(folder / "before", folder / "after")
    write_page(found, folder / "compared.html", "bsweep compare before after")
    return folder / "compared.html"


@pytest.mark.full
@pytest.mark.parametrize(("scheme", "background"), [("light", LIGHT), ("dark", DARK)])
def test_a_comparison_looks_like_a_report(
    browser: Any, path: Path, scheme: str, background: str
) -> None:
    """On a phone, on which tables scroll; its reader chooses the look."""
    phone: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    with opened(browser, path, awaits="body", **phone) as page:
        assert page.evaluate(BACKGROUND) == background
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.select_option("#theme", "dark")
        assert page.url.endswith("#theme=dark")
        page.reload()
        assert page.evaluate(BACKGROUND) == DARK
    with opened(browser, path, awaits="body", bypass_csp=True, **phone) as page:
        assert_accessible(page)


def test_a_comparison_runs_only_its_own_script(path: Path) -> None:
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', path.read_text())
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert path.read_text().count("<script") == 1


@pytest.mark.full
def test_a_comparison_is_there_where_no_script_runs(browser: Any, path: Path) -> None:
    with opened(browser, path, awaits="h1", java_script_enabled=False) as page:
        assert "compared with before" in page.inner_text("h1")
        assert not page.is_visible("#theme")
