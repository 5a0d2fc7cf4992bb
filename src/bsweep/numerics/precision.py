"""How numbers are rounded: to which type, whether with TF32, and what keeps fp16 from rounding
gradients to zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from bsweep.config import RunConfig

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What products and convolutions are rounded to, of a model that is kept in fp32."""

_GROWTH_STEPS = 2000


def choose(config: RunConfig, device: torch.device) -> str:
    """The precision of this worker; `auto` is what matrix units compute in, for emulated it would
    be slower than fp32.

    Raises:
        ValueError: the device has no TF32.
    """
    if config.precision == "tf32" and (
        device.type == "cpu" or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        what = (
            "there is no GPU"
            if device.type == "cpu"
            else f"{torch.cuda.get_device_name(device)} has no TF32"
        )
        raise ValueError(
            f"precision=tf32, but {what}: use precision=fp32, fp16 or auto, or a GPU from Ampere "
            "on."
        )
    if config.precision != "auto":
        return config.precision
    if device.type == "cpu":
        return (
            "bf16"
            if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
            else "fp32"
        )
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp32" if config.strategy.can.why_no_fp16 else "fp16"


def stored(precision: str) -> torch.dtype:
    """The type of parameters and gradients."""
    return torch.float64 if precision == "fp64" else torch.float32


def round_products(precision: str) -> None:
    """Have a GPU round what it multiplies of fp32 numbers to TF32's 10 bits of mantissa, or not at
    all.

    As torch comes, convolutions are rounded so and products are not. Its newer names for this,
    `fp32_precision`, make others fail that torch.compile still asks (torch 2.13).
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def are_rounded(device: torch.device) -> list[str]:
    """What of fp32 a GPU computes with TF32; from compute capability 8.0 on."""
    if device.type == "cpu" or torch.cuda.get_device_capability(device) < (8, 0):
        return []
    rounded = {
        "convolutions": torch.backends.cudnn.allow_tf32,
        "products": torch.backends.cuda.matmul.allow_tf32,
    }
    return [name for name, is_rounded in rounded.items() if is_rounded]


class LossScale:
    """Multiplies losses so that gradients do not vanish in fp16 (Micikevicius et al., arXiv
    1710.03740).

    As torch's GradScaler: where gradients overflow, the step is left out and the scale halved; 2000
    good steps double it. They are looked at once, after the exchange, when they are the same on all
    workers: all leave the step out. All is done on the device, but for an optimizer that cannot
    leave out a step by itself: then the host waits.
    """

    def __init__(self, gradients: Tensor) -> None:
        """`gradients`: the vector that optimizers take them from."""
        self._gradients = gradients
        self.factor = gradients.new_full((), 2.0**16)
        self.num_skipped = gradients.new_zeros(())
        self._good_steps = gradients.new_zeros((), dtype=torch.int32)
        self._overflow = gradients.new_zeros(())  # 1 or 0
        self._is_judged = False

    def count_skipped(self) -> int:
        """Steps that were left out since the last call; waits for a GPU to finish them."""
        count = int(self.num_skipped)
        self.num_skipped.zero_()
        return count

    @property
    def state(self) -> dict[str, Tensor]:
        """What steps change of it, to be saved, and put back in place."""
        return {
            "factor": self.factor,
            "num_skipped": self.num_skipped,
            "good_steps": self._good_steps,
        }

    def guard(self, optimizer: Optimizer) -> None:
        """Have the optimizer's steps divide the gradients by the scale, and leave them alone where
        they overflowed.
        """
        step, on_device = optimizer.step, getattr(optimizer, "_step_supports_amp_scaling", False)
        if on_device:
            vars(optimizer)["found_inf"] = self._overflow
        if isinstance(optimizer, SGD):
            _begin_momentum(optimizer)

        def guarded(*arguments: Any, **options: Any) -> None:
            if not self._is_judged:
                self._divide_and_judge(self.factor.reciprocal())
            if on_device or not self._overflow:
                step(*arguments, **options)
            self.num_skipped += self._overflow
            torch._amp_update_scale_(
                self.factor, self._good_steps, self._overflow, 2.0, 0.5, _GROWTH_STEPS
            )
            self._is_judged = False

        vars(optimizer)["step"] = guarded

    @contextmanager
    def removed(self, state: Sequence[Tensor]) -> Iterator[None]:
        """Around an exchange by a codec, whose `state` must be of gradients as they are, and
        without an overflow's.
        """
        self._gradients.mul_(self.factor.reciprocal())
        before = [tensor.clone() for tensor in state]
        yield
        self._divide_and_judge(torch.ones_like(self.factor))
        for tensor, kept in zip(state, before, strict=True):
            torch.where(self._overflow.bool(), kept, tensor, out=tensor)

    def _divide_and_judge(self, inverse: Tensor) -> None:
        self._overflow.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_([self._gradients], self._overflow, inverse)
        self._is_judged = True


def _begin_momentum(optimizer: SGD) -> None:
    """Make its state, which torch 2.13 makes in the first step, of whatever is in memory where that
    one is left out.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
