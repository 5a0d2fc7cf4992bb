"""A worker or a server of the parameter server tests: it makes up gradients instead of computing
them.

`python -m tests.support.one_server_run FOLDER CASE ...` with torchrun's variables set; the cases
run one after the other, those with fewer processes on the first of them.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from bsweep.config.parameter_server import ParameterServerConfig
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config, save_config
from bsweep.core.ranks import World
from bsweep.numerics import optim
from bsweep.numerics.vector import Vector
from bsweep.runlog.errors import WorkerLost, errors_reported
from bsweep.runlog.files import RunPaths
from bsweep.strategies.parameter_server import ParameterServer, serve
from bsweep.strategies.server import Request, Server
from tests.support.running import meeting_at


@dataclasses.dataclass(frozen=True)
class Case:
    """`sleeps`: seconds before each step, by worker."""

    port: int
    steps: int = 6
    epochs: int = 1
    sleeps: tuple[float, ...] = (0.0, 0.0, 0.0)
    broken_worker: int | None = None  # raises in its third step
    broken_server: int | None = None  # raises at its fifth push

    def save(self, folder: Path, config: RunConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.json").write_text(json.dumps(dataclasses.asdict(self)))
        save_config(config, RunPaths(folder).config)


def make_vector(seed: int = 0) -> Vector:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(20, 30), nn.LayerNorm(30), nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Linear(30, 7)
    )
    return Vector(model.double())


def gradient(vector: Vector, worker: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(vector.gradients.shape, generator=generator, dtype=torch.float64)


def storages_alive() -> dict[int, int]:
    """Bytes of the memory behind all tensors of this process, by address.

    Fake tensors, which compiling leaves alive, have no memory and no address.
    """
    tensors = (
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), Tensor) and not isinstance(thing, FakeTensor)
    )
    # torch 2.6 keeps tensors that are not defined.
    storages = (tensor.untyped_storage() for tensor in tensors if torch._C._has_storage(tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def learning_rate(config: RunConfig, step: int) -> float:
    assert config.optimizer.lr
    return config.optimizer.lr / (1 + step)


def run(folder: Path) -> None:
    case = Case(**json.loads((folder / "case.json").read_text()))
    config, paths = read_config(RunPaths(folder).config), RunPaths(folder)
    rank, size = int(os.environ["RANK"]), config.num_workers + config.num_server_processes
    if rank >= size:
        return
    os.environ.update(WORLD_SIZE=str(size), **meeting_at(case.port))
    world = World(rank, config.num_workers, rank, config.num_workers)
    _break_server(case, rank)
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    with errors_reported(paths, world):
        if world.is_server:
            before = storages_alive()
            serve(config, world, paths)
            gc.collect()
            assert storages_alive().keys() <= before.keys(), "the process may serve other runs"
        else:
            torch.save(work(config, case, world, paths), folder / f"rank{rank}.pt")


def work(config: RunConfig, case: Case, world: World, paths: RunPaths) -> dict[str, object]:
    assert isinstance(config.strategy, ParameterServerConfig)
    strategy = ParameterServer(config, config.strategy, world, paths)
    vector = make_vector(seed=world.rank)  # worker 0's must reach all
    optimizer = optim.build(config.optimizer, vector)
    strategy.prepare(vector, optimizer)
    parameters, traffic = [vector.parameters.clone()], []
    try:
        for epoch in range(case.epochs):
            for step in range(epoch * case.steps, (epoch + 1) * case.steps):
                time.sleep(case.sleeps[world.rank])
                if step == 2:
                    (paths.folder / f"begun{world.rank}").touch()
                if step == 2 and world.rank == case.broken_worker:
                    raise ArithmeticError("broken on purpose")
                vector.gradients.copy_(gradient(vector, world.rank, step))
                optim.set_learning_rate(optimizer, learning_rate(config, step))
                strategy.step()
            strategy.end_round(epoch + 1, torch.zeros(3), 1, ends_epoch=True)
            parameters.append(vector.parameters.clone())
            traffic.append(dataclasses.asdict(strategy.traffic()))
    except WorkerLost:
        (paths.folder / f"lost{world.rank}").write_text(str(time.time()))
        raise
    finally:
        strategy.close()
    assert not optimizer.state, "only servers keep optimizer state"
    return {"parameters": parameters, "traffic": traffic}


def _break_server(case: Case, rank: int) -> None:
    plain_step, pushes = Server._step, []

    def breaking_step(self: Server, request: Request) -> None:
        pushes.append(request)
        if len(pushes) == 5:
            raise ArithmeticError("broken on purpose")
        plain_step(self, request)

    if rank == case.broken_server:
        Server._step = breaking_step  # type: ignore[method-assign]


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(Path(sys.argv[1]) / name)
