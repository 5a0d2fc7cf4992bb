"""The frame of every page: one HTML file, which loads nothing from elsewhere, and lists of lines.

The content security policy of a page allows its own scripts and style by their digests, images
within the page, and nothing else: no other script, no `eval`, no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from string import Template

_STATIC = Path(__file__).parent / "static"
_MAX_LINES = 4  # in a list; the others are folded away


@cache
def static(name: str) -> str:
    """Return the text of a file that pages are made of, such as `page.css`."""
    return (_STATIC / name).read_text("utf-8")


def page(title: str, body: str, scripts: Sequence[str] = (), is_live: bool = False) -> str:
    """Return the HTML of a page.

    Args:
        title: The title, as text.
        body: What is on the page, as HTML.
        scripts: The scripts to run after it.
        is_live: Allow the scripts to ask the server that the page is from.
    """
    style = static("page.css")
    policy = [
        "default-src 'none'",
        *[f"script-src {' '.join(map(_digest, scripts))}"] * bool(scripts),
        f"style-src {_digest(style)}",
        *["connect-src 'self'"] * is_live,
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return _PAGE.substitute(
        policy="; ".join(policy),
        title=html.escape(title),
        style=style,
        body=body,
        scripts="".join(f"<script>{script}</script>\n" for script in scripts),
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def headlines(lines: Iterable[str]) -> str:
    """Return lines as the paragraphs that a page begins with."""
    return "\n".join(f"<p class=headline>{html.escape(line)}</p>" for line in lines)


def as_list(title: str, lines: Sequence[str], kind: str) -> str:
    """Return an HTML section with a title and a list of lines; an empty text if there are no lines.

    The lines after the fourth are folded away.
    """
    items = [f"<li>{html.escape(line)}</li>" for line in lines]
    shown, rest = "".join(items[:_MAX_LINES]), "".join(items[_MAX_LINES:])
    more = (
        f"<details><summary>{len(lines) - _MAX_LINES} more</summary><ul>{rest}</ul></details>"
        if rest
        else ""
    )
    head = f"<section class={kind}><h2>{html.escape(title)}</h2>"
    return f"{head}<ul>{shown}</ul>{more}</section>" if lines else ""


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style></head><body>
$body
$scripts</body></html>
""")
