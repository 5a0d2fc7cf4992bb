"""Where sockets of this machine listen."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from bsweep.core import network

SOON = timedelta(seconds=20)


def test_a_store_listens_at_its_interface_alone() -> None:
    store = network.store_at("127.0.0.1", 0, network.loopback(), 1, SOON)
    assert store
    socket.create_connection(("127.0.0.1", store.port)).close()
    with pytest.raises(ConnectionRefusedError):  # loopback has this address, too
        socket.create_connection(("127.0.0.2", store.port)).close()


@pytest.mark.parametrize("interface", [None, "none.such"])
def test_no_store_listens_where_its_name_does_not_lead(interface: str | None) -> None:
    assert network.store_at("127.0.0.1", 0, interface, 1, SOON) is None


def test_a_socket_for_all_addresses_takes_both_families() -> None:
    with network.listening("") as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((address, port)).close()


@pytest.mark.parametrize(
    ("name", "is_known"), [("no-such-name.invalid", False), ("localhost", True)]
)
def test_a_machine_whose_name_does_not_resolve_is_named(
    name: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    network.unresolved_name.cache_clear()
    said = network.unresolved_name()
    network.unresolved_name.cache_clear()
    assert bool(said) != is_known
    assert is_known or (name in said and "/etc/hosts" in said)
