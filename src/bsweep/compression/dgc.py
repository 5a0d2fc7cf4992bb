"""Deep Gradient Compression (Lin et al., arXiv 1712.01887): top-k with momentum applied before the
choice.

With gradient g of a worker and momentum m: u = m u + g; v = v + u; send the top-k of v, and set u
and v to 0 where it was sent. So an element that waits arrives with the momentum it would have had
(momentum correction), and one just sent starts without (momentum factor masking: at density 1 this
is SGD without momentum). Nesterov's form adds g + m u to v. Weight decay, which the optimizer adds
after the exchange, goes without momentum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bsweep.compression.base import Group, Setting
from bsweep.compression.topk import TopK
from bsweep.config import DGCConfig


class DGC(TopK):
    """Takes the momentum over from `optimizer`, which must not have stepped yet."""

    def __init__(self, config: DGCConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.velocity = torch.zeros_like(setting.vector.gradients)
        # The gradients of independent workers add up to a norm of sqrt(num_workers) times their
        # own.
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
