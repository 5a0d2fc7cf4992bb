"""A model split over two workers: bsweep beside the same thing written by hand in plain torch, in
turns in the same two processes.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn import functional as F

from benches.alone import FP32
from benches.common import Program, Seconds, alternating, compared, plain_optimizer, ready
from bsweep import models
from bsweep.config.run import RunConfig
from bsweep.core.ranks import Place
from bsweep.models.llama import Llama, rotary_table
from bsweep.runlog.files import RunPaths
from bsweep.train import step, worker
from bsweep.train.job import Job
from tests.support.running import compose, tool, write_text

GLOBAL_BATCH, MICROBATCHES, NUM_BLOCKS = 8, 4, 4
TARGET = 1 / 1.05  # of the hand-written program's speed
LLAMA = (
    *("data=text", "data.sequence_length=128", "model=llama_tiny", "model.hidden_size=256"),
    *("model.intermediate_size=688", f"model.num_layers={NUM_BLOCKS}", "model.num_heads=8"),
)
OF_STRATEGY = {
    "sharded": (),
    "tensor": (),
    # The embedding and the first half of the layers, like the hand-written stages.
    "pipeline": (f"strategy.microbatches={MICROBATCHES}", f"strategy.cuts=[{NUM_BLOCKS // 2 + 1}]"),
}


def split(rounds: int = 9) -> dict[str, Any]:
    """By strategy, seconds of a step of two workers, of the first one's clock."""
    found = {}
    for strategy in OF_STRATEGY:
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder) / "book.txt", 200_000)
            bench = str(Path(__file__).parents[1] / "bench.py")
            torchrun = [tool("torchrun"), "--standalone"]
            how = ["--nproc-per-node", "2", bench, "split_worker", strategy, folder, str(rounds)]
            subprocess.run([*torchrun, *how], check=True)
            seconds: Seconds = json.loads((Path(folder) / "found.json").read_text())
        print(f"{strategy}, 2 workers, a Llama of 3.3 M parameters, global batch {GLOBAL_BATCH}: ")
        print(f"  {compared(seconds, 'by hand', {'bsweep': TARGET})}", flush=True)
        found[strategy] = seconds
    return found


def be_worker(strategy: str, folder: Path, rounds: int) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    place = Place.from_environment()
    config = config_of(strategy, folder)
    job = worker.set_up(config, RunPaths(folder / "run"), place)
    shared = GLOBAL_BATCH // config.strategy.data_parallel_size(place.num_workers)
    programs = {"by hand": BY_HAND[strategy](job, place), "bsweep": of_job(job, shared)}
    seconds = alternating(programs, rounds, calls=4, before=dist.barrier)
    if place.rank == 0:
        (folder / "found.json").write_text(json.dumps(seconds))
    dist.barrier()
    job.strategy.close()


def config_of(strategy: str, folder: Path) -> RunConfig:
    return compose(
        f"global_batch={GLOBAL_BATCH}",
        *("local_batch=null", "num_workers=2", "device=cpu", f"strategy={strategy}"),
        *(*OF_STRATEGY[strategy], *LLAMA, *FP32, f"data.path={folder / 'book.txt'}"),
        f"results_dir={folder}",
    )


def of_job(job: Job, size: int) -> Program:
    batch = torch.arange(GLOBAL_BATCH)
    parts = batch.split(size)
    part = parts[job.place.rank % len(parts)]
    job.training_model.train()
    return lambda: step.train_step(job, batch, part, job.inputs.crops(1, job.config.seed))


def whole_model(job: Job) -> Llama:
    model = models.initial(job.config, job.dataset, job.device, torch.float32)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return cast("Llama", model.train())


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def sharded(job: Job, place: Place) -> Program:
    from torch.distributed.fsdp import fully_shard

    model = whole_model(job)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = plain_optimizer(job, model)
    inputs, targets = (
        tensor.chunk(2)[place.rank] for tensor in ready(job.dataset, job.device, GLOBAL_BATCH)
    )

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()

    return step


def tensor(job: Job, place: Place) -> Program:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    from bsweep.models.llama import tensor_plan

    model = whole_model(job)
    parallelize_module(model, init_device_mesh("cpu", (2,)), tensor_plan(model))
    optimizer = plain_optimizer(job, model)
    inputs, targets = ready(job.dataset, job.device, GLOBAL_BATCH)

    def step() -> None:
        # torch's loss_parallel() is on in this process, because the job needs it, too. It cannot be
        # entered twice.
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()

    return step


class FirstHalf(torch.nn.Module):
    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.embedding = model.embedding
        self.blocks = model.blocks[: NUM_BLOCKS // 2]
        self.head_size = model.head_size

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return through(self.blocks, self.embedding(tokens), self.head_size)


class SecondHalf(torch.nn.Module):
    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.blocks = model.blocks[NUM_BLOCKS // 2 :]
        self.norm, self.head = model.norm, model.head
        self.head_size = model.head_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(through(self.blocks, x, self.head_size)))
        return logits


def through(blocks: torch.nn.ModuleList, x: torch.Tensor, head_size: int) -> torch.Tensor:
    rotation = rotary_table(x.shape[1], head_size, like=x)
    for block in blocks:
        x = block(x, rotation)
    return x


def pipeline(job: Job, place: Place) -> Program:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = whole_model(job)
    half = SecondHalf(model) if place.rank else FirstHalf(model)
    stage = PipelineStage(half, place.rank, 2, job.device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = plain_optimizer(job, half)
    inputs, targets = ready(job.dataset, job.device, GLOBAL_BATCH)

    def step() -> None:
        optimizer.zero_grad()
        if place.rank:
            schedule.step(target=targets)
        else:
            schedule.step(inputs)
        optimizer.step()

    return step


BY_HAND: dict[str, Callable[[Job, Place], Program]] = {
    "sharded": sharded,
    "tensor": tensor,
    "pipeline": pipeline,
}
