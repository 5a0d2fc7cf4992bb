"""The agreement of a program's workers on the step at which they stop: rank 0 decides and tells the
others by a connection, so that all of them stop after the same step.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import TextIO

_DECIDE_SECONDS = 0.5  # between two decisions
WAIT_SECONDS = 60.0  # for rank 0, and on rank 0 for the next of the others


class Agreement:
    """A worker's part in the agreement."""

    def __init__(self, rank: int, num_workers: int, meeting: Path) -> None:
        """Create it; on rank 0, begin to listen.

        Args:
            rank: This worker's rank.
            num_workers: The number of workers that have to agree.
            meeting: The file by which rank 0 tells the others where it listens.
        """
        self._rank, self._num_others, self._meeting = rank, num_workers - 1, meeting
        self._peers: list[TextIO] = []  # the other ranks or, on these, rank 0
        self.has_given_up = False
        """True if the workers cannot agree, because some do not call `decide`."""
        self._decided_at, self._decided_step, self._last_gap = time.monotonic(), 0, 1
        self.next_step = 0
        """The number of steps after which the workers agree the next time."""
        if rank == 0 and self._num_others:
            host = os.environ.get("BSWEEP_ADDRESS", "127.0.0.1")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._server = socket.create_server((host, 0), family=family, backlog=self._num_others)
            self._server.settimeout(WAIT_SECONDS)
            self._key = secrets.token_hex(16)
            meeting.touch(mode=0o600)
            meeting.write_text(json.dumps([*self._server.getsockname()[:2], self._key]))

    def decide(
        self, wish: str, num_steps: int, steps_left: int | None, *, at_epoch_end: bool
    ) -> str:
        """Return why all workers stop here; an empty text if they go on. All ranks call this after
        the same step.

        Args:
            wish: Rank 0's reason to stop, or an empty text.
            num_steps: The number of steps so far.
            steps_left: The number of steps after which the workers must agree, as rank 0 sees it;
                None for no such step.
            at_epoch_end: True at the end of an epoch, when the next step to agree stays.
        """
        if self._rank == 0:
            gap = self._gap(num_steps, steps_left)
            self._tell(wish, gap)
            wish = "" if self.has_given_up else wish  # the others would wait for this worker
        else:
            wish, gap = self._hear() or ("", 2**62 if steps_left is None else max(1, steps_left))
        if not at_epoch_end:
            self.next_step = num_steps + gap
        return wish

    def _gap(self, num_steps: int, steps_left: int | None) -> int:
        now = time.monotonic()
        rate = (num_steps - self._decided_step) / max(1e-6, now - self._decided_at)
        self._decided_at, self._decided_step = now, num_steps
        # The first steps may seem fast, as on a GPU that still works on them: look again soon.
        self._last_gap = gap = max(1, min(int(rate * _DECIDE_SECONDS), 2 * self._last_gap))
        return gap if steps_left is None else max(1, min(gap, steps_left))

    def _tell(self, wish: str, gap: int) -> None:
        """Tell the others the reason to stop, and the steps until the next decision."""
        if not self.has_given_up:
            self._meet()
        for peer in self._peers:
            with suppress(OSError):
                print(json.dumps([wish, gap]), file=peer, flush=True)

    def _meet(self) -> None:
        """Wait until all others are connected; give up if one does not come."""
        try:
            while len(self._peers) < self._num_others:
                peer = _stream(self._server.accept()[0], WAIT_SECONDS)
                with suppress(OSError):  # somebody else's connection
                    if peer.readline().strip() == self._key:
                        self._peers.append(peer)
        except TimeoutError:
            self.has_given_up = True
            self._meeting.write_text("[]")  # who comes later does not wait
            self._server.close()
            missing, self._peers = self._num_others - len(self._peers), []
            warnings.warn(
                f"bsweep: {missing} workers do not use run.steps or run.epochs, so no worker can "
                "be told to stop: call them on all ranks.",
                stacklevel=2,
            )

    def _hear(self) -> tuple[str, int] | None:
        """Return what rank 0 says; None if rank 0 does not use `steps`, or has ended.

        Rank 0 may evaluate for long meanwhile.
        """
        with suppress(OSError, ValueError):
            if not self.has_given_up:
                self._peers = self._peers or [self._connected()]
                wish, gap = json.loads(self._peers[0].readline())
                return wish, gap
        self.has_given_up, self._peers = True, []
        return None

    def _connected(self) -> TextIO:
        """Return the connection to rank 0.

        Raises:
            TimeoutError: If rank 0 has given up, or does not begin to listen.
        """
        ends = time.monotonic() + WAIT_SECONDS
        meeting = None
        while meeting != [] and time.monotonic() < ends:
            with suppress(OSError, ValueError):  # rank 0 has not begun to listen
                meeting = json.loads(self._meeting.read_text())
                host, port, key = meeting
                peer = _stream(socket.create_connection((host, port)))
                print(key, file=peer, flush=True)
                return peer
            time.sleep(0.01)
        raise TimeoutError


def _stream(connection: socket.socket, timeout: float | None = None) -> TextIO:
    """Return a connection as a stream of lines, which closes it."""
    with closing(connection):
        connection.settimeout(timeout)
        return connection.makefile("rw")
