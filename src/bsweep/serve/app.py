"""The application that shows a study: its interactive page, its points, and its events."""

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

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from bsweep.analysis import load
from bsweep.report.document import curve_of
from bsweep.report.document import document as document_of
from bsweep.report.interactive import html_of
from bsweep.study.watching import Watched

_LOOK_SECONDS = 1.5  # between two looks at a study; a new record is shown at most this much later
_RELOAD_SECONDS = 5.0  # after which a reader who loads a page gets a new document
_SILENT_SECONDS = 15.0  # after which a comment keeps a connection open
_FILES = Path(__file__).parent
_KINDS = {"news.js": "text/javascript", "watch.js": "text/javascript", "watch.css": "text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_COLUMNS = ("point", "state", "epochs", "test accuracy", "test loss", "time left")
_HEADS = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}} - bsweep watch</title>
<link rel="stylesheet" href="{{root}}/watch.css">
<script src="{{root}}/news.js" defer></script><script src="{{root}}/watch.js" defer></script></head>
<body data-events="{{root}}/events"><main>
<h1>{{title}}</h1>{{above}}
<p id="said" role="status"></p><progress id="done" aria-label="Points done"></progress>
<div class="wide"><table><caption id="shown"></caption><thead><tr>{_HEADS}</tr></thead>
<tbody id="points"></tbody></table></div>
<p><a href="{{root}}/">Report</a></p>
</main></body></html>
"""
_NO_REPORT = "<p>There is no report yet: {}</p>"


class Feed:
    """A study that several readers follow, and at which one of them looks for all."""

    def __init__(self, folder: Path, *, mix: bool, beside: bool) -> None:
        self.watched, self._mix, self._beside = Watched(folder), mix, beside
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
    """The pages that the server answers with: the interactive page of the study, its points, its
    events, and all of it as JSON. All paths begin with a token.
    """

    def __init__(
        self, study: Path, token: str, is_ending: Callable[[], bool], *, mix: bool, beside: bool
    ) -> None:
        """Look at the study for the first time.

        Args:
            study: The study's folder.
            token: The first part of each path.
            is_ending: A function that returns True when the server ends, so that open connections
                end.
            mix: See `bsweep.load`.
            beside: See `bsweep.load`.

        Raises:
            ValueError: If the folder holds no study.
        """
        self._feed = Feed(study, mix=mix, beside=beside)
        self._name = html.escape(study.resolve().name)
        self._root, self._is_ending = f"/{token}", is_ending

    def application(self) -> Starlette:
        root = self._root
        return Starlette(
            routes=[
                Route(f"{root}/", self._report),
                Route(f"{root}/points/", self._points),
                Route(f"{root}/document.json", self._document),
                Route(f"{root}/events", self._events),
                Route(f"{root}/status.json", self._status),
                Route(f"{root}/{{file}}", _file),
            ]
        )

    async def _report(self, _: Request) -> Response:
        await self._feed.look()
        await self._feed.renew(_RELOAD_SECONDS)
        if not self._feed.document:
            return self._page(_NO_REPORT.format(html.escape(self._feed.problem)))
        live = "".join((_FILES / name).read_text("utf-8") for name in ("news.js", "live.js"))
        return HTMLResponse(await asyncio.to_thread(html_of, self._feed.document, "", live))

    async def _points(self, _: Request) -> Response:
        return self._page()

    def _page(self, above: str = "") -> Response:
        """Return the page of the study's points, below some HTML."""
        text = _PAGE.format(title=self._name, above=above, root=self._root)
        return HTMLResponse(text, headers={"content-security-policy": _POLICY})

    async def _document(self, _: Request) -> Response:
        return Response(orjson.dumps(self._feed.document), media_type="application/json")

    async def _status(self, _: Request) -> Response:
        await self._feed.look()
        return Response(json.dumps(self._feed.watched.news(-1)), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        known = request.headers.get("last-event-id") or request.query_params.get("report") or "-1"
        if not re.fullmatch(r"-?[0-9]{1,15}", known):
            raise HTTPException(400, f"{known} is no version of a study.")
        with_report = "report" in request.query_params
        news = _news(self._feed, self._is_ending, int(known), with_report=with_report)
        return StreamingResponse(news, media_type="text/event-stream")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in _KINDS:
        raise HTTPException(404)
    text = (_FILES / name).read_text("utf-8")
    return Response(text, media_type=_KINDS[name])


async def _news(
    feed: Feed, is_ending: Callable[[], bool], known: int, *, with_report: bool
) -> AsyncIterator[str]:
    """Yield server-sent events: `news` of the study, first what has changed since the version that
    the reader knows, and then what changes. For an interactive page also `curves` of runs that
    were evaluated or finished an epoch, and `document`, the version of the page's document and why
    there is no newer one, first and when it changes.

    News has its version as its id, which a browser sends when it connects again.

    Args:
        feed: The study.
        is_ending: A function that returns True when this is to end.
        known: The version of the study that the reader knows; -1 for none.
        with_report: Tell what an interactive page shows, too.
    """
    is_first, said_at = True, time.monotonic()
    document: dict[str, Any] = {}
    renewing: asyncio.Task[None] | None = None
    while not is_ending():
        await feed.look()
        if feed.watched.version > known or is_first:
            before, news = known, feed.watched.news(known)
            yield _event("news", news, news["version"])
            is_first, known, said_at = False, news["version"], time.monotonic()
            names = [point["run_id"] for point in news["points"]]
            if with_report and before >= 0 and (curves := await feed.curves(names, before)):
                yield _event("curves", curves)
        if with_report:
            if renewing is None or renewing.done():
                renewing = asyncio.create_task(feed.renew(feed.pause))
            if (now := {"version": feed.document_version, "problem": feed.problem}) != document:
                document = now
                yield _event("document", document)
        if time.monotonic() - said_at >= _SILENT_SECONDS:
            yield ": still here\n\n"
            said_at = time.monotonic()
        await asyncio.sleep(_LOOK_SECONDS)


def _event(name: str, data: object, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
