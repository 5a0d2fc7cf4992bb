"""The documentation as a site."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

import pytest

import bsweep
from bsweep import analysis, plots
from tests.support.running import ROOT, captured

pytestmark = pytest.mark.full

DOCS = ROOT / "docs"
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href"}  # by a browser, unasked


class Html(HTMLParser):
    """The ids of a page, its links, and the addresses that a browser fetches to show the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if address := values.get(FETCHED.get(tag, ""), ""):
            self.fetched.append(address)


Site = dict[str, Html]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, as scripts/docs.sh builds it."""
    folder = tmp_path_factory.mktemp("site")
    words = [str(ROOT / "scripts/docs.sh"), "--site-dir", str(folder)]
    assert "WARNING" not in captured(words, 0).stderr
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Site:
    """The pages of the site by their paths in its folder."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*.html")}
    names = [name for name in paths if name != "404.html" and not name.endswith("report.html")]
    return {name: Html(paths[name].read_text(encoding="utf-8")) for name in names}


def broken(site: Site, folder: Path) -> Iterator[str]:
    """Yield the links and addresses within the site that lead nowhere."""
    for name, html in site.items():
        for address in (*html.links, *html.fetched):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = normpath(join(dirname(name), unquote(parts.path))) if parts.path else name
            anchor = unquote(parts.fragment)
            ids = site[target].ids if target in site else {anchor}
            if not (folder / target).is_file() or (anchor and anchor not in ids):
                yield f"{name}: {address}"


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Site, folder: Path) -> None:
    assert len(site) > len([*DOCS.rglob("*.md")])
    assert [*broken(site, folder)] == []


def test_the_site_fetches_nothing_from_other_hosts(site: Site) -> None:
    fetched = {address for html in site.values() for address in html.fetched}
    assert [address for address in sorted(fetched) if urlsplit(address).netloc] == []
    assert any(address.endswith("iframe-worker.js") for address in fetched)


def test_the_reference_has_all_that_is_exported(site: Site) -> None:
    said = {name for html in site.values() for name in html.ids}
    modules = {"__version__", "analysis", "plots", "report"}
    names = {f"bsweep.{name}" for name in set(bsweep.__all__) - modules}
    tables = {name for name, value in vars(analysis).items() if callable(value)}
    elsewhere = {"compare", "load", "predict", "simulate"}  # These are of bsweep, too.
    names |= {f"bsweep.analysis.{name}" for name in tables - elsewhere}
    assert names - said == set()
    figures = (DOCS / "api/index.md").read_text()
    assert [name for name in plots.FIGURES if f"| `{name}` |" not in figures] == []
