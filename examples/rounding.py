"""A codec of one's own: gradients that are rounded before they are summed.

bsweep run num_workers=2 strategy=allreduce compression=own
compression.target=examples/rounding.py:Rounded
"""

from __future__ import annotations

from torch import Tensor

from bsweep.compression import Codec, Setting
from bsweep.compression.base import Group
from bsweep.config.groups import CodecConfig


class Rounded(Codec):
    def __init__(self, config: CodecConfig, setting: Setting, digits: int = 4) -> None:
        self._digits = digits

    def exchange(self, gradients: Tensor, group: Group) -> None:
        gradients.copy_(gradients.round(decimals=self._digits))
        group.all_reduce(gradients)
