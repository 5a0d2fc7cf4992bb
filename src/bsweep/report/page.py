"""The frame of every page: one HTML file, which loads nothing from elsewhere.

Pages are made from the templates beside this module, which escape every text. The content security
policy of a page allows its own scripts and style by their digests, images within the page, and
nothing else: no other script, no `eval`, no request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
TEMPLATES.globals |= {"max_rows": 300, "max_lines": 4}  # of a table; of a list


@cache
def static(*names: str) -> str:
    """Return the text of one or several files that pages are made of, such as `page.css`."""
    return "".join((_FOLDER / "static" / name).read_text("utf-8") for name in names)


def html_from(template: str, **values: Any) -> str:
    """Return the HTML of a template, in which texts among the values are escaped."""
    return TEMPLATES.get_template(template).render(values)


def page(
    template: str, title: str, scripts: Sequence[str] = (), *, is_live: bool = False, **values: Any
) -> str:
    """Return the HTML of a page.

    Args:
        template: The name of the template that fills the frame.
        title: The title of the browser's window.
        scripts: The scripts to run after it.
        is_live: Allow the scripts to ask the server that the page is from.
        values: Further values of the template.
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
    frame = {"title": title, "policy": "; ".join(policy), "style": style, "scripts": scripts}
    return html_from(template, is_live=is_live, **frame, **values)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
