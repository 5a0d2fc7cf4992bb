"""A process of the contract tests: trains as a worker does, one job after another, and saves what
the tests compare.

`horovodrun -np 2 python -m tests.support.one_run FOLDER`, or torchrun's equal; without either it is
a lone worker. Job number k is FOLDER/k.pickle, a configuration and what else `run` is given. Each
rank waits for a line in the pipe FOLDER/rank.bell, and answers with FOLDER/k.rank.pt. A job of None
is the last.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bsweep import batching, data, models, strategies
from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.core.ranks import World, inside_horovodrun
from bsweep.data import inputs as inputs_module
from bsweep.numerics.vector import Vector, layout
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.errors import Stopped
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.strategies import Staged
from bsweep.train import loop, step, worker
from bsweep.train import warm_up as warm_up_module
from bsweep.train.checkpointing import _GO_ON, _SAVE, CheckpointSchedule
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job
from tests.support import policies
from tests.support.running import meeting_at

_PLAIN_STEP, _PLAIN_CROP = step.train_step, inputs_module.crop_and_flip
_PLAIN_POLICY, _PLAIN_WARM_UP = batching.build, warm_up_module.make_steps
_PLAIN_SCALED, _PLAIN_LOOP = step.scaled, loop.train


def main(folder: Path) -> None:
    sent_early = _count_early_sends()
    bell = (folder / f"{World.from_environment().rank}.bell").open()
    for number in itertools.count():
        bell.readline()
        job = pickle.loads((folder / f"{number}.pickle").read_bytes())
        if job is None:
            return
        saved_after, broken_after = job.pop("break_off")
        ports = job.pop("ports")
        if broken_after:
            _meet_at(ports.pop())
            break_off(folder / f"{number}.run", saved_after, broken_after, **job)
            job["overflow"] = []
        _meet_at(ports.pop())
        answer = run(folder / f"{number}.run", **job)
        if answer:
            answer["sent_early"] = [sent_early.pop(0) for _ in tuple(sent_early)]
        unfinished = folder / f"{number}.{World.from_environment().rank}.tmp"
        torch.save(answer, unfinished)
        unfinished.rename(unfinished.with_suffix(".pt"))
        del answer  # the next job counts vectors


def run(
    folder: Path,
    config: RunConfig,
    policy: str | None,
    warm_up: bool,
    overflow: list[int],
) -> dict[str, object] | None:
    """What this worker saw and ended with; None of a parameter server.

    Gradients of rank `overflow[0]` are infinite in step `overflow[1]`, if there is such.
    """
    config = user_code.with_fingerprints(config)
    world = World.from_environment(config.num_server_processes)
    seen: list[tuple[list[int], list[torch.Tensor]]] = []

    def spying_crop(images: torch.Tensor, indices: torch.Tensor, **how: object) -> torch.Tensor:
        crops: torch.Tensor = _PLAIN_CROP(images, indices, **how)  # type: ignore[arg-type]
        if seen:  # not of the warm-up
            seen[-1][0].extend(indices.tolist())
            seen[-1][1].extend(crops.cpu().clone())
        return crops

    def spying_step(
        job: Job,
        round_batch: torch.Tensor,
        examples: torch.Tensor,
        crops: torch.Tensor,
        num_passes: int = 1,
    ) -> torch.Tensor:
        seen.append(([], []))
        return _PLAIN_STEP(job, round_batch, examples, crops, num_passes)

    def overflowing(job: Job, loss: torch.Tensor) -> torch.Tensor:
        return _PLAIN_SCALED(job, loss) * (torch.inf if [world.rank, len(seen)] == overflow else 1)

    step.train_step, inputs_module.crop_and_flip = spying_step, spying_crop
    step.scaled = overflowing
    batching.build = getattr(policies, policy) if policy else _PLAIN_POLICY
    warm_up_module.make_steps = _PLAIN_WARM_UP if warm_up else do_nothing
    folder.mkdir(exist_ok=True)
    if world.is_server:
        strategies.serve(config, world, RunPaths(folder))
        return None
    torch.manual_seed(config.seed)
    trained: list[torch.Tensor] = []  # parameters, gathered while all workers are there

    num_vectors: list[int] = []

    def spying_train(job: Job, cursor: Cursor | None) -> None:
        _PLAIN_LOOP(job, cursor)
        num_vectors.append(_num_vectors(job.vector))
        trained.append(_whole(job))

    loop.train = spying_train
    job = worker.train(config, RunPaths(folder), world)
    records = _whole_record(RunPaths(folder))
    kinds = ("epoch", "step", "round", "noise_scale", "evaluation", "event")
    return {
        **{f"{kind}s": [record for record in records if record["type"] == kind] for kind in kinds},
        "parameters": trained[0],
        "seen": seen,
        "moved": _moved(job, trained[0]),
        "num_vectors": num_vectors[0],
        "start": next(record for record in records if record["type"] == "start"),
        "scale": float(job.vector.scale.factor) if job.vector.scale else None,
        "buffers": [buffer.cpu().clone() for buffer in job.model.buffers()],
    }


def break_off(folder: Path, saved_after: int, broken_after: int, **job: Any) -> None:
    """Train, save after a round, and end after a later one as by a kill; the next who trains there
    goes on.
    """
    plain = CheckpointSchedule._agreed_wish

    def wish(self: CheckpointSchedule, ends_epoch: bool) -> int:
        rounds.append(1)
        if len(rounds) == broken_after:
            raise Stopped("as by a kill")
        return _SAVE if len(rounds) == saved_after else _GO_ON

    rounds: list[int] = []
    CheckpointSchedule._agreed_wish = wish  # type: ignore[method-assign]
    with suppress(Stopped):
        # A server is not interrupted.
        assert run(folder, **job) is None, f"the run was over before its round {broken_after}"
    CheckpointSchedule._agreed_wish = plain  # type: ignore[method-assign]
    paths = RunPaths(folder)
    if World.from_environment().rank == 0:
        (saved,) = checkpoints(paths)
        os.truncate(paths.metrics, (saved.facts or {})["metrics_bytes"])


def do_nothing(job: Job) -> None:
    """In place of a warm-up."""


def _whole_record(paths: RunPaths) -> tuple[dict[str, Any], ...]:
    """What the run left on record, once the worker that writes it, which may be another one, has
    done so.
    """
    while (records := read_records(paths.metrics)[0])[-1]["type"] != "end":
        time.sleep(0.01)
    return records


def _meet_at(port: int) -> None:
    """Give torch.distributed another store for each run: what is left in the last one's would
    mislead it.
    """
    if not inside_horovodrun() and "RANK" in os.environ:
        os.environ.update(meeting_at(port))


def _count_early_sends() -> list[int]:
    """Grows by one number a step: how many buckets were on their way when the backward pass was
    over.
    """
    from bsweep.strategies.horovod import Horovod

    counts: list[int] = []
    plain_step = Horovod.step

    def spying_step(self: Horovod) -> None:
        counts.append(sum(bucket.sum is not None for bucket in self._buckets))
        plain_step(self)

    Horovod.step = spying_step  # type: ignore[method-assign, assignment]
    return counts


def _moved(job: Job, trained: torch.Tensor) -> float:
    """How far the weights are from where they began."""
    torch.manual_seed(job.config.seed)
    info = data.prepare(job.config.data)
    model = models.build(job.config.model, num_classes=info.num_classes, shape=info.shape)
    initial = Vector(model.double().to(memory_format=job.inputs.layout))  # type: ignore[call-overload]
    return float((trained.double() - _flat(initial)).abs().max())


def _num_vectors(vector: Vector) -> int:
    """Pieces of memory of the vector's size or more, apart from a data set's, that anything holds
    tensors of.
    """
    gc.collect()
    size = vector.num_bytes
    tensors = [
        thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)
    ]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_floating_point()]
    return len({storage.data_ptr() for storage in storages if storage.nbytes() >= size})


def _whole(job: Job) -> torch.Tensor:
    """All parameters of this worker's replica, as `_flat` has them of a model that is not cut."""
    if not isinstance(job.strategy, Staged):
        return _flat(job.vector)
    slices, tensors = job.vector.slices, job.vector.tensors
    own = {part.name: tensor.detach() for part, tensor in zip(slices, tensors, strict=True)}
    every: list[Any] = [None] * job.world.num_workers
    torch.distributed.all_gather_object(every, (job.strategy.replica, own))
    found: dict[str, torch.Tensor] = {}
    for replica, part in every:
        found |= part if replica == job.strategy.replica else {}
    info = data.prepare(job.config.data)
    model = models.outlined(job.config.model, info.num_classes, info.shape)
    return torch.cat([found[part.name].reshape(-1) for part in layout(model)])


def _flat(vector: Vector) -> torch.Tensor:
    """All parameters in the order of their indices, whatever their strides."""
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in vector.tensors]
    return torch.cat([tensor.detach().cpu().reshape(-1) for tensor in whole])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
