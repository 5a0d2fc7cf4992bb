"""The interactive page of a study.

It is a document (`bsweep.report.document`), the scripts that draw it, and the static part of a
report below. The document is compressed, and the scripts put its texts on the page as texts only.
Where scripts are not run, the answer and the warnings stand on the page as text.
"""

from __future__ import annotations

import base64
import zlib

import orjson

from bsweep.report.document import Document
from bsweep.report.page import page, static

_LEVEL = 6  # of the compression


def html_of(document: Document, below: str = "", live: str = "") -> str:
    """Return the HTML of the interactive page of a study.

    Args:
        document: What `bsweep.report.document.document` returns.
        below: HTML to fold away at the end of the page.
        live: A script to run after the page's own ones, which may ask the server of the page.

    Returns:
        The whole page.
    """
    return page(
        "report.html",
        f"{document['name']} - bsweep report",
        [static("vega.min.js"), static("reader.js", "page.js"), *[live] * bool(live)],
        is_live=bool(live),
        name=document["name"],
        answer=[*document["why"], *document["missing"]],
        warnings=document["warnings"],
        data=base64.b64encode(zlib.compress(orjson.dumps(document), _LEVEL)).decode(),
        below=below,
    )
