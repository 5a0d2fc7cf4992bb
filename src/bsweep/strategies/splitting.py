"""The base class of the strategies whose workers hold parts of one model instead of copies of it.

The exchange overlaps with the passes. So its duration, and how long workers wait for one another,
is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from bsweep.config.run import RunConfig
from bsweep.config.splitting import SplitConfig
from bsweep.core.ranks import Place
from bsweep.numerics.sharded_vector import ShardedVector
from bsweep.numerics.vector import Flat
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Traffic
from bsweep.strategies.base import ExchangeLog
from bsweep.strategies.ddp import InEachPass
from bsweep.strategies.parts import InParts


class Split(InParts, InEachPass):
    """A strategy whose workers form `num_replicas` groups of `num_parts` neighbouring ranks, each
    with one model.
    """

    def __init__(
        self, config: RunConfig, strategy: SplitConfig, place: Place, paths: RunPaths
    ) -> None:
        super().__init__(config, strategy, place, paths)
        self.num_replicas = strategy.replicas
        self.num_parts = strategy.num_parts(place.num_workers)

    def mesh(self, model: nn.Module) -> DeviceMesh:
        """Give all workers the same model, and return the workers as a mesh of replicas and parts.

        Args:
            model: The model, whose parameters become contiguous.
        """
        with worker_lost():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, src=0, group=self.workers)
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # torch refuses to split channels_last
        device = next(model.parameters()).device
        ranks = torch.arange(self.num_workers).view(self.num_replicas, self.num_parts)
        return DeviceMesh(device.type, ranks, mesh_dim_names=("replica", "part"))

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        assert isinstance(vector, ShardedVector)
        self._vector = self._parts = vector
        self._optimizer = optimizer

    @contextmanager
    def during_pass(self, *, is_last: bool) -> Iterator[None]:
        with super().during_pass(is_last=is_last):
            yield
        if is_last:
            self._parts.collect_gradients()

    def step(self) -> None:
        self._optimizer.step()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with worker_lost():
            return cast("dict[str, Tensor]", get_model_state_dict(model, options=whole))

    def traffic(self) -> Traffic:
        meter, self.meter = self.meter, ExchangeLog()
        return Traffic(sent_bytes=meter.sent_bytes, received_bytes=meter.received_bytes)
