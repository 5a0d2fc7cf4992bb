"""A page in a real browser, for tests: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_WAIT_MS = 60_000


@contextmanager
def opened(
    path: Path, fragment: str = "", size: tuple[int, int] = (1280, 800), **options: Any
) -> Iterator[Any]:
    """Yield a page that has drawn itself; afterwards fail if it logged anything or asked for
    anything beyond its own file.

    Skip the test where there is no chromium or no Playwright; `scripts/test.sh` says so.
    """
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    said: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, **options)
        page.set_default_timeout(_WAIT_MS)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: None
            if request.url.startswith((path.as_uri(), "data:", "blob:"))
            else said.append(f"request: {request.url}"),
        )
        page.goto(path.as_uri() + (f"#{fragment}" if fragment else ""))
        drawn(page)
        yield page
        browser.close()
    assert said == []


def drawn(page: Any) -> None:
    """Wait until a page has drawn all that it shows."""
    page.wait_for_selector("body[data-drawn]")


def go(page: Any, **changes: str) -> None:
    """Change the state of a page as its controls do, and wait until all is drawn."""
    page.evaluate("async (changes) => { go(changes); }", changes)
    drawn(page)


def rows(page: Any, chart: str) -> list[dict[str, Any]]:
    """Return the rows that a chart of a page draws, as the chart itself holds them."""
    found: list[dict[str, Any]] = page.evaluate(
        "(name) => charts[name].view.data(charts[name].name)", chart
    )
    return found
