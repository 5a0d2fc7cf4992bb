"""The check of each request before anything is answered: its host, its origin, its token and its
method.

A web page of somebody else can make a browser send requests to this machine. The check of the Host
header stops pages that give this machine's address a name of their own (DNS rebinding), and that of
the Origin header stops scripts of other pages. The token stops other users of this machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",  # beside the page's own policy
    "referrer-policy": "no-referrer",  # an address has the token
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI application that passes on only what may be answered by another one."""

    def __init__(self, app: ASGIApp, token: str, port: int, *, is_open: bool) -> None:
        """Guard an application.

        Args:
            app: The application, all of whose paths begin with the token.
            token: The first part of the path.
            port: The port at which the server listens.
            is_open: True if other machines may ask, too.
        """
        self._app, self._token, self._port, self._is_open = app, token, port, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403 or 405."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", [])
                assert isinstance(given, list)
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*given, *more]}
            await send(message)

        refusal = self._refusal(scope)
        app: ASGIApp = self._app
        if refusal:
            status, why = refusal
            allow = {"allow": "GET"} if status == 405 else None
            app = PlainTextResponse(f"{why}\n", status, allow)
        await app(scope, receive, send_with_headers)  # type: ignore[arg-type]

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_known(host):
            return 403, "This server is not known by that name (Host)."
        if origin is not None and origin != f"http://{host}":
            return 403, "Pages of other servers are not answered (Origin)."
        given = scope["path"].split("/")[1]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 403, "The address has no valid token. `bsweep watch` prints the whole address."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This server only shows: GET."
        return None

    def _is_known(self, host: str) -> bool:
        """Return True if a Host header names this machine by an address or by its own name."""
        with suppress(ValueError):
            parts = urlsplit(f"//{host}")
            if parts.port != self._port or parts.hostname is None:
                return False
            if parts.hostname == "localhost":
                return True
            own_names = {socket.gethostname().lower(), socket.getfqdn().lower()}
            if self._is_open and parts.hostname in own_names:
                return True
            address = ipaddress.ip_address(parts.hostname)
            return self._is_open or address.is_loopback
        return False
