"""Two workers: bsweep beside torch's DDP and Horovod's own optimizer wrapper, in turns in the same
two processes.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benches import alone
from benches.common import (
    ROOT,
    Program,
    alternating,
    calls_of,
    compared,
    horovodrun,
    plain_model,
    plain_optimizer,
    plain_step,
    ready,
)
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World, num_cores
from bsweep.data import plan
from bsweep.strategies import groups
from bsweep.train import step
from bsweep.train.job import Job
from tests.support.running import meeting_at, meeting_port, write_text

TARGETS = {8: 1.15, 64: 1.05}  # against DDP, of the same precision and layout
_GRID, _RESULTS = "grid.pickle", "results.json"


def steps_together(grid: alone.Grid) -> dict[str, Any]:
    """By model and local batch, seconds of a step of two workers, of the first one's clock."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _GRID).write_bytes(pickle.dumps(grid))
        for _, _, case_folder in compared_in(Path(folder), grid):
            case_folder.mkdir()
            write_text(case_folder / "book.txt", 200_000)
        command = horovodrun("benches.together", folder)
        variables = {**os.environ, **meeting_at(meeting_port()), "WORLD_SIZE": "2"}
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            for line in process.stdout or ():
                print(line.removeprefix("[0]<stdout>:"), end="", flush=True)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        results: dict[str, Any] = json.loads((Path(folder) / _RESULTS).read_text())
    return results


def be_worker(folder: Path) -> None:
    """One of the two processes."""
    world = World.from_environment()
    os.environ["RANK"] = str(world.rank)
    torch.set_num_threads(max(1, num_cores() // 2))
    join = groups.join
    # All programs of this process share one group.
    groups.join = lambda *job: (
        dist.distributed_c10d._get_default_group() if dist.is_initialized() else join(*job)
    )
    results: dict[str, Any] = {"steps": {}}
    grid: alone.Grid = pickle.loads((folder / _GRID).read_bytes())
    for case, size, case_folder in compared_in(folder, grid):
        compare(case, size, case_folder, grid.rounds, world, results)
    if world.rank == 0:
        (folder / _RESULTS).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def compared_in(folder: Path, grid: alone.Grid) -> Iterator[tuple[alone.Case, int, Path]]:
    """What is compared, and the folder for its runs, the same for both workers: they find each
    other by it.
    """
    for case in grid.cases:
        for size in grid.batches:
            yield case, size, folder / f"{case.name.replace(' ', '_')}_{size}"


def compare(
    case: alone.Case,
    size: int,
    folder: Path,
    rounds: int,
    world: World,
    results: Mapping[str, dict[str, Any]],
) -> None:
    """In fp32, then by default: a group at a time, for all programs of a large model do not fit
    into memory.
    """
    name, every = f"{case.name}, 2 workers, local batch {size}", configs(case, size, folder)
    for group, label in (
        (IN_FP32[: 2 if case.is_large else None], ""),
        (BY_DEFAULT, ", by default"),
    ):
        jobs = {kind: alone.job_of(every[kind], world) for kind in group}
        programs = plain_programs(jobs[group[0]], size, with_horovod=not label)
        programs |= {kind: of_job(job, size) for kind, job in jobs.items()}
        seconds = alternating(programs, rounds, calls=calls_of(size), before=dist.barrier)
        if world.rank == 0:
            reached = ("horovod", "allreduce") if size in TARGETS else ()
            targets = dict.fromkeys(reached, TARGETS.get(size, 1.0))
            numerics = alone.numerics(jobs[group[0]])
            print(f"{name}{label}, {numerics}: {compared(seconds, 'DDP', targets)}", flush=True)
        results["steps"][name + label] = seconds
        del jobs, programs
        gc.collect()


IN_FP32 = ("horovod", "allreduce", "4 buckets")
BY_DEFAULT = ("default", "allreduce by default")


def configs(case: alone.Case, size: int, folder: Path) -> dict[str, RunConfig]:
    """Bsweep in plain fp32 over each exchange, and two of these by default."""
    device = "auto" if torch.cuda.device_count() > 1 else "cpu"
    horovod, allreduce = ("strategy=horovod",), ("strategy=allreduce",)
    overrides = {
        "allreduce": (*allreduce, *alone.FP32),
        "horovod": (*horovod, *alone.FP32),
        "4 buckets": (*horovod, "strategy.buckets=4", *alone.FP32),
        "default": horovod,
        "allreduce by default": allreduce,
    }
    return {
        name: case.config(folder, size, "num_workers=2", f"device={device}", *words)
        for name, words in overrides.items()
    }


def of_job(job: Job, size: int) -> Program:
    batch = torch.arange(2 * size, device=job.dataset.train.labels.device)
    part = plan.even_part(batch, job.world.rank, 2)
    job.training_model.train()
    return lambda: step.train_step(job, batch, part, job.inputs.crops(1, job.config.seed))


def plain_programs(job: Job, size: int, with_horovod: bool) -> dict[str, Program]:
    """What one writes first: torch's DistributedDataParallel, and Horovod's DistributedOptimizer;
    fp32, contiguous.
    """
    import horovod.torch as hvd
    from torch.nn.parallel import DistributedDataParallel

    batch = ready(job.dataset, job.device, size)
    model = plain_model(job)
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    programs = {"DDP": plain_step(ddp, plain_optimizer(job, model), batch)}
    if with_horovod:
        model = plain_model(job)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        wrapped = hvd.DistributedOptimizer(
            plain_optimizer(job, model), named_parameters=list(model.named_parameters())
        )
        programs["Horovod's wrapper"] = plain_step(model, wrapped, batch)
    return programs


if __name__ == "__main__":
    be_worker(Path(sys.argv[1]))
