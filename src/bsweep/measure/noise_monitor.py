"""A monitor of the gradient noise scale in a user's own training loop: plain, Horovod or DDP."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from bsweep.numerics.noise_scale import Average, GradientNoise, of_parts, squared_norm
from bsweep.numerics.restoring import restoring

Loss = Callable[[Any, Tensor], Tensor]


class NoiseScale:
    """A monitor that measures the gradient noise scale in a user's own training loop.

    Once in `every` steps it computes the gradients of the two halves of each process's own batch.
    This costs about 1 / `every` of the training time.

        monitor = bsweep.NoiseScale(model)
        for batch in loader:
            monitor.step(batch)     # before the optimizer's step; all processes call it
            ...                     # the training step as before
        monitor.noise_scale         # in examples; None if it is not identifiable

    The monitor computes gradients of its own and does not read those of the loop. So the loop may
    accumulate, sum, compress, scale or clip its gradients in any way. The monitor changes no
    gradient, no statistic of BatchNorm and no random number generator of torch. It averages over
    the processes of an initialised torch.distributed or Horovod, so that all have the same
    estimate.
    """

    def __init__(self, model: nn.Module, loss: Loss = F.cross_entropy, every: int = 50) -> None:
        """Create a monitor.

        Args:
            model: The model that the loop trains; it may be wrapped in DistributedDataParallel.
            loss: `loss(model(inputs), targets)` returns the mean loss over a batch.
            every: The number of steps from one measurement to the next.

        Raises:
            ValueError: If `every` is less than 1.
        """
        if every < 1:
            raise ValueError(
                f"every={every} must be 1 or more: use every=50 to measure one step in 50, or "
                "every=1 to measure each."
            )
        # DDP would take part in each pass of its wrapped model, so the monitor uses the bare model.
        self._model: nn.Module = (
            model.module if isinstance(model, DistributedDataParallel) else model
        )
        self._loss, self._every = loss, every
        self._num_steps = 0
        self._average = self._unreported = Average()

    @property
    def noise(self) -> GradientNoise | None:
        """The running estimate of |G|^2 and tr(Sigma), whose ratio tr(Sigma) / |G|^2 is the
        gradient noise scale.

        It is None before the first measurement.
        """
        return self._average.estimate()

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in examples; None as long as the measurements do not determine
        it.

        They do not if there are fewer than eight, if the true gradient may be zero within its
        error, or if the estimated variance is not positive.
        """
        return self.noise.noise_scale if self.noise else None

    def __str__(self) -> str:
        steps = f"{self.noise.num_samples if self.noise else 0} steps measured"
        if self.noise_scale is None:
            return f"noise scale not identifiable ({steps})"
        return f"noise scale {self.noise_scale:.3g} examples ({steps})"

    def step(self, batch: Sequence[Tensor]) -> None:
        """Count one training step, and measure the gradient noise if a measurement is due in it.

        All processes call this together, before the step. A batch of one example adds nothing to
        the measurement.

        Args:
            batch: This process's inputs (B, ...) and targets (B, ...) of the step.

        Raises:
            ValueError: If `batch` is not a pair of tensors of equal length, in a step that is
                measured.
        """
        self._num_steps += 1
        if (self._num_steps - 1) % self._every:
            return
        inputs, targets = _checked(batch)
        seen = torch.zeros(3, dtype=torch.float64, device=inputs.device)
        if len(inputs) > 1:
            with restoring(self._model, inputs.device), torch.enable_grad():
                seen[:2] = self._of_halves(inputs, targets)
            seen[2] = 1
        square, trace, share = _mean_over_processes(seen).tolist()
        if share and math.isfinite(square + trace):
            means = square / share, trace / share, 1
            self._average = self._average.joined(*means)
            self._unreported = self._unreported.joined(*means)

    def unreported(self) -> GradientNoise | None:
        """Return the estimate of the steps since the last call of this method; None if none of them
        was measured. `Run.noise` of a training program reports it.
        """
        noise, self._unreported = self._unreported.estimate(), Average()
        return noise

    def _of_halves(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return |G|^2 and tr(Sigma), estimated from gradients of the batch's two halves, as a
        float64 tensor (2,).
        """
        parameters = [tensor for tensor in self._model.parameters() if tensor.requires_grad]
        num_examples = len(inputs)
        shares, gradients = [], []
        for some, wanted in zip(inputs.tensor_split(2), targets.tensor_split(2), strict=True):
            loss = self._loss(self._model(some), wanted)
            # `grad` does not accumulate gradients, so no hook of Horovod or DDP is called.
            by_tensor = torch.autograd.grad(loss, parameters, materialize_grads=True)
            flat = torch.cat([gradient.reshape(-1) for gradient in by_tensor])
            gradients.append(flat if flat.dtype == torch.float64 else flat.float())
            shares.append(len(some) / num_examples)
        (first, second), (a, b) = gradients, shares
        parts = a * squared_norm(first) + b * squared_norm(second)
        return torch.stack(of_parts(squared_norm(a * first + b * second), parts, 2, num_examples))


def _checked(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if (
        not isinstance(batch, tuple | list)
        or [isinstance(tensor, Tensor) for tensor in batch] != [True, True]
        or len(batch[0]) != len(batch[1])
    ):
        raise ValueError(
            "step(batch) takes a batch as a pair of tensors of equal length, (inputs, targets): "
            "call monitor.step((x, y))."
        )
    return batch[0], batch[1]


def _mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean of a small tensor over all processes; all processes must call this function
    together.
    """
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(values)
        return values / dist.get_world_size()
    hvd = sys.modules.get("horovod.torch")
    if hvd and hvd.is_initialized():
        mean: Tensor = hvd.allreduce(values.cpu(), name="bsweep.NoiseScale")
        return mean
    return values
