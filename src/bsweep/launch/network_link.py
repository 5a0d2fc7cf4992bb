"""A program that measures the network between two hosts: on one host it listens, on the other it
connects and measures.

The processes connect by TCP, as workers do. `python -m bsweep.launch.network_link listen ADDRESS`
prints the port at which it waits. `python -m bsweep.launch.network_link reach ADDRESS PORT`
connects to that port and prints what it measured as JSON.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import time

from bsweep.core import network

_ROUND_TRIPS = 200
_SEND_SECONDS = 0.5
_PATIENCE_SECONDS = 20.0


def listen(address: str) -> None:
    """Print a port, wait for one client that measures the network, and answer its requests for the
    time and the bandwidth.

    First send the time of day for each request. Then receive bytes until the client stops sending,
    and send back how many arrived per second.

    Args:
        address: The address of this machine to listen at; an empty text for all of them.
    """
    with network.listening(address) as server:
        server.settimeout(_PATIENCE_SECONDS)
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1) == b"t":
            connection.sendall(struct.pack("d", time.time()))
        began, num_bytes = time.monotonic(), 0
        while received := len(connection.recv(1 << 20)):
            num_bytes += received
        connection.sendall(struct.pack("d", num_bytes / (time.monotonic() - began)))


def reach(address: str, port: int) -> dict[str, float]:
    """Return the median round-trip time and the bandwidth to a listening process on another host,
    and the seconds by which that host's clock is ahead of this one's.

    The clock offset comes from the fastest round trip. It may be wrong by up to half of the time of
    that round trip.

    Args:
        address: The listener's address.
        port: The port that the listener printed.

    Returns:
        `round_trip_seconds`, `clock_ahead_seconds` and `bytes_per_second`.
    """
    with socket.create_connection((address, port), timeout=_PATIENCE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips: list[tuple[float, float]] = []
        for _ in range(_ROUND_TRIPS):
            began, told_at = time.perf_counter(), time.time()
            connection.sendall(b"t")
            (there,) = struct.unpack("d", _exactly(connection, 8))
            seconds = time.perf_counter() - began
            trips.append((seconds, there - told_at - seconds / 2))
        connection.sendall(b"b")
        block, ends = bytes(1 << 20), time.monotonic() + _SEND_SECONDS
        while time.monotonic() < ends:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        (rate,) = struct.unpack("d", _exactly(connection, 8))
    return {
        "round_trip_seconds": statistics.median(seconds for seconds, _ in trips),
        "clock_ahead_seconds": min(trips)[1],
        "bytes_per_second": rate,
    }


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        part = connection.recv(num_bytes - len(received))
        if not part:
            raise ConnectionError("the connection ended")
        received += part
    return received


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2])
    else:
        print(json.dumps(reach(sys.argv[2], int(sys.argv[3]))), flush=True)
