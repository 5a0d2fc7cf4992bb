"""The agreement of a program's workers on the step at which they stop: rank 0 decides and tells the
others by a connection, so that all of them stop after the same step.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import warnings
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

_DECIDE_SECONDS = 0.5  # between two decisions
_WAIT_SECONDS = 60.0  # for rank 0


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
        self._others: list[Connection] = []
        self._first: Connection | None = None
        self.has_given_up = False
        """True if the workers cannot agree, because some do not call `decide`."""
        self._decided_at, self._decided_step, self._last_gap = time.monotonic(), 0, 1
        self.next_step = 0
        """The number of steps after which the workers agree the next time."""
        if self._rank == 0 and self._num_others:
            self._listen()

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
            if self._num_others:
                wish = self._tell(wish, gap)
        elif (heard := self._hear()) is not None:
            wish, gap = heard
        else:
            wish, gap = "", 2**62 if steps_left is None else max(1, steps_left)
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

    def _listen(self) -> None:
        key = secrets.token_bytes(16)
        host = os.environ.get("BSWEEP_ADDRESS", "127.0.0.1")
        family = "AF_INET6" if ":" in host else "AF_INET"
        listener = Listener((host, 0), family, backlog=self._num_others, authkey=key)
        self._meeting.touch(mode=0o600)
        where = {"address": listener.address[:2], "family": family, "key": key.hex()}
        self._meeting.write_text(json.dumps(where))

        def accept() -> None:
            while len(self._others) < self._num_others:
                with suppress(Exception):  # somebody else's connection is refused
                    other = listener.accept()
                    self._others.append(other)
                    if self.has_given_up:
                        other.close()
            listener.close()

        threading.Thread(target=accept, daemon=True).start()

    def _tell(self, wish: str, gap: int) -> str:
        ends = time.monotonic() + _WAIT_SECONDS
        while len(self._others) < self._num_others and not self.has_given_up:
            time.sleep(0.001)
            if time.monotonic() > ends:
                self.has_given_up = True
                self._meeting.write_text("{}")  # who comes later does not wait
                for other in self._others:
                    other.close()
                warnings.warn(
                    f"bsweep: {self._num_others - len(self._others)} workers do not use run.steps "
                    "or run.epochs, so no worker can be told to stop: call them on all ranks.",
                    stacklevel=2,
                )
        if self.has_given_up:
            return ""  # a worker that cannot be told to stop would wait for the others for ever
        for other in self._others:
            with suppress(OSError):
                other.send((wish, gap))
        return wish

    def _hear(self) -> tuple[str, int] | None:
        """Return what rank 0 says; None if rank 0 does not use `steps`, or has ended.

        Rank 0 may evaluate for long meanwhile.
        """
        if self.has_given_up:
            return None
        self._first = self._first or self._connected()
        try:
            if self._first is not None:
                heard: tuple[str, int] = self._first.recv()
                return heard
        except (OSError, EOFError):
            pass
        self.has_given_up = True
        return None

    def _connected(self) -> Connection | None:
        ends = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < ends:
            try:
                where = json.loads(self._meeting.read_text())
                address = (str(where["address"][0]), int(where["address"][1]))
                return Client(address, where["family"], authkey=bytes.fromhex(where["key"]))
            except KeyError:  # rank 0 gave up
                return None
            except (OSError, ValueError, EOFError, AuthenticationError):
                time.sleep(0.01)
        return None
