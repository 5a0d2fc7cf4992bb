"""Parameter servers out of step: no push lost, no bound exceeded, and a quick end. That synchronous
ones reach the weights of one process is tested in test_equivalence.py.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import Work

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.numerics.vector import Slice, ranges
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_json
from bsweep.strategies import server as servers
from bsweep.strategies import sharding
from bsweep.strategies.parameter_server import ParameterServer, _Connection
from bsweep.strategies.server import Kind, LocalServer, Server
from tests.support.one_server_run import Case, gradient, learning_rate, make_vector, storages_alive
from tests.support.running import ROOT, Fork, compose, meeting_port, wait_for

PLAIN = ("optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0")


def configure(*overrides: str) -> RunConfig:
    point = ("local_batch=8", "precision=fp64", "model=tiny_cnn", "optimizer.lr=0.05")
    return compose(*point, "strategy=parameter_server", "strategy.chunk_bytes=256", *overrides)


def start(folder: Path, names: list[str], num_processes: int) -> list[Fork]:
    """One process for each rank, whose output is pytest's to show."""
    return [
        Fork("tests.support.one_server_run", str(folder), *names, cwd=ROOT, env={"RANK": str(rank)})
        for rank in range(num_processes)
    ]


def finish(processes: list[Fork], timeout: float = 240) -> list[int]:
    """Wait for all; their exit codes."""
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_an_optimizer_that_limits_the_whole_norm_is_refused_where_no_server_knows_it() -> None:
    """One of the user's own, of which the configuration does not tell it."""
    vector = make_vector()
    optimizer = torch.optim.SGD(vector.tensors)
    optimizer.defaults["max_grad_norm"] = 1.0
    strategy = object.__new__(ParameterServer)
    strategy.config = configure("num_workers=2", "strategy.num_servers=2")
    with pytest.raises(ConfigError, match=r"or use strategy\.num_servers=1"):
        strategy.prepare(vector, optimizer)


SLOW = 0.05
OUT_OF_STEP: dict[str, tuple[str, ...]] = {
    f"{kind}_{place}": (
        "num_workers=3",
        "strategy.num_servers=2",
        f"strategy.colocated={str(place == 'colocated').lower()}",
        *overrides,
        *PLAIN,
    )
    for place in ("apart", "colocated")
    for kind, overrides in {
        "asynchronous": ("strategy.consistency=asynchronous",),
        "stale0": ("strategy.consistency=stale_synchronous", "strategy.staleness=0"),
        "stale2": ("strategy.consistency=stale_synchronous", "strategy.staleness=2"),
    }.items()
}
OUT_OF_STEP_CASE = Case(port=0, steps=5, epochs=2, sleeps=(0.0, 0.0, SLOW))


@pytest.fixture(scope="module")
def runs_out_of_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out_of_step")
    for name, overrides in OUT_OF_STEP.items():
        replace(OUT_OF_STEP_CASE, port=meeting_port()).save(folder / name, configure(*overrides))
    assert finish(start(folder, list(OUT_OF_STEP), 5)) == [0] * 5
    return folder


@pytest.mark.parametrize("name", OUT_OF_STEP)
def test_out_of_step_no_push_is_lost_and_the_bound_holds(runs_out_of_step: Path, name: str) -> None:
    config, case = configure(*OUT_OF_STEP[name]), OUT_OF_STEP_CASE
    assert isinstance(config.strategy, ParameterServerConfig)
    expected = make_vector().parameters
    workers = [torch.load(runs_out_of_step / name / f"rank{rank}.pt") for rank in range(3)]
    for epoch in range(1, case.epochs + 1):
        for step in range((epoch - 1) * case.steps, epoch * case.steps):
            for worker in range(3):
                made_up = gradient(make_vector(), worker, step)
                expected = expected - learning_rate(config, step) / 3 * made_up
        for result in workers:
            reached = result["parameters"][epoch]
            assert torch.equal(reached, workers[0]["parameters"][epoch])
            torch.testing.assert_close(reached, expected, rtol=1e-12, atol=1e-13)
    traffic, bound = workers[0]["traffic"], config.strategy.staleness
    for server in (0, 1):
        lead = max(epoch["servers"][server]["max_lead"] for epoch in traffic)
        if bound is None:
            assert lead > 2, "nothing holds a fast worker back"
        else:
            assert lead == bound
    for epoch in traffic:
        assert all(server["pushes"] == (case.steps,) * 3 for server in epoch["servers"])
        *fast, slow = epoch["worker_wait_seconds"]
        assert min(fast) > slow, "holding back is the wait of the fast"


def test_workers_notice_a_killed_server(tmp_path: Path) -> None:
    config = configure("num_workers=2", "strategy.num_servers=2")
    Case(port=meeting_port(), steps=100_000).save(tmp_path / "killed", config)
    processes = start(tmp_path, ["killed"], 4)
    wait_for(lambda: all((tmp_path / f"killed/begun{rank}").exists() for rank in (0, 1)))
    os.kill(processes[3].pid, signal.SIGKILL)
    codes = finish(processes, timeout=60)
    assert codes[:2] == [1, 1]
    assert codes[3] == -signal.SIGKILL
    assert codes[2] in (0, 1), "workers have said goodbye, or left within a step"
    for rank in (0, 1):
        assert error(tmp_path / "killed", rank)["is_consequence"]


@pytest.mark.parametrize("consistency", ["synchronous", "asynchronous"])
@pytest.mark.parametrize(("rank", "broken"), [(0, "broken_server"), (1, "broken_worker")])
def test_an_error_beside_a_colocated_server_ends_the_run(
    tmp_path: Path, rank: int, broken: str, consistency: str
) -> None:
    how = ("strategy.colocated=true", "strategy.num_servers=2", "num_workers=2")
    breaks: dict[str, Any] = {broken: rank}
    case = Case(port=meeting_port(), steps=50, sleeps=(0.0, 0.01), **breaks)
    case.save(tmp_path / "broken", configure(*how, f"strategy.consistency={consistency}"))
    assert finish(start(tmp_path, ["broken"], 2), timeout=120) == [1, 1]
    assert error(tmp_path / "broken", rank)["message"] == "ArithmeticError: broken on purpose"
    assert error(tmp_path / "broken", 1 - rank)["is_consequence"]


def error(folder: Path, rank: int) -> dict[str, Any]:
    found = read_json(RunPaths(folder).rank_logs(rank) / "error.json")
    assert found is not None
    return found


class Travelling(servers.LocalRequest):
    """A request whose payload comes at once to where the server wants it."""

    travels = True

    def receive(self, into: Tensor) -> tuple[Tensor, list[Work]]:
        payload, works = super().receive(into)
        return into.copy_(payload), works


@contextlib.contextmanager
def serving(
    config: RunConfig,
    folder: Path,
    parameters: Tensor,
    slices: Sequence[Slice],
    number: int = 0,
) -> Iterator[list[LocalServer]]:
    """The workers' links to a server that runs in a thread, and has been given its parameters."""
    server = Server(config, RunPaths(folder), number, remote=())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    links = [LocalServer(worker, server.inbox) for worker in range(config.num_workers)]
    links[0].call(Server.hold, slices, parameters.dtype, parameters.numel())
    links[0].ask(Kind.LOAD, torch.empty_like(parameters), parameters)()
    yield links
    for link in links:
        link.say_goodbye()
    thread.join(10)
    assert not thread.is_alive()


def test_a_packed_copy_on_its_way_to_the_gpu_is_not_received_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Copied:
        def record(self, stream: object) -> None:
            calls.append("copies")

        def synchronize(self) -> None:
            calls.append("waits")

    class Link(LocalServer):
        def ask(self, *_: object, **__: object) -> Callable[[], float]:
            calls.append("receives")
            return float

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    vector, link = make_vector(), Link(0, queue.SimpleQueue())
    connection = _Connection(vector, [vector.slices[0], vector.slices[-1]], link)
    monkeypatch.setattr(connection, "_copied", Copied())
    for _ in range(2):
        connection.ask(Kind.PULL)
        connection.unpack()
    assert calls == ["waits", "receives", "copies"] * 2


def test_a_stale_answer_is_held_until_the_slowest_has_come_nearer(tmp_path: Path) -> None:
    stale = ("strategy.consistency=stale_synchronous", "strategy.staleness=1")
    config, vector = configure("num_workers=2", *stale, *PLAIN), make_vector()
    answer = torch.zeros_like(vector.parameters)

    def push(link: LocalServer) -> Callable[[], float]:
        return link.ask(Kind.PUSH, answer, torch.ones_like(answer), learning_rate=1.0)

    with serving(config, tmp_path, vector.parameters, vector.slices) as (fast, slow):
        assert push(fast)() == 0
        held = push(fast)
        time.sleep(0.3)
        assert torch.equal(answer, vector.parameters - 1), "applied, and not answered"
        assert push(slow)() == 0
        assert held() >= 0.1
        assert torch.equal(answer, vector.parameters - 3)
        push(slow)()


OF_FIVE = ("num_workers=5", "optimizer.weight_decay=0", "optimizer.lr_rule=fixed")


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::13])
@pytest.mark.parametrize(("number", "ranks"), [(0, (0, 1, 2, 3, 4)), (1, (2, 3, 4, 0, 1))])
def test_a_sum_is_in_one_order_whoever_is_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    ranks: tuple[int, ...],
    order: tuple[int, ...],
) -> None:
    """Also for more workers than buffers: what came into one too early would overwrite what is not
    added yet. Each of two servers begins with another worker, whose link the other one leaves free.
    """
    vector = make_vector()
    config, parameters = configure(*OF_FIVE, "strategy.num_servers=2"), vector.parameters
    payloads = [10.0**worker / (3 + parameters) for worker in range(5)]
    answers = [torch.zeros_like(parameters) for _ in range(5)]
    monkeypatch.setattr(servers, "LocalRequest", Travelling)
    with serving(config, tmp_path, parameters, vector.slices, number) as links:
        for wait in [
            links[worker].ask(Kind.PUSH, answers[worker], payloads[worker], learning_rate=0.5)
            for worker in order
        ]:
            wait()
    total = torch.zeros_like(parameters)
    for worker in ranks:
        total += payloads[worker]
    for answer in answers:
        assert torch.equal(answer, parameters - 0.5 * total)


def test_a_server_holds_its_shard_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, gradients, momentum and two buffers, whatever the number of workers."""
    config, vector = configure("strategy.num_servers=8"), make_vector()
    assert isinstance(config.strategy, ParameterServerConfig)
    shard = sharding.shards(vector.slices, 8, config.strategy)[1]
    ((start, stop),) = ranges(shard)
    initial = vector.parameters[start:stop]
    payload, answer = torch.ones_like(initial), torch.zeros_like(initial)
    monkeypatch.setattr(servers, "LocalRequest", Travelling)
    gc.collect()
    before = storages_alive()
    with serving(configure(*OF_FIVE), tmp_path, initial, shard) as links:
        for _ in range(2):
            for wait in [link.ask(Kind.PUSH, answer, payload, learning_rate=0.5) for link in links]:
                wait()
        alive = storages_alive()
    held = {address: size for address, size in alive.items() if address not in before}
    shard_bytes, held_bytes = 8 * (stop - start), sum(held.values())
    assert 4 * shard_bytes < held_bytes <= 5 * shard_bytes + 1000 < vector.num_bytes
