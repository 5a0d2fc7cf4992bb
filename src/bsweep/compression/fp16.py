"""The codec `fp16`: workers send and sum gradients in half precision.

Values and sums of a size above about 65504 become infinite, those of a size below about 3e-8 become
0 (Micikevicius et al., arXiv 1710.03740).
"""

from __future__ import annotations

from torch import Tensor

from bsweep.compression.base import Codec, Group


class FP16(Codec):
    def exchange(self, gradients: Tensor, group: Group) -> None:
        half = gradients.half()
        group.all_reduce(half)
        gradients.copy_(half)
