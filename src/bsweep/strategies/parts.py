"""The checkpoint of a model whose parts lie on several workers, by torch.distributed.checkpoint.

The parameters and each state of the optimizer are saved by the names of the model's tensors. So any
number of workers can load them, each the parts that it holds now.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.optim import Optimizer

from bsweep.core.checksums import sha256_of
from bsweep.numerics import optim
from bsweep.numerics.vector import Slice, Vector
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.groups import TorchStrategy


class InParts(TorchStrategy):
    """A strategy whose checkpoints hold the parts of the model by the names of its tensors."""

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        assert isinstance(self._vector, Vector)
        return save(self._vector, self._optimizer, checkpoint.folder, self.workers)

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        assert isinstance(self._vector, Vector)
        try:
            load(self._vector, self._optimizer, checkpoint.folder, self.workers)
        except OSError:
            traceback.print_exc()
            return False
        return True


def save(
    vector: Vector, optimizer: Optimizer, folder: Path, group: dist.ProcessGroup
) -> dict[str, str]:
    """Write the parameters and the optimizer's state to files in `folder`; all workers of the
    group call this together.

    Args:
        vector: This worker's parts of the parameters.
        optimizer: The optimizer of these parts.
        folder: The folder of the checkpoint.
        group: The process group of all workers.

    Returns:
        The SHA-256 of the files that this worker wrote, by name.

    Raises:
        OSError: If a file cannot be written.
    """
    named, writer = _named(vector, optimizer), FileSystemWriter(folder)
    with worker_lost():
        try:
            save_parts(named, storage_writer=writer, process_group=group)
        except CheckpointException as error:
            raise OSError(f"{folder}: {error}") from error
    rank = dist.get_rank(group)
    names = [path.name for path in folder.glob(f"__{rank}_*.distcp")]
    names += [".metadata"] * (rank == 0)
    return {name: sha256_of(folder / name) for name in names}


def load(vector: Vector, optimizer: Optimizer, folder: Path, group: dist.ProcessGroup) -> None:
    """Restore the parameters and the optimizer's state from the files in `folder`, in the tensors
    that hold them; all workers of the group call this together.

    Args:
        vector: This worker's parts of the parameters.
        optimizer: The optimizer of these parts.
        folder: The folder of the checkpoint.
        group: The process group of all workers.

    Raises:
        OSError: If a file cannot be read.
    """
    with optim.undone(optimizer):  # creates the tensors of the optimizer's state
        optimizer.step()
    named = _named(vector, optimizer)
    with worker_lost():
        try:
            load_parts(named, storage_reader=FileSystemReader(folder), process_group=group)
        except CheckpointException as error:
            raise OSError(f"{folder}: {error}") from error
    # torch loads tensors in place, and puts loaded numbers into `named`.
    for settings, parameter, (part, *_) in _held(vector, optimizer):
        for key, value in optimizer.state[parameter].items():
            if not isinstance(value, Tensor):
                optimizer.state[parameter][key] = named[f"optimizer.{key}.{part.name}"]
        keys, numbers = _numbers(settings), named[f"group.{part.name}"].tolist()
        for key, number in zip(keys, numbers, strict=True):
            kept = settings[key]
            settings[key] = kept.fill_(number) if isinstance(kept, Tensor) else type(kept)(number)


def _named(vector: Vector, optimizer: Optimizer) -> dict[str, Any]:
    """Return the parameters, the optimizer's state and the numbers of its groups by names that do
    not depend on how the model is divided.

    All are named by the slices of the vector. A worker may have other groups than the rest, if it
    holds no biases, for example.
    """
    named: dict[str, Any] = {
        f"parameters.{part.name}": vector.whole(vector.parameters, part) for part in vector.slices
    }
    for settings, parameter, held in _held(vector, optimizer):
        is_flat = id(parameter) not in map(id, vector.tensors)
        numbers = [float(settings[key]) for key in _numbers(settings)]
        for part in held:
            named[f"group.{part.name}"] = torch.tensor(numbers, dtype=torch.float64)
            for key, value in optimizer.state[parameter].items():
                is_vector = isinstance(value, Tensor) and value.shape == parameter.shape
                start = held[0].start
                own = vector.whole(value, part, start) if is_flat and is_vector else value
                named[f"optimizer.{key}.{part.name}"] = own
    return named


def _held(
    vector: Vector, optimizer: Optimizer
) -> Iterator[tuple[dict[str, Any], Tensor, list[Slice]]]:
    """Yield each parameter of the optimizer with the settings of its group before it, and the
    slices of the vector that it holds behind it.
    """
    of_tensors = {id(t): part for t, part in zip(vector.tensors, vector.slices, strict=True)}
    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            if part := of_tensors.get(id(parameter)):
                yield settings, parameter, [part]
                continue
            start = int(parameter.storage_offset())
            stop = start + len(parameter)
            yield settings, parameter, [p for p in vector.slices if start <= p.start < stop]


def _numbers(settings: dict[str, Any]) -> list[str]:
    """Return the keys of a parameter group that hold numbers, such as LAMB's count of steps."""
    kept = (key for key, value in settings.items() if isinstance(value, (int, float, Tensor)))
    return sorted(kept)
