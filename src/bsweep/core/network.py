"""The network interfaces of this machine, and sockets and stores of torch that listen at them."""

from __future__ import annotations

import functools
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from bsweep.core.torch_private import listening_store

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


def interfaces() -> dict[str, str]:
    """Return a mapping from each network interface that is up and has an address to its first IPv4
    address, or to an IPv6 address if it has no IPv4 address. Link-local IPv6 addresses are left
    out.
    """
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    known: dict[str, str] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for name, addresses in psutil.net_if_addrs().items():
            for entry in addresses:
                is_global = "%" not in entry.address  # others are valid within one network only
                if name in up and entry.family == family and is_global:
                    known.setdefault(name, entry.address)
    return known


@functools.cache  # a name server may take seconds
def unresolved_name() -> str:
    """Return a message if this machine's own name resolves to none of its addresses, an empty text
    otherwise. Horovod 0.28.1 listens at that address, and crashes if there is none.
    """
    name = socket.gethostname()
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as listener:
                listener.bind(address)
                return ""
    return (
        f"the machine's own name {name} does not resolve to one of its addresses, which Horovod "
        f"needs: add a line such as `127.0.0.1 {name}` to /etc/hosts (if other hosts train, too, "
        "with the address by which they reach it), or use a strategy without Horovod, such as "
        "strategy=allreduce"
    )


def loopback() -> str | None:
    """Return the name of the interface that only processes of this machine reach; None if there is
    none or it is not up.
    """
    local = (name for name, address in interfaces().items() if address in ("127.0.0.1", "::1"))
    return next(local, None)


def listening(address: str, port: int = 0) -> socket.socket:
    """Return a TCP socket that listens at one address of this machine, or at all of its addresses
    if `address` is empty.

    Args:
        address: The IPv4 or IPv6 address.
        port: The port; 0 for one that is free.
    """
    takes_both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if takes_both or ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, dualstack_ipv6=takes_both)


def store_at(
    host: str, port: int, interface: str | None, num_processes: int, timeout: timedelta
) -> TCPStore | None:
    """Return a torch store through which processes find each other, and which listens at only one
    network interface.

    By default, torch's stores listen at all network interfaces of the machine.

    Args:
        host: The name or the address by which the processes find this machine.
        port: The port; 0 for one that is free.
        interface: The interface.
        num_processes: The number of processes that meet.
        timeout: How long they wait for each other.

    Returns:
        The store; None if `interface` does not have the address to which `host` resolves here.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if (address := interfaces().get(interface or "")) not in {info[4][0] for info in infos}:
        return None
    server = listening(address, port)
    number = server.getsockname()[1]
    return listening_store(address, number, num_processes, timeout, server.detach())
