"""Functions that mkdocs calls while it builds the site; `hooks` in mkdocs.yml names this file."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import urlsplit

import markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LINK_TO_DOCS = re.compile(r"\]\((?:\.\./)*docs/")


class ShortIndents(Extension):  # type: ignore[misc] # which has no types
    """Two blanks begin a nested list, as on GitHub; Python-Markdown by itself asks for four."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        md.tab_length = 2
        md.build_parser()  # the parts of the parser have read `tab_length` already


def on_config(config: MkDocsConfig) -> None:
    """Put `ShortIndents` first, because it makes the parser anew."""
    config.markdown_extensions.insert(0, ShortIndents())


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the files outside docs/ that pages link to, and those that these link to in turn.

    Their source is `../PATH`, so that the links are valid as they stand. Their place in the site is
    `repository/PATH`.
    """
    pages = list(files.documentation_pages())
    for page in pages:
        for target in _LINK.findall(page.content_string):
            source = normpath(join(dirname(page.src_uri), urlsplit(target).path))
            is_outside = source.startswith("../") and not source.startswith("../docs/")
            if (
                is_outside
                and Path(config.docs_dir, source).is_file()
                and files.get_file_from_path(source) is None
            ):
                added = _outside(source, config)
                files.append(added)
                if added.is_documentation_page():
                    pages.append(added)


def _outside(source: str, config: MkDocsConfig) -> File:
    """Return the file of the site for `../PATH`."""
    within = source.replace("..", "repository", 1)
    place = File(within, None, config.site_dir, config.use_directory_urls).dest_uri
    return File(
        source,
        config.docs_dir,
        config.site_dir,
        config.use_directory_urls,
        dest_uri=place,
        inclusion=InclusionLevel.NOT_IN_NAV,
    )


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text; outside docs/, links to docs/PAGE become `/PAGE`."""
    return _LINK_TO_DOCS.sub("](/", text) if page.file.src_uri.startswith("../") else text
