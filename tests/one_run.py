"""A process of a contract test: train as a worker does, and save what the test compares.

`horovodrun -np 2 python -m tests.one_run OUT key=value ...`; without horovodrun it is a lone worker.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from bsweep import data, strategies, worker
from bsweep.data import augment
from bsweep.place import Place
from bsweep.runlog import RunPaths, read_records
from bsweep.vector import Vector
from tests.running import compose


def main(out: Path, *overrides: str) -> None:
    config = compose(*overrides)
    place = Place.from_environment(config.num_server_processes)
    seen: list[tuple[list[int], list[torch.Tensor]]] = []
    plain_step, plain_crop = worker.train_step, augment.crop_and_flip

    def spying_crop(images: torch.Tensor, indices: torch.Tensor, **how: object) -> torch.Tensor:
        crops: torch.Tensor = plain_crop(images, indices, **how)  # type: ignore[arg-type]
        seen[-1][0].extend(indices.tolist())
        seen[-1][1].extend(crops.clone())
        return crops

    def spying_step(job: worker.Job, batch: torch.Tensor, epoch: int) -> torch.Tensor:
        seen.append(([], []))
        return plain_step(job, batch, epoch)

    sent_early = _count_early_sends()
    worker.train_step, augment.crop_and_flip = spying_step, spying_crop
    folder = out / "run"
    folder.mkdir(parents=True, exist_ok=True)
    if place.is_server:
        strategies.serve(config, place, RunPaths(folder))
        return
    torch.manual_seed(config.seed)
    job = worker.train(config, RunPaths(folder), place)
    result = {
        "parameters": _flat(job.vector),
        "seen": seen,
        "moved": _moved(job),
        "epochs": [r for r in read_records(RunPaths(folder).metrics)[0] if r["type"] == "epoch"],
        "buffers": [buffer.clone() for buffer in job.model.buffers()],
        "sent_early": sent_early,
    }
    torch.save(result, out / f"rank{place.rank}.pt")


def _count_early_sends() -> list[int]:
    """Grows by one number a step: how many buckets were on their way when the backward pass was over."""
    from bsweep.strategies.horovod import Horovod

    counts: list[int] = []
    plain_step = Horovod.step

    def spying_step(self: Horovod) -> None:
        counts.append(sum(bucket.handle is not None for bucket in self._buckets))
        plain_step(self)

    Horovod.step = spying_step  # type: ignore[method-assign]
    return counts


def _moved(job: worker.Job) -> float:
    """How far the weights are from where they began."""
    from bsweep import models

    torch.manual_seed(job.config.seed)
    shape = data.prepare(job.config.data).shape
    model = models.build(job.config.model, num_classes=len(job.dataset.classes), in_channels=shape[0])
    initial = Vector(model.double().to(memory_format=worker.memory_format(job.config))).parameters  # type: ignore[call-overload]
    return float((job.vector.parameters.double() - initial).abs().max())


def _flat(vector: Vector) -> torch.Tensor:
    """All parameters in the order of their indices, whatever their strides."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in vector.tensors])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
