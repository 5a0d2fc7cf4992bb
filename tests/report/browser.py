"""A page in a real browser, for tests: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bsweep.analysis import Study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_WAIT_MS = 60_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser for all tests, which are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def page_of(study: Study, folder: Path) -> Path:
    """Write the interactive page of a study into a folder, and return its path."""
    from bsweep.report.document import document  # pandas: every process of the tests imports this
    from bsweep.report.interactive import html_of

    path = folder / "page.html"
    path.write_text(html_of(document(study)), encoding="utf-8")
    return path


@contextmanager
def opened(
    browser: Any,
    path: Path,
    fragment: str = "",
    awaits: str = "body[data-drawn]",
    **options: Any,
) -> Iterator[Any]:
    """Yield a page that has drawn itself; afterwards fail if it logged anything or asked for
    anything beyond its own file.

    Args:
        browser: The browser.
        path: The file.
        fragment: What follows `#` in the page's address.
        awaits: The selector of what the page has once it has drawn itself.
        options: Of the page, such as its color scheme.
    """
    said: list[str] = []
    page = browser.new_page(**({"viewport": {"width": 1280, "height": 800}} | options))
    page.set_default_timeout(_WAIT_MS)
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: said.append(f"request: {request.url}"))
    page.goto(path.as_uri() + (f"#{fragment}" if fragment else ""))
    page.wait_for_selector(awaits)
    yield page
    page.close()
    own = ("request: data:", "request: blob:", f"request: {path.as_uri()}")
    assert [line for line in said if not line.startswith(own)] == []


def drawn(page: Any) -> None:
    """Wait until a page has drawn all that it shows."""
    page.wait_for_selector("body[data-drawn]")


def go(page: Any, **changes: str) -> None:
    """Change the state of a page as its controls do, and wait until all is drawn."""
    page.evaluate("async (changes) => { go(changes); }", changes)
    drawn(page)


def rows(page: Any, chart: str) -> list[dict[str, Any]]:
    """Return the rows that a chart of a page draws, as the chart itself holds them."""
    data: list[dict[str, Any]] = page.evaluate(
        "(name) => charts[name].view.data(charts[name].name)", chart
    )
    return data


def strong(page: Any, chart: str, signal: str = "picked") -> set[str]:
    """Return the names of the cells or runs that stand out in a chart."""
    names = page.evaluate("([chart, signal]) => charts[chart].view.signal(signal)", [chart, signal])
    return {*names} - {""}


def assert_accessible(page: Any) -> None:
    """Assert that axe finds nothing in a page that a person could not read or reach."""
    axe = pytest.importorskip("axe_core_python", reason="no axe-core-python")
    library = Path(axe.__file__).with_name("axe.min.js").read_text()
    page.evaluate(f"() => {{ {library} }}")
    found = page.evaluate("axe.run().then((found) => found.violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
