"""The application that shows studies: an index, a page for each study, and their events."""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from bsweep.core.words import escaped
from bsweep.study.watching import Watched

_LOOK_SECONDS = 1.0  # between two looks at a study; a new record is shown at most this much later
_SILENT_SECONDS = 15.0  # after which a comment keeps a connection open
_FILES = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - bsweep watch</title>
<link rel="stylesheet" href="{root}/watch.css">
<script src="{root}/watch.js" defer></script></head>
<body data-kind="{kind}" data-root="{root}"><main>
<h1>{title}</h1>{body}
</main></body></html>
"""
_STUDY = """<p id="said" role="status">Loading ...</p><progress id="done" aria-label="Points done">
</progress><div class="wide"><table><caption id="shown"></caption><thead><tr><th scope="col">point
</th><th scope="col">state</th><th scope="col">epochs</th><th scope="col">test accuracy</th>
<th scope="col">test loss</th><th scope="col">time left</th></tr></thead>
<tbody id="points"></tbody></table></div><p><a href="{root}/">All studies</a></p>"""


class Feed:
    """A study that several readers follow, and at which one of them looks for all."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.watched = name, Watched(folder)
        self._lock, self._looked = asyncio.Lock(), time.monotonic()

    async def look(self) -> None:
        """Look at the study, unless another reader has just done so."""
        async with self._lock:
            if time.monotonic() - self._looked >= _LOOK_SECONDS / 2:
                await asyncio.to_thread(self.watched.look)
                self._looked = time.monotonic()


def application(
    studies: Sequence[Path], token: str, is_ending: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application that shows studies, all of whose paths begin with a token.

    Args:
        studies: The studies' folders.
        token: The first part of each path.
        is_ending: A function that returns True when the server ends, so that open connections end.

    Raises:
        ValueError: If a folder holds no study.
    """
    names: list[str] = []
    for folder in studies:
        name = folder.resolve().name
        again = sum(one == name or one.startswith(f"{name} (") for one in names)
        names.append(f"{name} ({again + 1})" if again else name)
    feeds = {name: Feed(name, folder) for name, folder in zip(names, studies, strict=True)}
    root = f"/{token}"

    def feed_of(request: Request) -> Feed:
        try:
            return feeds[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404, "There is no such study here.") from None

    async def index(_: Request) -> Response:
        items = "".join(
            f'<li><a href="{root}/studies/{quote(name)}/">{_shown(name)}</a>'
            f'<p data-study="{_shown(name)}"></p></li>'
            for name in feeds
        )
        return _page("bsweep", "index", f"<ul>{items}</ul>", root)

    async def study(request: Request) -> Response:
        return _page(feed_of(request).name, "study", _STUDY.format(root=root), root)

    async def status(request: Request) -> Response:
        feed = feed_of(request)
        await feed.look()
        return Response(json.dumps(feed.watched.news(-1)), media_type="application/json")

    async def events(request: Request) -> Response:
        news = _news([feed_of(request)], True, is_ending)
        return StreamingResponse(news, media_type="text/event-stream")

    async def all_events(_: Request) -> Response:
        news = _news([*feeds.values()], False, is_ending)
        return StreamingResponse(news, media_type="text/event-stream")

    def file(name: str, kind: str) -> Route:
        async def content(_: Request) -> Response:
            return Response((_FILES / name).read_bytes(), media_type=kind)

        return Route(f"{root}/{name}", content)

    of_study = f"{root}/studies/{{name}}"
    return Starlette(
        routes=[
            Route(f"{root}/", index),
            Route(f"{root}/events", all_events),
            file("watch.js", "text/javascript"),
            file("watch.css", "text/css"),
            Route(f"{of_study}/", study),
            Route(f"{of_study}/events", events),
            Route(f"{of_study}/status.json", status),
        ]
    )


def _page(title: str, kind: str, body: str, root: str) -> Response:
    text = _PAGE.format(title=_shown(title), kind=kind, body=body, root=root)
    return HTMLResponse(text, headers={"content-security-policy": _POLICY})


def _shown(name: str) -> str:
    return html.escape(escaped(name))


async def _news(
    feeds: Sequence[Feed], with_points: bool, is_ending: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield server-sent events: all of each study first, and then what changes in it.

    Args:
        feeds: The studies.
        with_points: Tell which points have changed, too.
        is_ending: A function that returns True when this is to end.
    """
    seen = dict.fromkeys((feed.name for feed in feeds), -1)
    said_at = time.monotonic()
    while not is_ending():
        for feed in feeds:
            await feed.look()
            if feed.watched.version > seen[feed.name]:
                news: dict[str, Any] = {**feed.watched.news(seen[feed.name]), "study": feed.name}
                if not with_points:
                    del news["points"], news["gone"]
                yield f"event: news\ndata: {json.dumps(news)}\n\n"
                seen[feed.name], said_at = news["version"], time.monotonic()
        if time.monotonic() - said_at >= _SILENT_SECONDS:
            yield ": still here\n\n"
            said_at = time.monotonic()
        await asyncio.sleep(_LOOK_SECONDS)
