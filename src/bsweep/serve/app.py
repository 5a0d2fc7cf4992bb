"""The application that shows studies: an index, a page for each study, and their events."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from bsweep.analysis import load
from bsweep.core.words import escaped
from bsweep.report.document import curve_of
from bsweep.report.document import document as document_of
from bsweep.report.interactive import html_of
from bsweep.report.page import static
from bsweep.study.watching import Watched

_LOOK_SECONDS = 1.5  # between two looks at a study; a new record is shown at most this much later
_RELOAD_SECONDS = 5.0  # after which a reader who loads a page gets a new document
_SILENT_SECONDS = 15.0  # after which a comment keeps a connection open
_FILES = Path(__file__).parent
_KINDS = {
    "texts.js": "text/javascript", "news.js": "text/javascript", "watch.js": "text/javascript",
    "watch.css": "text/css",
}  # fmt: skip
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - bsweep watch</title>
<link rel="stylesheet" href="{root}/watch.css">
<script src="{root}/texts.js" defer></script><script src="{root}/news.js" defer></script>
<script src="{root}/watch.js" defer></script></head>
<body data-kind="{kind}" data-events="{events}"><main>
<h1>{title}</h1>{body}
</main></body></html>
"""
_NO_REPORT = '<p><span data-words="no_report">There is no report yet:</span> {}</p>'
_COLUMNS = ("point", "point_state", "epochs", "test_accuracy", "test_loss", "time_left")
_POINTS = f"""<p id="said" role="status"></p><progress id="done"></progress><div class="wide">
<table><caption id="shown"></caption><thead><tr>{
    "".join(f'<th scope="col" data-words="{name}"></th>' for name in _COLUMNS)
}</tr></thead><tbody id="points"></tbody></table></div>
<p><a href="../" data-words="report">Report</a></p>"""


class Feed:
    """A study that several readers follow, and at which one of them looks for all."""

    def __init__(self, name: str, folder: Path, *, mix: bool, beside: bool) -> None:
        self.name, self.watched, self._mix, self._beside = name, Watched(folder), mix, beside
        self.document: dict[str, Any] = {}
        self.document_version = -1  # the version of the study that the document shows
        self.problem = ""  # why there is no newer document
        self._lock, self._looked = asyncio.Lock(), time.monotonic()
        self._making, self._tried = asyncio.Lock(), -1
        self._made, self._cost = -math.inf, 0.0
        self._reading = asyncio.Lock()
        self._curves: dict[str, tuple[object, int, object]] = {}

    async def look(self) -> None:
        """Look at the study, unless another reader has just done so."""
        async with self._lock:
            if time.monotonic() - self._looked >= _LOOK_SECONDS / 2:
                await asyncio.to_thread(self.watched.look)
                self._looked = time.monotonic()

    def news(self, version: int) -> dict[str, Any]:
        """Return what a reader who knows the study as of `version` lacks, see `Watched.news`."""
        return {**self.watched.news(version), "study": self.name}

    async def curves(self, run_ids: Sequence[str], version: int) -> dict[str, object]:
        """Return the curves of those of the runs that were evaluated, finished an epoch, or ended
        since `version`.
        """
        async with self._reading:
            await asyncio.to_thread(self._read_curves, run_ids)
        found = {run_id: self._curves[run_id] for run_id in run_ids}
        return {run_id: curve for run_id, (_, at, curve) in found.items() if curve and at > version}

    def _read_curves(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            state = self.watched.state(run_id)
            key = (state.status, state.whole_epochs, state.test_accuracy, state.test_loss)
            if run_id in self._curves and self._curves[run_id][0] == key:
                continue
            curve = None
            with suppress(ValueError, OSError):  # its state says so
                curve = curve_of(self.watched.folder / run_id, beside=self._beside)
            self._curves[run_id] = (key, self.watched.version, curve)

    async def renew(self, seconds: float) -> None:
        """Make the document of the interactive page anew if the study has changed since and the
        last attempt is at least so many seconds old.
        """
        async with self._making:
            version = self.watched.version
            began = time.monotonic()
            if version == self._tried or began - self._made < seconds:
                return
            self._tried = version
            try:
                made = await asyncio.to_thread(self._new_document)
                self.document = {**made, "version": version}
                self.document_version, self.problem = version, ""
            except (ValueError, OSError) as error:
                self.problem = str(error)
            self._made, self._cost = time.monotonic(), time.monotonic() - began

    def _new_document(self) -> dict[str, Any]:
        return document_of(load(self.watched.folder, mix=self._mix, beside=self._beside))

    @property
    def pause(self) -> float:
        """The seconds between two documents that nobody has asked for, so that they take a
        hundredth of a core.
        """
        return max(_LOOK_SECONDS, 100 * self._cost)


class Pages:
    """The pages that the server answers with: an index of the studies, and for each study its
    interactive page, its points, their events, and all of it as JSON. All paths begin with a token.
    """

    def __init__(
        self,
        studies: Sequence[Path],
        token: str,
        is_ending: Callable[[], bool],
        *,
        mix: bool,
        beside: bool,
    ) -> None:
        """Look at the studies for the first time.

        Args:
            studies: The studies' folders.
            token: The first part of each path.
            is_ending: A function that returns True when the server ends, so that open connections
                end.
            mix: See `bsweep.load`.
            beside: See `bsweep.load`.

        Raises:
            ValueError: If a folder holds no study.
        """
        self._feeds: dict[str, Feed] = {}
        for folder in studies:
            name, number = escaped(folder.resolve().name), 1
            while (called := f"{name} ({number})" if number > 1 else name) in self._feeds:
                number += 1
            self._feeds[called] = Feed(called, folder, mix=mix, beside=beside)
        self._root, self._is_ending = f"/{token}", is_ending

    def application(self) -> Starlette:
        root, of_study = self._root, f"{self._root}/studies/{{name}}"
        return Starlette(
            routes=[
                Route(f"{root}/", self._index),
                Route(f"{root}/events", self._all_events),
                Route(f"{root}/{{file}}", _file),
                Route(f"{of_study}/", self._study),
                Route(f"{of_study}/points/", self._points),
                Route(f"{of_study}/document.json", self._document),
                Route(f"{of_study}/events", self._events),
                Route(f"{of_study}/status.json", self._status),
            ]
        )

    def _feed(self, request: Request) -> Feed:
        try:
            return self._feeds[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404, "There is no such study here.") from None

    async def _index(self, _: Request) -> Response:
        items = "".join(
            f'<li><a href="{self._root}/studies/{quote(name)}/">{_shown(name)}</a> '
            f'(<a href="{self._root}/studies/{quote(name)}/points/" data-words="points">points</a>)'
            f'<p data-study="{_shown(name)}"></p></li>'
            for name in self._feeds
        )
        body = f'<p id="said" role="status"></p><ul>{items}</ul>'
        return _page("bsweep", "index", body, self._root, "events")

    async def _study(self, request: Request) -> Response:
        feed = self._feed(request)
        await feed.look()
        await feed.renew(_RELOAD_SECONDS)
        if not feed.document:
            body = _NO_REPORT.format(_shown(feed.problem)) + _POINTS
            return _page(feed.name, "points", body, self._root, "events")
        live = "".join((_FILES / name).read_text("utf-8") for name in ("news.js", "live.js"))
        return HTMLResponse(await asyncio.to_thread(html_of, feed.document, "", live))

    async def _points(self, request: Request) -> Response:
        return _page(self._feed(request).name, "points", _POINTS, self._root, "../events")

    async def _document(self, request: Request) -> Response:
        told = orjson.dumps(self._feed(request).document)
        return Response(told, media_type="application/json")

    async def _status(self, request: Request) -> Response:
        feed = self._feed(request)
        await feed.look()
        return Response(json.dumps(feed.news(-1)), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        feed = self._feed(request)
        shown = feed if "report" in request.query_params else None
        known = request.headers.get("last-event-id") or request.query_params.get("report") or "-1"
        if not re.fullmatch(r"-?[0-9]{1,15}", known):
            raise HTTPException(400, f"{known} is no version of a study.")
        news = _news([feed], self._is_ending, shown, int(known))
        return StreamingResponse(news, media_type="text/event-stream")

    async def _all_events(self, _: Request) -> Response:
        news = _news([*self._feeds.values()], self._is_ending, with_points=False)
        return StreamingResponse(news, media_type="text/event-stream")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in _KINDS:
        raise HTTPException(404)
    text = static(name) if name == "texts.js" else (_FILES / name).read_text("utf-8")
    return Response(text, media_type=_KINDS[name])


def _page(title: str, kind: str, body: str, root: str, events: str) -> Response:
    text = _PAGE.format(title=_shown(title), kind=kind, body=body, root=root, events=events)
    return HTMLResponse(text, headers={"content-security-policy": _POLICY})


def _shown(text: str) -> str:
    return html.escape(escaped(text))


async def _news(
    feeds: Sequence[Feed],
    is_ending: Callable[[], bool],
    shown: Feed | None = None,
    known: int = -1,
    *,
    with_points: bool = True,
) -> AsyncIterator[str]:
    """Yield server-sent events: `news` of each study, first what has changed since the version that
    the reader knows, and then what changes. For an interactive page also `curves` of runs that
    were evaluated or finished an epoch, and `document`, the version of the page's document and why
    there is no newer one, first and when it changes.

    News has its version as its id, which a browser sends when it connects again.

    Args:
        feeds: The studies.
        is_ending: A function that returns True when this is to end.
        shown: The study whose interactive page is shown, if one is.
        known: The version of the study that the reader knows; -1 for none.
        with_points: Tell which points have changed, too.
    """
    seen = dict.fromkeys((feed.name for feed in feeds), known)
    told: set[str] = set()  # the studies of which there was news
    said_at = time.monotonic()
    document: dict[str, Any] = {}
    renewing: asyncio.Task[None] | None = None
    while not is_ending():
        for feed in feeds:
            await feed.look()
            before = seen[feed.name]
            if feed.watched.version > before or feed.name not in told:
                told.add(feed.name)
                news = feed.news(before)
                names = [point["run_id"] for point in news["points"]]
                if not with_points:
                    del news["points"], news["gone"]
                yield _event("news", news, news["version"] if with_points else None)
                seen[feed.name], said_at = news["version"], time.monotonic()
                if shown and before >= 0 and (curves := await feed.curves(names, before)):
                    yield _event("curves", curves)
        if shown:
            if renewing is None or renewing.done():
                renewing = asyncio.create_task(shown.renew(shown.pause))
            if (now := {"version": shown.document_version, "problem": shown.problem}) != document:
                document = now
                yield _event("document", document)
        if time.monotonic() - said_at >= _SILENT_SECONDS:
            yield ": still here\n\n"
            said_at = time.monotonic()
        await asyncio.sleep(_LOOK_SECONDS)


def _event(name: str, data: object, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
