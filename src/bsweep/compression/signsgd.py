"""The codec signSGD with error feedback (Karimireddy et al., arXiv 1901.09847): workers send the
sign of each element of their gradient and memory, with one number for each layer.

With memory m_t and gradient g_t of a worker, for each layer of d elements: v = m_t + g_t; send
(|v|_1 / d) sign(v); m_(t+1) = v less what was sent. An element costs one bit, and a layer costs one
number, the mean size of its elements of v. sign(0) is 1 here; the memory corrects that error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bsweep.compression.base import GatherCodec, Setting
from bsweep.compression.payload import Layers, join, pack, split, unpack
from bsweep.config.compression import SignSGDConfig


class SignSGD(GatherCodec):
    def __init__(self, config: SignSGDConfig, setting: Setting) -> None:
        self.memory: Tensor = torch.zeros_like(setting.vector.gradients)
        self._layers = Layers(setting.vector)

    def encode(self, values: Tensor) -> Tensor:
        sizes = self._layers.mean_sizes(values)
        return join(sizes, pack((values >= 0).to(torch.uint8), 1))

    def add_decoded(self, payload: Tensor, into: Tensor, scale: float = 1.0) -> None:
        sizes, packed = split(payload, len(self._layers), into.dtype)
        signs = unpack(packed, 1, len(into)).to(into.dtype).mul_(2).sub_(1)
        into.add_(signs.mul_(self._layers.spread(sizes)), alpha=scale)
