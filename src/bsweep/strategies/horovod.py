"""The strategy `horovod`, which sums gradients by Horovod's all-reduce (Sergeev and Del Balso,
arXiv 1802.05799), or combines them by its Adasum.

Horovod's `DistributedOptimizer` is not used: it refuses channels_last gradients and reduces tensor
by tensor. Here the vector is summed in one call, or in a few `buckets`. Several buckets travel
while the backward pass still computes earlier layers. With a codec, the codec sends its own
tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.config.strategies import CYCLE_VARIABLE, GPU_CYCLE_MS, HorovodConfig
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import num_cores
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.base import InBackward, Summing, ring_counts


class Horovod(Summing, InBackward):
    """The strategy `horovod`, whose step is that of `Summing`: it calls `exchange`, which calls
    `sum_gradients` here or a codec, and then the optimizer's step.
    """

    card: HorovodConfig

    def connect(self) -> None:
        os.environ.update(self.card.variables())
        import horovod.torch as hvd

        on_gpu = num_gpus(self.config.device) > 0
        _begin(hvd, on_gpu=on_gpu, local_workers=self.world.local_workers)
        self._hvd = hvd
        # Each worker's loss is divided by the examples of all, so that the sum of the gradients is
        # the average. Adasum combines the workers' means.
        self.averages = self.card.op == "adasum"
        self._operation = hvd.Adasum if self.averages else hvd.Sum

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        self._vector, self._optimizer = vector, optimizer
        size, number = vector.gradients.numel(), self.card.buckets
        borders = [size * index // number for index in range(number + 1)]
        self._buckets = [_Bucket(index, *ends) for index, ends in enumerate(pairwise(borders))]
        self._hooks = []
        self.build_codec()
        if self.num_workers == 1:
            return
        # A Horovod without NCCL copies GPU tensors to the host without waiting for the copy. So it
        # is given host tensors.
        self._through_host = vector.gradients.is_cuda and not self._hvd.nccl_built()
        start = vector.parameters.cpu() if self._through_host else vector.parameters
        with self._worker_lost():
            self._hvd.broadcast_(start, root_rank=0, name="parameters")
        vector.parameters.copy_(start)
        if len(self._buckets) > 1:
            for piece, tensor in zip(vector.slices, vector.tensors, strict=True):
                buckets = [
                    b for b in self._buckets if b.start < piece.stop and piece.start < b.stop
                ]
                self._hooks.append(
                    tensor.register_post_accumulate_grad_hook(self._arrival(buckets))
                )
                for bucket in buckets:
                    bucket.num_tensors += 1

    def during_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        for bucket in self._buckets if is_last else ():
            bucket.num_missing = bucket.num_tensors
        return nullcontext()

    def sum_gradients(self) -> None:
        for bucket in self._buckets:
            self._send(bucket)
        for bucket in self._buckets:
            assert bucket.sum is not None
            self._finish(*bucket.sum, self._vector.gradients[bucket.start : bucket.stop])
            bucket.sum, bucket.num_missing = None, 0

    def all_reduce(self, tensor: Tensor) -> None:
        self._finish(*self._start(tensor, f"codec.{tensor.numel()}.{tensor.dtype}"), tensor)

    def all_gather(self, payload: Tensor) -> list[Tensor]:
        wire = host_copy(payload) if self._through_host else payload
        others = self.num_workers - 1
        self.count(others * payload.nbytes, others * payload.nbytes, others)
        return list(self._gathered(wire).to(payload.device))

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0) if self.num_workers == 1 else self._gathered(values)

    def _gathered(self, tensor: Tensor) -> Tensor:
        name = f"gather.{tensor.numel()}.{tensor.dtype}"
        with self._worker_lost():
            rows: Tensor = self._hvd.allgather(tensor.unsqueeze(0), name=name)
        return rows

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _arrival(self, buckets: list[_Bucket]) -> Callable[[nn.Parameter], None]:
        def hook(_: nn.Parameter) -> None:
            for bucket in buckets:
                if bucket.num_missing:  # 0 before the last pass of a step
                    bucket.num_missing -= 1
                    if not bucket.num_missing:
                        self._send(bucket)

        return hook

    def _send(self, bucket: _Bucket) -> None:
        if bucket.sum is None:
            gradients = self._vector.gradients[bucket.start : bucket.stop]
            if self.see_part:
                self.see_part(gradients)
            bucket.sum = self._start(gradients, f"gradient.{bucket.index}")

    def _start(self, tensor: Tensor, name: str) -> tuple[int, Tensor]:
        """Start Horovod's sum (or Adasum) of `tensor` over workers.

        Return the handle of this operation and the tensor that will hold the sum.
        """
        wire = host_copy(tensor) if self._through_host else tensor
        with self._worker_lost():
            handle: int = self._hvd.allreduce_async_(wire, op=self._operation, name=name)
        self.count(*ring_counts(wire.nbytes, self.num_workers))
        return handle, wire

    def _worker_lost(self) -> AbstractContextManager[None]:
        from horovod.common.exceptions import HorovodInternalError

        return worker_lost(HorovodInternalError)

    def _finish(self, handle: int, wire: Tensor, target: Tensor) -> None:
        with self._worker_lost():
            self._hvd.synchronize(handle)
        if self._through_host:
            target.copy_(wire, non_blocking=True)


def _begin(hvd: Any, *, on_gpu: bool, local_workers: int) -> None:
    """Start Horovod, on GPUs with a cycle of `GPU_CYCLE_MS` if another one is not asked for and a
    host has two cores for each worker.

    A step on a GPU may take less than a millisecond. Horovod would wait for the end of its cycle as
    long, in a thread that needs a core for shorter cycles. The variable is removed when Horovod has
    read it: Horovod keeps the value, and a process in which the variable is set may not restart
    Horovod.
    """
    if on_gpu and CYCLE_VARIABLE not in os.environ and num_cores() >= 2 * local_workers:
        os.environ[CYCLE_VARIABLE] = str(GPU_CYCLE_MS)
        try:
            hvd.init()
        finally:
            del os.environ[CYCLE_VARIABLE]
    else:
        hvd.init()


def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy of a GPU tensor in host memory, once the copy is complete.

    A Horovod without NCCL takes it. The memory is pinned, so that the GPU copies to it without the
    CPU. torch keeps freed pinned memory for the next step.
    """
    copied = torch.empty_like(tensor, device="cpu", pin_memory=True)
    copied.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return copied


@dataclass
class _Bucket:
    """A part of the flat gradient vector that one operation of Horovod sums.

    One of several buckets travels as soon as all gradients in it are computed.
    """

    index: int
    start: int
    stop: int
    num_tensors: int = 0
    num_missing: int = 0
    sum: tuple[int, Tensor] | None = None  # the operation's handle and the tensor with its result
