"""The server of studies' pages: its address, and its run until it is interrupted."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from bsweep.serve.app import Pages
from bsweep.serve.guard import Guard


def serve(studies: Sequence[Path], host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the pages of studies until the process is interrupted.

    Args:
        studies: The studies' folders.
        host: The address at which to listen.
        port: The port; 0 takes a free one.
        announce: A function that is called with the address of the index, token included, once
            requests are answered.

    Raises:
        ValueError: If a folder holds no study, or the address or port cannot be had.
        KeyboardInterrupt: When the process is interrupted, after all connections have ended.
    """
    token = secrets.token_urlsafe(16)
    server: uvicorn.Server
    app = Pages(studies, token, is_ending=lambda: server.should_exit).application()
    with _listening(host, port) as listening:
        port = listening.getsockname()[1]
        guard = Guard(app, token, port, is_open=not is_loopback(host))
        options = {"log_level": "critical", "access_log": False, "server_header": False}
        server = _Server(uvicorn.Config(guard, **options, timeout_graceful_shutdown=3))  # type: ignore[arg-type]
        shown = f"[{host}]" if ":" in host else host
        server.says = lambda: announce(f"http://{shown}:{port}/{token}/")
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    says: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.says()


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address or a name of a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OverflowError:
        raise ValueError(f"--port {port}: give a port from 0 to 65535.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"--port {port}: another program uses this port of {host}. Give another one, or "
                "--port 0 for any that is free."
            ) from None
        raise ValueError(f"--host {host}, --port {port}: {error.strerror}.") from None
