"""The strategy `sharded`: each worker holds a part of every parameter, of its gradient and of the
optimizer's state, by torch's FSDP2 (Zhao et al., arXiv 2304.11277; ZeRO, Rajbhandari et al., arXiv
1910.02054).

Before a block of the model computes, its workers gather the block's parameters. In the backward
pass they sum its gradients, of which each keeps its part. With replicas (HSDP) the workers of a
replica hold one model together, and equal parts are summed between replicas.

The exchange overlaps with the passes. So its duration, and how long workers wait for one another,
is not measured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from bsweep import models
from bsweep.config.run import RunConfig
from bsweep.config.splitting import ShardedConfig
from bsweep.core.ranks import Place
from bsweep.numerics import optim
from bsweep.numerics.sharded_vector import ShardedVector
from bsweep.numerics.vector import Flat
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Traffic
from bsweep.strategies import parts
from bsweep.strategies.base import InBackward, Meter
from bsweep.strategies.ddp import exchange_lost
from bsweep.strategies.process_group import TorchStrategy


class Sharded(TorchStrategy, InBackward):
    passes_together = True
    saves_model = True

    def __init__(
        self, config: RunConfig, strategy: ShardedConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self._config, self._card = strategy, config.model
        self._num_parts = strategy.num_parts(place.num_workers)
        self.loss_scale = float(self.num_workers)  # FSDP2 averages, other strategies sum

    def vector(self, model: nn.Module) -> ShardedVector:
        with worker_lost():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, src=0, group=self.workers)
        device = next(model.parameters()).device
        for tensor in model.parameters():
            tensor.data = tensor.data.contiguous()  # FSDP2 refuses others, as of channels_last
        ranks = torch.arange(self.num_workers).view(self._config.replicas, self._num_parts)
        names = ("replica", "part")
        mesh = DeviceMesh(device.type, ranks, mesh_dim_names=names)
        if self._config.replicas == 1:
            mesh = mesh["part"]
        rounded = MixedPrecisionPolicy(
            reduce_dtype=torch.bfloat16 if self._config.reduce == "bf16" else None,
            cast_forward_inputs=False,
        )
        of_blocks = models.blocks(self._card, model) if self._config.wrap == "blocks" else []
        for module in (*of_blocks, model):
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self._config.reshard == "forward",
                mp_policy=rounded,
            )
        return ShardedVector(model)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        assert isinstance(vector, ShardedVector)
        self._num_passes = 0  # of the step so far
        self._parts, self._optimizer = vector, optimizer

    def before_last_pass(self) -> None:
        """Do nothing: each pass sums its gradients, so that no worker ever holds a whole one."""

    def passes(self) -> AbstractContextManager[None]:
        self._num_passes += 1
        return exchange_lost()

    def step(self) -> None:
        num_bytes = self._num_passes * self._bytes_of_pass()
        self.meter.sent_bytes += num_bytes
        self.meter.received_bytes += num_bytes
        self._num_passes = 0
        self._optimizer.step()

    def rehearse(self) -> None:
        optim.rehearse(self._optimizer)
        self._num_passes = 0

    def _bytes_of_pass(self) -> int:
        """Return the bytes that a worker sends in one pass, if all collectives are rings.

        Gloo sums and scatters gradients by an all-reduce for each worker, which sends twice as much
        as NCCL's reduce-scatter.
        """
        gradients, parameters = self._parts.gradients, self._parts.parameters.nbytes
        num_gathers = 1 + (self._config.reshard == "forward")  # before the backward pass again
        element_bytes = 2 if self._config.reduce == "bf16" else gradients.element_size()
        summed = gradients.numel() * element_bytes
        within = num_gathers * parameters + (1 + (not gradients.is_cuda)) * summed
        replicas = self._config.replicas
        return (self._num_parts - 1) * within + 2 * (replicas - 1) * summed // replicas

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with worker_lost():
            return cast("dict[str, Tensor]", get_model_state_dict(model, options=whole))

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        return parts.save(self._parts, self._optimizer, checkpoint.folder, self.workers)

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        parts.load(self._parts, self._optimizer, checkpoint.folder, self.workers)
        return True

    def traffic(self) -> Traffic:
        meter, self.meter = self.meter, Meter()
        return Traffic(sent_bytes=meter.sent_bytes, received_bytes=meter.received_bytes)
