"""The checkpoint of a model whose parts lie on several workers, by torch.distributed.checkpoint.

The parameters and each state of the optimizer are saved by the names of the model's tensors. So any
number of workers can load them, each the parts that it holds now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.optim import Optimizer

from bsweep.core.regular_files import sha256_of
from bsweep.numerics import optim
from bsweep.numerics.sharded_vector import ShardedVector
from bsweep.runlog.errors import worker_lost


def save(
    vector: ShardedVector, optimizer: Optimizer, folder: Path, group: dist.ProcessGroup
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


def load(
    vector: ShardedVector, optimizer: Optimizer, folder: Path, group: dist.ProcessGroup
) -> None:
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
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state[parameter].items():
            if not isinstance(value, Tensor):
                optimizer.state[parameter][key] = named[f"optimizer.{key}.{number}"]
    for number, settings in enumerate(optimizer.param_groups):
        settings.update({key: named[f"group.{number}.{key}"] for key in _numbers(settings)})


def _named(vector: ShardedVector, optimizer: Optimizer) -> dict[str, Any]:
    """Return the parameters and the optimizer's state by names that do not depend on the number of
    workers.

    State of a flat parameter is named by the slices of the vector.
    """
    slices = {id(t): part for t, part in zip(vector.tensors, vector.slices, strict=True)}
    named: dict[str, Any] = {
        f"parameters.{part.name}": vector.whole(vector.parameters, part) for part in vector.slices
    }
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state[parameter].items():
            if id(parameter) in slices and isinstance(value, Tensor):
                named[f"optimizer.{key}.{slices[id(parameter)].name}"] = value
            elif isinstance(value, Tensor) and value.shape == parameter.shape:
                start = int(parameter.storage_offset())
                for part in vector.slices:
                    if start <= part.start < start + len(parameter):
                        whole = vector.whole(value, part, start)
                        named[f"optimizer.{key}.{part.name}"] = whole
            else:
                named[f"optimizer.{key}.{number}"] = value
    for number, settings in enumerate(optimizer.param_groups):
        named |= {f"group.{number}.{key}": settings[key] for key in _numbers(settings)}
    return named


def _numbers(settings: dict[str, Any]) -> list[str]:
    """Return the keys of a parameter group that hold numbers, such as LAMB's count of steps."""
    return [key for key, value in settings.items() if isinstance(value, (int, float, Tensor))]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
