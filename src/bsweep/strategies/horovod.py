"""Horovod's ring all-reduce (Sergeev and Del Balso, arXiv 1802.05799) of the gradient vector.

Horovod's `DistributedOptimizer` is not used: it refuses channels_last gradients and reduces tensor by tensor, while the
vector goes in one call, or in a few `buckets` that travel while the backward pass still computes earlier layers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config import HorovodConfig
from bsweep.strategies.base import Strategy, Traffic, WorkerLost
from bsweep.vector import Vector

# Horovod's knobs by their keys in the configuration: the variable that its core reads when it starts, the unit of the
# variable in that of the key, and Horovod's own default in the key's unit.
KNOBS = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", 2**20, 128),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1, 1.0),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1, 1024),
}


def environment(config: HorovodConfig) -> dict[str, str]:
    """The variables of the knobs that are not at their default; Horovod 0.28.1 cannot restart where any is set."""
    changed = {}
    for key, (variable, unit, default) in KNOBS.items():
        value = getattr(config, key)
        if value != default:
            changed[variable] = str(value if unit == 1 else int(value * unit))
    return changed


class Horovod(Strategy):
    def __init__(self, config: HorovodConfig) -> None:
        os.environ.update(environment(config))
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self._config = config
        self._num_workers: int = hvd.size()
        self._operation = hvd.Adasum if config.op == "adasum" else hvd.Sum
        self._exchange_seconds: list[float] = []  # this worker's, per step, its wait for others included
        self._sent_bytes = 0

    def prepare(self, vector: Vector, optimizer: Optimizer) -> None:
        self._vector, self._optimizer = vector, optimizer
        self._buckets = [
            _Bucket(index, start, stop) for index, (start, stop) in enumerate(vector.parts(self._config.buckets))
        ]
        self._hooks = []
        if self._num_workers == 1:
            return
        # A Horovod without NCCL copies GPU tensors to the host without waiting for the copy: it gets host tensors.
        self._through_host = vector.gradients.is_cuda and not self._hvd.nccl_built()
        start = vector.parameters.cpu() if self._through_host else vector.parameters
        with _worker_lost():
            self._hvd.broadcast_(start, root_rank=0, name="parameters")
        vector.parameters.copy_(start)
        if len(self._buckets) > 1:
            for part, tensor in zip(vector.slices, vector.tensors, strict=True):
                touched = [b for b in self._buckets if b.start < part.stop and part.start < b.stop]
                self._hooks.append(tensor.register_post_accumulate_grad_hook(self._arrival(touched)))
                for bucket in touched:
                    bucket.num_tensors += 1

    def before_last_backward(self) -> None:
        for bucket in self._buckets:
            bucket.num_missing = bucket.num_tensors

    def step(self) -> None:
        if self._num_workers > 1:
            if self._vector.gradients.is_cuda:
                torch.cuda.synchronize()  # the clock must not count the rest of the backward pass
            start = time.perf_counter()
            with _worker_lost():
                for bucket in self._buckets:
                    self._send(bucket)
                for bucket in self._buckets:
                    self._receive(bucket)
            self._exchange_seconds.append(time.perf_counter() - start)
        self._optimizer.step()

    def mean(self, values: Tensor) -> Tensor:
        if self._num_workers == 1:
            return values
        with _worker_lost():
            result: Tensor = self._hvd.allreduce(values, op=self._hvd.Average, name=f"mean.{values.numel()}")
        return result

    def traffic(self) -> Traffic:
        """All workers leave a ring together, and the last to arrive waits for nobody: its time is the exchange."""
        own = torch.tensor(self._exchange_seconds, dtype=torch.float64)
        sent, self._exchange_seconds, self._sent_bytes = self._sent_bytes, [], 0
        if self._num_workers == 1 or not len(own):
            return Traffic(sent_bytes=0, received_bytes=0, exchange_seconds=0.0, wait_seconds=0.0)
        with _worker_lost():
            least = self._hvd.allreduce(own, op=self._hvd.Min, name=f"least.{len(own)}")
        exchange = float(least.sum())
        wait = float(self.mean(own.sum().reshape(1))) - exchange
        return Traffic(sent_bytes=sent, received_bytes=sent, exchange_seconds=exchange, wait_seconds=wait)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _arrival(self, buckets: list[_Bucket]) -> Any:
        def hook(_: Tensor) -> None:
            for bucket in buckets:
                if bucket.num_missing:  # 0 while gradients still accumulate over forward passes
                    bucket.num_missing -= 1
                    if not bucket.num_missing:
                        self._send(bucket)

        return hook

    def _send(self, bucket: _Bucket) -> None:
        if bucket.handle is not None:
            return
        part = self._vector.gradients[bucket.start : bucket.stop]
        if self._config.op == "adasum":
            part.mul_(self._num_workers)  # Adasum combines local means, not shares of the global one
        bucket.wire = part.half() if self._config.compression == "fp16" else part
        if self._through_host:
            bucket.wire = bucket.wire.cpu()
        with _worker_lost():
            bucket.handle = self._hvd.allreduce_async_(bucket.wire, op=self._operation, name=f"gradient.{bucket.index}")
        # Each worker sends (p - 1) / p of the vector in the reduce-scatter and again in the all-gather.
        wire_bytes = bucket.wire.numel() * bucket.wire.element_size()
        self._sent_bytes += 2 * (self._num_workers - 1) * wire_bytes // self._num_workers

    def _receive(self, bucket: _Bucket) -> None:
        self._hvd.synchronize(bucket.handle)
        bucket.handle = None
        bucket.num_missing = 0
        if self._through_host or self._config.compression == "fp16":
            self._vector.gradients[bucket.start : bucket.stop].copy_(bucket.wire)


class _Bucket:
    """A part of the vector that travels by itself, as soon as all its tensors have their gradients."""

    def __init__(self, index: int, start: int, stop: int) -> None:
        self.index, self.start, self.stop = index, start, stop
        self.num_tensors = 0
        self.num_missing = 0
        self.wire = torch.empty(0)
        self.handle: int | None = None


@contextmanager
def _worker_lost() -> Iterator[None]:
    from horovod.common.exceptions import HorovodInternalError

    try:
        yield
    except HorovodInternalError as error:
        raise WorkerLost(f"the exchange broke off, another worker has probably ended: {error}") from error
