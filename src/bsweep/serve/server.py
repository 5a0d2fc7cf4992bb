"""The server of a study's pages: its addresses, and its run until it is interrupted."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import uvicorn

from bsweep.serve.app import Pages
from bsweep.serve.guard import Guard


def serve(
    study: Path,
    host: str,
    port: int,
    announce: Callable[[Sequence[str], bool], None],
    *,
    mix: bool = False,
    beside: bool = False,
) -> None:
    """Serve the pages of a study until the process is interrupted.

    Args:
        study: The study's folder.
        host: The address at which to listen, or a name of it.
        port: The port; 0 takes a free one.
        announce: A function that is called once requests are accepted. It gets the addresses to
            type, token included, and True if other machines reach the server.
        mix: See `bsweep.load`.
        beside: See `bsweep.load`.

    Raises:
        ValueError: If the folder holds no study, or the address or port cannot be had.
        KeyboardInterrupt: When the process is interrupted, after all connections have ended.
    """
    token = secrets.token_urlsafe(16)
    server: uvicorn.Server
    pages = Pages(study, token, lambda: server.should_exit, mix=mix, beside=beside)
    app = pages.application()
    with _listening(host, port) as listening:
        own = ipaddress.ip_address(listening.getsockname()[0])
        port, is_open = listening.getsockname()[1], not own.is_loopback
        names = {"localhost", host.lower(), *(_own_names() if is_open else ())}
        guard = Guard(app, token, port, names, is_open=is_open)
        server = uvicorn.Server(
            uvicorn.Config(
                guard, log_level="critical", access_log=False, server_header=False, ws="none",
                lifespan="off", timeout_graceful_shutdown=3,
            )
        )  # fmt: skip
        hosts = _own_addresses(own.version) if own.is_unspecified else [host]
        hosts = [f"[{host}]" if ":" in host else host for host in hosts]
        announce([f"http://{host}:{port}/{token}/" for host in hosts], is_open)
        server.run(sockets=[listening])


def _own_names() -> set[str]:
    """Return the names that this machine gives itself; a name server may be asked."""
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def _own_addresses(version: int) -> list[str]:
    """Return the addresses by which this machine is reached, those that others reach first."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    addresses = [
        ipaddress.ip_address(address.address)
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == family and "%" not in address.address  # a link's own address
    ]
    return [str(address) for address in sorted(addresses, key=lambda a: a.is_loopback)]


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port, *address[2:]), family=family)
    except OverflowError:
        raise ValueError(f"--port {port}: give a port from 0 to 65535.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"--port {port}: another program uses this port of {host}. Give another one, or "
                "--port 0 for any that is free."
            ) from None
        raise ValueError(f"--host {host}, --port {port}: {error.strerror}.") from None
