"""The strategy `sharded`: each worker holds a part of every parameter, of its gradient and of the
optimizer's state, by torch's FSDP2 (Zhao et al., arXiv 2304.11277; ZeRO, Rajbhandari et al., arXiv
1910.02054).

Before a block of the model computes, its workers gather the block's parameters. In the backward
pass they sum its gradients, of which each keeps its part. With replicas (HSDP) the workers of a
replica hold one model together, and equal parts are summed between replicas.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from bsweep import models
from bsweep.config.split_strategies import ShardedConfig
from bsweep.core.torch_private import private
from bsweep.numerics import precision
from bsweep.numerics.vector import layout
from bsweep.strategies.ddp import InEachPass
from bsweep.strategies.splitting import Parts, Split


class Sharded(Split, InEachPass):
    card: ShardedConfig
    averages = True
    _num_passes = 0  # of the step so far

    def vector(self, model: nn.Module) -> Parts:
        slices, mesh = layout(model), self.mesh(model)
        self._is_rounded = precision.choose(self.config, self.device) == "bf16"
        as_stored = torch.float32 if self._is_rounded else None
        policy = functools.partial(
            MixedPrecisionPolicy,
            reduce_dtype=torch.bfloat16 if self.card.reduce == "bf16" else as_stored,
            cast_forward_inputs=False,
        )
        # Layers are gathered in bf16 and stay so: autocast alone would gather them in fp32, and
        # keep a rounded copy of each for the backward pass. The loop's autocast stays around the
        # passes nevertheless: norms, softmax and losses then compute in fp32, as with every other
        # strategy, instead of in the type of the parameters.
        layers_policy = policy(param_dtype=torch.bfloat16) if self._is_rounded else policy()
        shard = functools.partial(
            fully_shard,
            mesh=mesh if self.card.replicas > 1 else mesh["part"],
            reshard_after_forward=self.card.reshard == "forward",
        )
        blocks = models.blocks(self.config.model, model) if self.can.gathers_blocks else []
        num_tensors = len(list(model.parameters()))
        for module in (*reversed(blocks), model):  # inner blocks first
            self.receive(module.modules())
            norms = [m for m in _batchnorms(module) if not isinstance(m, FSDPModule)]
            if self._is_rounded and norms:  # with statistics in fp32
                shard(norms, mp_policy=policy())
            if not isinstance(module, FSDPModule):
                shard(module, mp_policy=layers_policy)
        shared = "modules of two blocks share a parameter, see bsweep.models.check_model"
        assert len(list(model.parameters())) == num_tensors, shared
        vector = Parts(slices, dict(model.named_parameters()))
        self._count_elements(model, vector)
        return vector

    def _count_elements(self, model: nn.Module, vector: Parts) -> None:
        """Count what a worker sends of its parts, with the elements without meaning (padding) that
        FSDP2 gives to smaller parts.
        """
        in_fp32 = {id(tensor) for module in _batchnorms(model) for tensor in module.parameters()}
        self._num_elements = self._gathered_bytes = 0
        for tensor in vector.tensors:
            rows, *others = tensor.shape
            num_elements = -(-rows // self.num_parts) * math.prod(others)
            is_rounded = self._is_rounded and id(tensor) not in in_fp32
            self._num_elements += num_elements
            self._gathered_bytes += num_elements * (2 if is_rounded else tensor.element_size())

    def during_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        self._num_passes += 1
        return super().during_pass(is_last=is_last)

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
        gradients = self._vector.gradients
        num_gathers = 1 + (self.card.reshard == "forward")  # before the backward pass again
        element_bytes = 2 if self.card.reduce == "bf16" else gradients.element_size()
        summed = self._num_elements * element_bytes
        within = num_gathers * self._gathered_bytes + (1 + (not gradients.is_cuda)) * summed
        replicas = self.card.replicas
        return (self.num_parts - 1) * within + 2 * (replicas - 1) * summed // replicas


def _batchnorms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, private("batchnorm"))]
