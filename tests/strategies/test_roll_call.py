"""Clocks of real processes compared, and a roll call whose members are killed, stopped and
woken.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bsweep.runlog.errors import WorkerLost
from bsweep.strategies import clocks, roll_call
from bsweep.strategies.roll_call import RollCall
from bsweep.train.worker import work_and_leave
from tests.support.running import ROOT, Fork

NUM_WORKERS = 4
AHEAD = (0.0, 3.7, -1000.0, 86_400.0)  # seconds, of the workers' clocks
TIMEOUT_SECONDS = 2.0


def main(out: Path) -> None:
    """One worker: how far clocks are apart, then one gather after another, on record."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def gather(values: Tensor) -> Tensor:
        every = [torch.empty_like(values) for _ in range(NUM_WORKERS)]
        dist.all_gather(every, values)
        return torch.stack(every)

    def clock() -> float:
        return time.monotonic() + AHEAD[rank]

    calls = RollCall(rank, NUM_WORKERS, TIMEOUT_SECONDS)
    with (out / f"{rank}.jsonl").open("w", buffering=1) as file:
        for way in (gather, calls.gather):
            file.write(json.dumps(clocks.offsets(way, clock).tolist()) + "\n")
        number = 0
        while True:
            number += 1
            every = calls.gather(torch.tensor([rank, number], dtype=torch.float64))
            file.write(
                json.dumps({"number": number, "members": calls.members, "values": every.tolist()})
                + "\n"
            )
            time.sleep(0.02)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Fork]]]:
    """Processes whose store is kept by this one, as torchrun keeps it for its workers."""
    out = tmp_path_factory.mktemp("roll_call")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(NUM_WORKERS),
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for rank in range(NUM_WORKERS):
        with (out / f"{rank}.output").open("w") as output:
            variables = {**env, "RANK": str(rank)}
            started.append(
                Fork(
                    "tests.strategies.test_roll_call",
                    str(out),
                    cwd=ROOT,
                    env=variables,
                    stdout=output,
                    stderr=output,
                )
            )
    yield out, started
    for process in started:
        process.kill()


def recorded(out: Path, rank: int) -> list[Any]:
    path = out / f"{rank}.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for(out: Path, rank: int, met: Callable[[list[Any]], bool]) -> list[Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        records = recorded(out, rank)
        if met(records):
            return records
        time.sleep(0.05)
    raise AssertionError(recorded(out, rank)[-3:])


def test_clocks_far_apart_are_compared_to_milliseconds(workers: tuple[Path, list[Fork]]) -> None:
    out, _ = workers
    for rank in range(NUM_WORKERS):
        for offsets in wait_for(out, rank, lambda records: len(records) >= 2)[:2]:
            assert offsets == pytest.approx(AHEAD, abs=0.02)


def test_who_is_silent_is_left_out_and_all_agree(workers: tuple[Path, list[Fork]]) -> None:
    out, processes = workers
    wait_for(out, 0, lambda records: len(records) >= 10)
    processes[0].kill()  # even the first one
    killed_at = time.monotonic()
    wait_for(out, 1, lambda records: records[-1]["members"] == [1, 2, 3])
    assert time.monotonic() - killed_at < 4 * TIMEOUT_SECONDS
    stopped = psutil.Process(processes[2].pid)
    stopped.suspend()
    time.sleep(TIMEOUT_SECONDS / 4)  # not for long enough to be given up
    stopped.resume()
    here = len(recorded(out, 3))
    assert wait_for(out, 3, lambda records: len(records) >= here + 5)[-1]["members"] == [1, 2, 3]
    stopped.suspend()
    wait_for(out, 3, lambda records: records[-1]["members"] == [1, 3])
    stopped.resume()
    processes[2].wait(30)
    output = (out / "2.output").read_text()
    assert (
        "WorkerLost: the other workers continue without rank 2, which was silent for too long"
        in output
    )
    wait_for(out, 3, lambda records: len(records) >= here + 20)
    by_number: dict[int, Any] = {}
    for rank in range(NUM_WORKERS):
        for record in recorded(out, rank)[2:]:
            assert by_number.setdefault(record["number"], record) == record, (
                "the same for all who were there"
            )
            assert record["values"] == [[member, record["number"]] for member in record["members"]]


class _StoppedBetweenRequests:
    """A store whose worker is stopped before it reads a value, while the others delete it."""

    def __init__(self, store: TCPStore, value: str) -> None:
        self._store, self._value = store, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def check(self, keys: list[str]) -> bool:
        found = bool(self._store.check(keys))
        if self._value in keys:
            self._store.delete_key(self._value)
        return found

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if key == self._value:
            self._store.delete_key(self._value)
        return bytes(self._store.compare_set(key, expected, desired))


def test_a_worker_woken_before_it_reads_a_value_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own.set_timeout(timedelta(seconds=5))
    values = torch.tensor([0.0], dtype=torch.float64)
    own.set("roll_call/1/members", "[0, 1]")
    own.set("roll_call/1/1", values.numpy().tobytes().hex())
    store = _StoppedBetweenRequests(own, "roll_call/1/1")
    monkeypatch.setattr(roll_call, "_default_store", lambda: store)
    calls = RollCall(0, 2, TIMEOUT_SECONDS)
    with pytest.raises(WorkerLost, match="continue without rank 0"):
        calls.gather(values)
    calls.close()


if __name__ == "__main__":
    # Destructors of torch may wait for what was given up.
    work_and_leave(lambda: main(Path(sys.argv[1])))
