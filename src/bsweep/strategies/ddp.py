"""The strategy `ddp`: torch's DistributedDataParallel (Li et al., arXiv 2006.15704), which
exchanges buckets of gradients during a step's last backward pass.

The exchange overlaps with the backward pass. So its duration, and how long workers wait for one
another, is not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bsweep.config.strategies import DDPConfig
from bsweep.runlog import heartbeat
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.records import Traffic
from bsweep.strategies.base import ExchangeLog, InBackward, ring_counts
from bsweep.strategies.groups import TorchStrategy


class DDP(TorchStrategy, InBackward):
    card: DDPConfig
    averages = True

    def wrap(self, model: nn.Module) -> nn.Module:
        # BatchNorm statistics are averaged before evaluations, as with every strategy, instead of
        # being sent at every step.
        with worker_lost():
            self._module = DistributedDataParallel(
                model,
                process_group=self.workers,
                bucket_cap_mb=self.card.bucket_mb,
                broadcast_buffers=False,
            )
        # Its first two steps send gradients uncompressed, as torch asks for: DDP may change its
        # buckets in them, and PowerSGD keeps memory for each bucket.
        rank = self.card.powersgd_rank
        self._powersgd = powerSGD_hook.PowerSGDState(
            self.workers, matrix_approximation_rank=rank, start_powerSGD_iter=2
        )
        state, hook = self._hook()
        if hook:
            self._module.register_comm_hook(state, hook)
        return self._module

    def during_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        self._module.require_backward_grad_sync = is_last
        return exchange_lost()

    def step(self) -> None:
        num_bytes = int(self._vector.gradients.nbytes * (self.card.summed_share or 1))
        # `traffic` leaves the exchange steps out, and with powersgd the bytes too.
        self.count(*ring_counts(num_bytes, self.num_workers))
        self._optimizer.step()

    def traffic(self) -> Traffic:
        meter, self.meter = self.meter, ExchangeLog()
        if self.card.hook == "powersgd" and self.num_workers > 1:
            return Traffic()
        return Traffic(sent_bytes=meter.sent_bytes, received_bytes=meter.received_bytes)

    def own_state(self) -> dict[str, Any]:
        if self.card.hook != "powersgd":
            return super().own_state()
        hook = self._powersgd
        _, numbers, *rest = hook.rng.get_state(legacy=True)
        return {
            **super().own_state(),
            "powersgd": {
                name: getattr(hook, name)
                for name in hook.__slots__
                if name not in ("process_group", "rng")
            },
            "powersgd_random": [np.asarray(numbers).tolist(), *rest],
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        if self.card.hook != "powersgd":  # another strategy, without this state, may have saved it
            return
        device = self._vector.parameters.device
        for name, value in state["powersgd"].items():
            if isinstance(value, dict):
                value = {bucket: tensor.to(device) for bucket, tensor in value.items()}
            setattr(self._powersgd, name, value)
        self._powersgd.rng.set_state(("MT19937", *state["powersgd_random"]))

    def _hook(self) -> tuple[Any, Any]:
        match self.card.hook:
            case "fp16":
                return self.workers, default_hooks.fp16_compress_hook
            case "bf16":
                return self.workers, default_hooks.bf16_compress_hook
            case "powersgd":
                return self._powersgd, powerSGD_hook.powerSGD_hook
        if self.see_part:
            # torch inspects the annotations of a hook, which a lambda does not have.
            return self, lambda strategy, bucket: _mean_of_seen(strategy, bucket)
        return None, None


def _mean_of_seen(strategy: DDP, bucket: Any) -> torch.futures.Future[Tensor]:
    """Pass a bucket of this worker's gradients to `strategy.see_part`, then average the bucket over
    all workers.

    The result has the same bits as that of DDP without a hook. This function multiplies by the
    reciprocal of the number of workers, whereas torch's own hook divides.
    """
    assert strategy.see_part
    strategy.see_part(bucket.buffer())
    scaled = bucket.buffer().mul_(1 / strategy.num_workers)
    work = dist.all_reduce(scaled, group=strategy.workers, async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed


class InEachPass(InBackward):
    """A strategy whose workers exchange in each pass, because no worker can compute one alone.

    The duration of these exchanges, and how long workers wait for one another, is not measured.
    """

    collective_forward = True

    def during_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        return exchange_lost()

    def evaluating(self) -> AbstractContextManager[None]:
        return exchange_lost()

    def traffic(self) -> Traffic:
        meter, self.meter = self.meter, ExchangeLog()
        counts = torch.tensor([meter.sent_bytes, meter.received_bytes], dtype=torch.float64)
        sent, received = self.gather(counts).mean(dim=0).tolist()
        return Traffic(sent_bytes=int(sent), received_bytes=int(received))


@contextmanager
def exchange_lost() -> Iterator[None]:
    """Turn the error of an exchange that failed in the `with` block into `WorkerLost`, and raise
    other errors unchanged.
    """
    try:
        with heartbeat.waiting_for_others():
            yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _OF_EXCHANGE.search(str(error)):
            raise
        with worker_lost():
            raise


_OF_EXCHANGE = re.compile(r"gloo|nccl|connection (closed|reset|refused)", re.IGNORECASE)
