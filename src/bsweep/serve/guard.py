"""The check of each request before anything is answered: its host, its origin, its token and its
method.

A web page of somebody else can make a browser send requests to this machine. The check of the Host
header stops pages that give this machine's address a name of their own (DNS rebinding), and that of
the Origin header stops scripts of other pages. The token stops other users of this machine.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",  # beside the policy within a page
    "referrer-policy": "no-referrer",  # an address has the token
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI application that passes on only what may be answered by another one."""

    def __init__(
        self, app: ASGIApp, token: str, port: int, names: Collection[str], *, is_open: bool
    ) -> None:
        """Guard an application.

        Args:
            app: The application, all of whose paths begin with the token.
            token: The first part of the path.
            port: The port at which the server listens.
            names: The names by which a browser may call this machine, in lower case.
            is_open: True if other machines may ask, too. Then a browser may also call this machine
                by any address, which no web page can choose as it can choose a name.
        """
        self._app, self._token, self._port = app, token, port
        self._names, self._is_open = names, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403 or 405."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if refusal := self._refusal(scope):
            status, why = refusal
            allow = {"allow": "GET"} if status == 405 else None
            app = PlainTextResponse(f"{why}\n", status, allow)
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_known(host):
            return 403, (
                f"This server is not known as {host} (Host). Open the address that `bsweep watch` "
                "printed, or start it with --host and the name that you want to type."
            )
        if origin is not None and origin != f"http://{host}":
            return 403, "Pages of other servers are not answered (Origin)."
        given = scope["path"].split("/")[1]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 403, "The address has no valid token. `bsweep watch` prints the whole address."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only shows: GET."
        return None

    def _is_known(self, host: str) -> bool:
        """Return True if a Host header names this machine and the port of the server."""
        with suppress(ValueError):
            parts = urlsplit(f"//{host}")
            if (parts.port or 80) != self._port or parts.hostname is None:
                return False
            if parts.hostname in self._names:
                return True
            address = ipaddress.ip_address(parts.hostname)
            return self._is_open or address.is_loopback
        return False
