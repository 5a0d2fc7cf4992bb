"""The application that shows a study: its interactive page, its points, and its events."""

from __future__ import annotations

import asyncio
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
from bsweep.report.page import page, static
from bsweep.study import overview
from bsweep.study.watching import Watched

_LOOK_SECONDS = 1.5  # between two looks at a study; a new record is shown at most this much later
_SILENT_SECONDS = 15.0  # after which a connection gets a sign of life, which shows whether it lives
_RELOAD_SECONDS = 5.0  # after which a reader who loads a page gets a new document
_HEADS = ("point", "state", "epochs", "test accuracy", "test loss", "time left")
_SCRIPT = Path(__file__).with_name("live.js")


class Feed:
    """A study that several readers follow, and at which one of them looks for all."""

    def __init__(self, folder: Path, *, mix: bool, beside: bool) -> None:
        self.watched, self._mix, self._beside = Watched(folder), mix, beside
        self.document: dict[str, Any] = {"version": -1}  # of the study, as the document shows it
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
        known = {run_id: self._curves[run_id] for run_id in run_ids}
        return {
            run_id: curve for run_id, (_, read, curve) in known.items() if curve and read > version
        }

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

    def news(self, version: int) -> dict[str, Any]:
        """Return what a reader who knows the study as of `version` lacks, see `Watched.news`, with
        the words of `bsweep status` on all points.
        """
        watched = self.watched
        words = overview.totals(watched.rows(), watched.estimated_by, len(watched.sweeps))
        if not watched.sweeps:
            words += "; no sweep is at work"
        return {**watched.news(version), "words": watched.problem or f"{words}."}

    async def renew(self, seconds: float) -> None:
        """Make the document of the interactive page anew if the study has changed since and the
        last attempt is at least so many seconds old.
        """
        async with self._making:
            version, began = self.watched.version, time.monotonic()
            if version == self._tried or began - self._made < seconds:
                return
            self._tried = version
            try:
                newer = await asyncio.to_thread(self._new_document)
                self.document, self.problem = {**newer, "version": version}, ""
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
        self._name, self._root, self._is_ending = study.resolve().name, f"/{token}", is_ending

    def application(self) -> Starlette:
        root = self._root
        return Starlette(
            routes=[
                Route(f"{root}/", self._report),
                Route(f"{root}/points/", self._points),
                Route(f"{root}/document.json", self._document),
                Route(f"{root}/events", self._events),
                Route(f"{root}/status.json", self._status),
            ]
        )

    async def _report(self, _: Request) -> Response:
        await self._feed.look()
        await self._feed.renew(_RELOAD_SECONDS)
        if self._feed.document["version"] < 0:
            return self._page(self._feed.problem)
        live = _SCRIPT.read_text("utf-8")
        return HTMLResponse(await asyncio.to_thread(html_of, self._feed.document, "", live))

    async def _points(self, _: Request) -> Response:
        return self._page()

    def _page(self, problem: str = "") -> Response:
        """Return the page of the study's points; `problem` says why there is no report yet."""
        values = {"name": self._name, "problem": problem, "root": self._root, "heads": _HEADS}
        scripts = [static("reader.js") + _SCRIPT.read_text("utf-8")]
        title = f"{self._name} - bsweep watch"
        return HTMLResponse(page("points.html", title, scripts, is_live=True, **values))

    async def _document(self, _: Request) -> Response:
        return Response(orjson.dumps(self._feed.document), media_type="application/json")

    async def _status(self, _: Request) -> Response:
        await self._feed.look()
        return Response(json.dumps(self._feed.news(-1)), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        known = request.headers.get("last-event-id") or request.query_params.get("report") or "-1"
        if not re.fullmatch(r"-?[0-9]{1,15}", known):
            raise HTTPException(400, f"{known} is no version of a study.")
        with_report = "report" in request.query_params
        news = _news(self._feed, self._is_ending, int(known), with_report=with_report)
        return StreamingResponse(news, media_type="text/event-stream")


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
    shown: int | None = None  # the version of the study that the reader was told last
    document: object = None
    told_at = time.monotonic()
    renewing: asyncio.Task[None] | None = None
    while not is_ending():
        await feed.look()
        if feed.watched.version != shown:
            told_at, before, news = time.monotonic(), known, feed.news(known)
            yield _event("news", news, news["version"])
            known = shown = news["version"]
            names = [point["run_id"] for point in news["points"]]
            if with_report and before >= 0 and (curves := await feed.curves(names, before)):
                yield _event("curves", curves)
        if with_report:
            if renewing is None or renewing.done():
                renewing = asyncio.create_task(feed.renew(feed.pause))
            newer = {"version": feed.document["version"], "problem": feed.problem}
            if newer != document:
                document = newer
                yield _event("document", document)
        if time.monotonic() - told_at >= _SILENT_SECONDS:
            told_at = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_SECONDS)


def _event(name: str, data: object, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
