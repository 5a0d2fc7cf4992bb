"""A gather of all workers' values that leaves out workers that show no sign of life.

It uses the store of torch.distributed. Only torchrun starts workers that may be lost, and its own
process keeps that store, so that it outlives any worker process. A thread of every worker writes
signs of life to the store, however long the worker's steps take. A worker without a new sign for
`timeout_seconds` is left out by those that wait for it. The first worker to write the list of
members of a gather decides it for all.
"""

from __future__ import annotations

import json
import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from bsweep.core.torch_private import private
from bsweep.runlog.errors import WorkerLost

_BEATS_A_TIMEOUT = 10
_POLL_SECONDS = 0.002
_DELETED = b"deleted"


class RollCall:
    def __init__(self, rank: int, num_workers: int, timeout_seconds: float) -> None:
        self.members = tuple(range(num_workers))
        self._rank, self._timeout_seconds = rank, timeout_seconds
        self._store = _default_store()
        self._number = 0
        self._ended = threading.Event()
        host, port = self._store.host, self._store.port
        own_connection = TCPStore(host, port, is_master=False, wait_for_workers=False)
        threading.Thread(target=self._show_life, args=(own_connection,), daemon=True).start()

    def gather(self, values: Tensor) -> Tensor:
        """Collect a row of values from each worker that still takes part, and return the rows as
        one tensor in the order of ranks.

        Each worker passes a float64 CPU tensor (n,); the result is (members, n).

        Raises:
            WorkerLost: If the others have left this worker out, or the store does not answer.
        """
        self._number += 1
        try:
            self._store.set(self._key(self._rank), values.numpy().tobytes().hex())
            self._await_decision()
            self.members = tuple(json.loads(self._store.get(self._key("members"))))
            every = [self._value_if_there(self._key(member)) for member in self.members]
            # A worker that fell silent within a gather finds values deleted by the others.
            if self._rank not in self.members or _DELETED in every:
                raise WorkerLost(
                    f"the other workers continue without rank {self._rank}, which was silent for "
                    "too long"
                )
            if self._number > 2:
                # all members have read it
                self._store.delete_key(self._key(self._rank, self._number - 2))
        except dist.DistError as error:
            raise WorkerLost(f"the store of torch.distributed does not answer: {error}") from error
        return torch.stack(
            [
                torch.frombuffer(bytearray.fromhex(one.decode()), dtype=torch.float64)
                for one in every
            ]
        )

    def _value_if_there(self, key: str) -> bytes:
        """Return the value of a key, or `_DELETED` if the store has no such key.

        `get` waits for a missing key, and a key can vanish between `check` and `get`. `compare_set`
        answers at once with the value, or with what it was told to expect. No value is the word
        `_DELETED`, so nothing is set.
        """
        return self._store.compare_set(key, _DELETED.decode(), _DELETED.decode())

    def close(self) -> None:
        self._ended.set()

    def _await_decision(self) -> None:
        # For each missing worker: its last sign of life, and when that was new.
        beats: dict[int, tuple[bytes, float]] = {}
        look_at = 0.0
        # The store's own wait is not used: it logs a warning at each timeout.
        while not self._store.check([self._key("members")]):
            if time.monotonic() > look_at:
                missing = [
                    member for member in self.members if not self._store.check([self._key(member)])
                ]
                if missing == [member for member in missing if self._is_silent(member, beats)]:
                    here = [member for member in self.members if member not in missing]
                    # The first worker to write the list decides.
                    self._store.compare_set(self._key("members"), "", json.dumps(here))
                look_at = time.monotonic() + self._timeout_seconds / _BEATS_A_TIMEOUT
            time.sleep(_POLL_SECONDS)

    def _is_silent(self, member: int, beats: dict[int, tuple[bytes, float]]) -> bool:
        key = f"roll_call/beat/{member}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        if member not in beats or beats[member][0] != beat:
            beats[member] = beat, time.monotonic()
        return time.monotonic() - beats[member][1] > self._timeout_seconds

    def _show_life(self, store: TCPStore) -> None:
        """Write signs of life of this worker to the store of torch.distributed until `close` is
        called.

        The thread has its own connection, because the other one is busy while the worker waits.
        """
        number = 0
        while not self._ended.wait(self._timeout_seconds / _BEATS_A_TIMEOUT):
            number += 1
            try:
                store.set(f"roll_call/beat/{self._rank}", str(number))
            except dist.DistError:
                return

    def _key(self, of: int | str, number: int | None = None) -> str:
        return f"roll_call/{number or self._number}/{of}"


def _default_store() -> TCPStore:
    store = private("default_store")()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    assert isinstance(store, TCPStore), store
    return store
