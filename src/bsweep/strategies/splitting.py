"""The base class of the strategies whose workers hold parts of one model instead of copies of it,
and the vector of such a worker.

Only the first worker builds the model with its values. The others get theirs from it, one tensor
after another, so that no worker needs memory for the whole model and its part of it.

Checkpoints are those of torch.distributed.checkpoint. They hold the parameters and each state of
the optimizer by the names of the model's tensors. So any number of workers can load them, each the
parts that it holds now.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bsweep.config.split_strategies import SplitConfig
from bsweep.config.values import ConfigError
from bsweep.core.checksums import sha256_of
from bsweep.core.gpus import num_gpus
from bsweep.numerics.vector import Flat, Slice, Vector, part_of
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.groups import TorchStrategy, Wire, native


class Split(TorchStrategy):
    """A strategy whose workers form as many groups as the card has `replicas`, each of `num_parts`
    neighbouring ranks with one model.
    """

    receives_model = True
    card: SplitConfig

    def connect(self) -> None:
        super().connect()
        self.num_parts = self.card.num_parts(self.num_workers)
        self.part_index = self.rank % self.num_parts
        """The index of this worker among those of its replica."""
        self.ranks = torch.arange(self.num_workers).view(self.card.replicas, self.num_parts)
        """The ranks of all workers, by replica and part."""
        self._replica_group = self.divided(self.ranks)
        # Between the workers of all replicas that hold the same part.
        self._alike = Wire(self.divided(self.ranks.T), self.count)
        on_gpu = num_gpus(self.config.device) > 0
        self.device = torch.device("cuda", self.world.local_rank) if on_gpu else torch.device("cpu")

    def receive(self, modules: Iterable[nn.Module], needed: Sequence[nn.Module] = ()) -> None:
        """Give the tensors of modules the values that they have on the first worker. All workers
        call it together.

        These are parameters, buffers and plain attributes, but no DTensors. On other workers they
        are on the meta device before. Modules that share a tensor go on sharing it.

        Args:
            modules: Modules, each once, without the modules in them.
            needed: Those whose tensors this worker needs, without the modules in them. Other
                tensors become None. Empty: it needs all.

        Raises:
            ConfigError: If a module has tensors in a list or another container, which this worker
                does not receive.
        """
        modules = list(modules)
        needed = needed or modules
        needed_tensors = {t for module in needed for t in _tensors(module).values()}
        values: dict[Tensor, Tensor | None] = {}
        for module in modules:
            for name, tensor in _tensors(module).items():
                if tensor not in values:
                    value = self._received(tensor)
                    values[tensor] = value if tensor in needed_tensors else None
                setattr(module, name, values[tensor])
        for module in needed:
            _refuse_missing(module)

    def _received(self, tensor: Tensor) -> Tensor:
        """Return a tensor as the first worker has it, which calls this with its own."""
        value = torch.empty_like(tensor, device=self.device) if tensor.is_meta else tensor
        sent = value.detach().to(self.device).contiguous()
        with worker_lost():
            dist.broadcast(sent, src=0, group=self.workers)
        if not tensor.is_meta:
            return tensor
        value.copy_(sent)
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(value, tensor.requires_grad) if is_parameter else value

    def mesh(self, model: nn.Module) -> DeviceMesh:
        """Return the workers as a mesh of replicas and parts, which can divide the model.

        Args:
            model: The model, whose parameters become contiguous.
        """
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # torch refuses to split channels_last
        groups, names = [self._alike.group, self._replica_group], ("replica", "part")
        return DeviceMesh.from_group(groups, self.device.type, self.ranks, mesh_dim_names=names)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        self._vector, self._optimizer = vector, optimizer
        names = [piece.name for piece in vector.slices]
        self._names = dict(zip(vector.tensors, names, strict=True))

    def step(self) -> None:
        self._optimizer.step()

    def sum_between_replicas(self, gradients: Tensor) -> None:
        """Sum gradients over the workers of all replicas that hold the same part."""
        if self.card.replicas == 1:
            return
        ranks = self.ranks[:, self.part_index].tolist()
        with worker_lost(), self.meter.exchange(gradients, ranks):
            summed = gradients.bfloat16() if self.card.reduce == "bf16" else gradients
            native(summed, self._alike)
            gradients.copy_(summed)  # does nothing if it was not rounded

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with worker_lost():
            return cast("dict[str, Tensor]", get_model_state_dict(model, options=whole))

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        folder = checkpoint.folder
        with worker_lost():
            try:
                writer = FileSystemWriter(folder)
                save_parts(self._named(), storage_writer=writer, process_group=self.workers)
            except CheckpointException as error:
                raise OSError(f"{folder}: {error}") from error
        names = [path.name for path in folder.glob(f"__{self.rank}_*.distcp")]
        names += [".metadata"] * (self.rank == 0)
        return {name: sha256_of(folder / name) for name in names}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        self._optimizer.step()  # creates the tensors of its state, which all are loaded now
        named, reader = self._named(), FileSystemReader(checkpoint.folder)
        with worker_lost():
            try:
                load_parts(named, storage_reader=reader, process_group=self.workers)
            except (OSError, CheckpointException):
                traceback.print_exc()
                return False
        # torch loads tensors in place, and puts loaded numbers into `named`.
        for group in self._optimizer.param_groups:
            for tensor in group["params"]:
                name, state = self._names[tensor], self._optimizer.state[tensor]
                for key in [key for key in state if not isinstance(state[key], Tensor)]:
                    state[key] = named[f"optimizer.{key}.{name}"]
            numbers = named[f"group.{name}"].tolist()  # all tensors of a group have the same
            for key, number in zip(_numbers(group), numbers, strict=True):
                old = group[key]
                group[key] = old.fill_(number) if isinstance(old, Tensor) else type(old)(number)
        return True

    def _named(self) -> dict[str, Any]:
        """Return the parameters, the optimizer's state and the numbers of its groups by names that
        do not depend on how the model is divided.

        A worker may have other groups than the rest, if it holds no biases, for example.
        """
        named: dict[str, Any] = {}
        for group in self._optimizer.param_groups:
            numbers = [float(group[key]) for key in _numbers(group)]
            for tensor in group["params"]:
                name = self._names[tensor]
                named[f"parameters.{name}"] = tensor.detach()
                named[f"group.{name}"] = torch.tensor(numbers, dtype=torch.float64)
                for key, value in self._optimizer.state[tensor].items():
                    named[f"optimizer.{key}.{name}"] = value
        return named


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module itself by name, apart from DTensors."""
    every = {**vars(module), **module._parameters, **module._buffers}
    return {
        name: value
        for name, value in every.items()
        if isinstance(value, Tensor) and not isinstance(value, DTensor)
    }


def _refuse_missing(module: nn.Module) -> None:
    for name, value in vars(module).items():
        items = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list, tuple)) and any(
            isinstance(item, Tensor) and item.is_meta for item in items
        ):
            raise ConfigError(
                f"{type(module).__name__}.{name} of the model holds tensors in a "
                f"{type(value).__name__}, which workers do not receive from the first worker: make "
                "each tensor an attribute or a buffer of its own."
            )


def _numbers(group: dict[str, Any]) -> list[str]:
    """Return the keys of a parameter group that hold numbers, such as LAMB's count of steps."""
    return sorted(key for key, value in group.items() if isinstance(value, (int, float, Tensor)))


class Parts(Vector):
    """This worker's parts of the trained parameters of a model, each in memory of its own, and
    their gradients as one flat tensor.

    `tensors` are DTensors of the whole parameters. The parts of their `grad` on this worker are
    views of `gradients`, to which passes add.
    """

    by_tensor = True

    def __init__(self, slices: Sequence[Slice], tensors: Mapping[str, Tensor]) -> None:
        """Create the vector, with gradients of zero.

        Args:
            slices: The layout of the whole model.
            tensors: The model's parameters by name, as DTensors.
        """
        self.tensors = tuple(cast(nn.Parameter, tensors[piece.name]) for piece in slices)
        self.num_parameters = sum(tensor.numel() for tensor in self.tensors)
        stops = accumulate((held.numel() for held in self.held), initial=0)
        self.slices = tuple(
            replace(piece, start=start, stop=stop, shape=tuple(held.shape))
            for piece, held, (start, stop) in zip(slices, self.held, pairwise(stops), strict=True)
        )
        self.gradients = self.held[0].new_zeros(self.slices[-1].stop)
        for piece, tensor in zip(self.slices, self.tensors, strict=True):
            assert isinstance(tensor, DTensor)
            tensor.grad = DTensor.from_local(
                self.gradients[piece.start : piece.stop].view(piece.shape),
                tensor.device_mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )

    @property
    def held(self) -> list[Tensor]:
        return [part_of(tensor).detach() for tensor in self.tensors]

    def num_copies(self, piece: Slice) -> int:
        tensor = self.tensors[self.slices.index(piece)]
        assert isinstance(tensor, DTensor)
        sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        return math.prod(size for size, placed in sizes if placed.is_replicate())
