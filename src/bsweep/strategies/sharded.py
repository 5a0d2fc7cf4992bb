"""The strategy `sharded`: each worker holds a part of every parameter, of its gradient and of the
optimizer's state, by torch's FSDP2 (Zhao et al., arXiv 2304.11277; ZeRO, Rajbhandari et al., arXiv
1910.02054).

Before a block of the model computes, its workers gather the block's parameters. In the backward
pass they sum its gradients, of which each keeps its part. With replicas (HSDP) the workers of a
replica hold one model together, and equal parts are summed between replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from bsweep import models
from bsweep.config.run import RunConfig
from bsweep.config.splitting import ShardedConfig
from bsweep.core.ranks import Place
from bsweep.numerics.sharded_vector import ShardedVector, of_fsdp
from bsweep.numerics.vector import Flat
from bsweep.runlog.files import RunPaths
from bsweep.strategies.splitting import Split


class Sharded(Split):
    def __init__(
        self, config: RunConfig, strategy: ShardedConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self._config, self._card = strategy, config.model
        self.gradient_weight = float(self.num_workers)  # FSDP2 averages, other strategies sum

    def vector(self, model: nn.Module) -> ShardedVector:
        mesh = self.mesh(model)
        if self.num_replicas == 1:
            mesh = mesh["part"]
        rounded = MixedPrecisionPolicy(
            reduce_dtype=torch.bfloat16 if self._config.reduce == "bf16" else None,
            cast_forward_inputs=False,
        )
        of_blocks = models.blocks(self._card, model) if self._config.wrap == "blocks" else []
        num_tensors = len(list(model.parameters()))
        for module in (*reversed(of_blocks), model):  # inner blocks first
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self._config.reshard == "forward",
                mp_policy=rounded,
            )
        shared = "modules of two blocks share a parameter, see bsweep.models.check_model"
        assert len(list(model.parameters())) == num_tensors, shared
        return ShardedVector(of_fsdp(model))

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self._num_passes = 0  # of the step so far

    @contextmanager
    def during_pass(self, *, is_last: bool) -> Iterator[None]:
        self._num_passes += 1
        with super().during_pass(is_last=is_last):
            yield

    def step(self) -> None:
        num_bytes = self._num_passes * self._bytes_of_pass()
        self.count(num_bytes, num_bytes)
        self._num_passes = 0
        super().step()

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
        replicas = self.num_replicas
        return (self.num_parts - 1) * within + 2 * (replicas - 1) * summed // replicas
