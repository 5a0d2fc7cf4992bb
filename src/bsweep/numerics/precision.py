"""The numerical precision of a run: the types of numbers, TF32, and the loss scale of fp16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from bsweep.config.run import RunConfig
from bsweep.core.torch_private import private

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The types in which an fp32 model computes matrix products and convolutions, by precision."""

_GROWTH_STEPS = 2000  # the good steps after which the loss scale doubles


def choose(config: RunConfig, device: torch.device) -> str:
    """Return the precision in which a run computes on a device, such as `bf16`.

    `auto` becomes fp32 on CPUs. On GPUs it becomes bf16 if the GPU computes in it without
    emulation, which would be slower than fp32. Other GPUs use fp16 or, if the strategy excludes it,
    fp32.

    Raises:
        ValueError: If `precision=tf32` is configured and the device has no TF32.
    """
    if config.precision == "tf32" and not _has_tf32(device):
        on_cpu = device.type == "cpu"
        lack = "there is no GPU" if on_cpu else f"{torch.cuda.get_device_name(device)} has no TF32"
        raise ValueError(
            f"precision=tf32, but {lack}: use precision=fp32 or auto, or a GPU from Ampere on."
        )
    if config.precision != "auto":
        return config.precision
    if device.type == "cpu":
        return "fp32"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp32" if config.strategy.can.why_no_fp16 else "fp16"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Return the context manager for forward passes: torch's autocast if `precision` needs it.

    Autocast rounds the factors of products to the precision. Without autocast, the context manager
    does nothing.
    """
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def stored(precision: str) -> torch.dtype:
    """Return the dtype of a run's parameters and gradients for the given precision."""
    return torch.float64 if precision == "fp64" else torch.float32


def round_products(precision: str) -> None:
    """Switch TF32 for fp32 products and convolutions on if `precision` is `tf32`, and off
    otherwise.

    With TF32 the GPU rounds the factors to 10 bits of mantissa.

    By torch's default, convolutions are rounded and matrix products are not. torch's newer setting
    `fp32_precision` is not used: with it, the older settings fail, which torch.compile still reads
    (torch 2.13).
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def are_rounded(device: torch.device) -> list[str]:
    """Return which fp32 operations ("convolutions", "products") this device computes with the lower
    precision TF32.

    Only GPUs of compute capability 8.0 or more have TF32; for other devices the list is empty.
    """
    if not _has_tf32(device):
        return []
    rounded = {
        "convolutions": torch.backends.cudnn.allow_tf32,
        "products": torch.backends.cuda.matmul.allow_tf32,
    }
    return [name for name, is_rounded in rounded.items() if is_rounded]


def _has_tf32(device: torch.device) -> bool:
    return device.type != "cpu" and torch.cuda.get_device_capability(device) >= (8, 0)


class LossScale:
    """The factor by which losses are multiplied in fp16, so that small gradients do not become
    zero.

    The method is from Micikevicius et al. and works as in torch's GradScaler: if gradients
    overflow, the step is skipped and the scale is halved; 2000 good steps in a row double it.
    Gradients are checked once a step, after their exchange if they are exchanged. Exchanged
    gradients are the same on all workers, so that all skip the same steps. Everything runs on the
    device, unless the optimizer cannot skip a step by itself: then the host waits for the check.
    """

    def __init__(self, gradients: Tensor) -> None:
        """Create a loss scale of 2^16 for `gradients`, the flat tensor of gradients that the
        optimizer reads.
        """
        self._gradients = gradients
        self.factor = gradients.new_full((), 2.0**16)
        self.num_skipped = gradients.new_zeros(())
        self._good_steps = gradients.new_zeros((), dtype=torch.int32)
        self._overflow = gradients.new_zeros(())  # 1 or 0
        self._is_judged = False

    def count_skipped(self) -> int:
        """Return the number of steps skipped, because gradients overflowed, since the last call.

        It waits until a GPU has finished these steps.
        """
        count = int(self.num_skipped)
        self.num_skipped.zero_()
        return count

    @property
    def state(self) -> dict[str, Tensor]:
        """The loss scale's tensors, by name; a checkpoint saves them and restores them in place."""
        return {
            "factor": self.factor,
            "num_skipped": self.num_skipped,
            "good_steps": self._good_steps,
        }

    def guard(self, optimizer: Optimizer) -> None:
        """Make the optimizer's `step` divide gradients by the loss scale, and skip steps whose
        gradients overflowed.
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
            private("update_scale")(
                self.factor, self._good_steps, self._overflow, 2.0, 0.5, _GROWTH_STEPS
            )
            self._is_judged = False

        vars(optimizer)["step"] = guarded

    @contextmanager
    def removed(self, state: Sequence[Tensor]) -> Iterator[None]:
        """Divide the gradients by the loss scale before the `with` block, so that a codec in the
        block exchanges unscaled gradients.

        The codec's `state` then refers to unscaled gradients. If gradients overflowed, the state is
        restored to its values before the exchange.
        """
        self._gradients.mul_(self.factor.reciprocal())
        before = [tensor.clone() for tensor in state]
        yield
        self._divide_and_judge(torch.ones_like(self.factor))
        for tensor, value in zip(state, before, strict=True):
            torch.where(self._overflow.bool(), value, tensor, out=tensor)

    def _divide_and_judge(self, inverse: Tensor) -> None:
        self._overflow.zero_()
        private("unscale")([self._gradients], self._overflow, inverse)
        self._is_judged = True


def _begin_momentum(optimizer: SGD) -> None:
    """Create the momentum tensors of an SGD optimizer, filled with zeros, before the optimizer's
    first step.

    torch 2.13 creates them in the first step. If that step is skipped, they would hold whatever is
    in memory.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
