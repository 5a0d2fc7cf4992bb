"""Deep Gradient Compression (Lin et al., arXiv 1712.01887): each worker adds momentum to its
gradients, sums the results, and sends the largest elements of the sum.

With gradient g of a worker and momentum m: u = m u + g; v = v + u; send the top-k of v, and set u
and v to 0 where it was sent. So an element that waits arrives with the momentum that it would have
had (momentum correction). An element that was just sent starts without momentum (momentum factor
masking). At density 1, without clipping, this is SGD without momentum. With Nesterov momentum g + m
u is added to v.
The optimizer adds weight decay after the exchange, so weight decay has no momentum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bsweep.compression.base import Group, Setting
from bsweep.compression.topk import TopK
from bsweep.config.compression import DGCConfig


class DGC(TopK):
    """The codec DGC, which applies the optimizer's momentum itself and sets it to 0 in the
    optimizer.

    It is created before the optimizer's first step.
    """

    def __init__(self, config: DGCConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.velocity = torch.zeros_like(setting.vector.gradients)
        # If workers' gradients are independent, the norm of their sum is sqrt(num_workers) times
        # that of one of them.
        self._local_clip_norm = config.clip_norm and config.clip_norm / math.sqrt(
            setting.num_workers
        )
        self._momentum: float = setting.optimizer.param_groups[0].get("momentum", 0.0)
        self._nesterov: bool = setting.optimizer.param_groups[0].get("nesterov", False)
        for group in setting.optimizer.param_groups:
            group.update(momentum=0.0, nesterov=False)

    @property
    def state(self) -> list[Tensor]:
        return [*super().state, self.velocity]

    def exchange(self, gradients: Tensor, group: Group) -> None:
        if self._local_clip_norm:
            gradients.mul_(
                (self._local_clip_norm / torch.linalg.vector_norm(gradients)).clamp(max=1)
            )
        self.velocity.mul_(self._momentum).add_(gradients)
        if self._nesterov:
            gradients.add_(self.velocity, alpha=self._momentum)
        else:
            gradients.copy_(self.velocity)
        super().exchange(gradients, group)

    def choose(self, values: Tensor) -> Tensor:
        indices = super().choose(values)
        self.velocity.index_fill_(0, indices, 0)
        return indices
