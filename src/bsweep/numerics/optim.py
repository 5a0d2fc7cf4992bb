"""Optimizers of a model's flat parameter vector, and the rules and schedules of learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from bsweep.config import user_code
from bsweep.config.card import load_object
from bsweep.config.groups import OptimizerConfig
from bsweep.config.optimizers import (
    AdamWConfig,
    LAMBConfig,
    LARSConfig,
    OwnOptimizerConfig,
    SGDConfig,
    base_learning_rate,
)
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.numerics.vector import Flat, part_of


def build(config: OptimizerConfig, vector: Flat) -> Optimizer:
    """Return the optimizer that updates `vector.parameters` from `vector.gradients`.

    The vector is that of a whole model or of a parameter server's shard. Element-wise rules see one
    long parameter (two if biases and normalisation scales are exempt from weight decay), so that a
    step needs few kernels. LARS and LAMB need norms per layer, so they see the vector's tensors.

    Raises:
        ValueError: If the user's own optimizer cannot be built.
    """
    optimizer: Optimizer = load_object(config.builds)(config, vector)
    return optimizer


def sgd(config: SGDConfig, vector: Flat) -> Optimizer:
    # torch has no fused kernel for DTensors.
    is_plain = all(part_of(tensor) is tensor for tensor in vector.tensors)
    kernel = {"fused": True} if is_plain else {"foreach": True}
    groups = _flat_groups(config, vector)
    return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, **kernel)


def adamw(config: AdamWConfig, vector: Flat) -> Optimizer:
    return AdamW(
        _flat_groups(config, vector), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def lars(config: LARSConfig, vector: Flat) -> Optimizer:
    # timm imports torchvision. Both are imported only here, because that takes a second.
    import_torchvision()
    from timm.optim.lars import Lars

    return Lars(
        _layer_groups(config, vector),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        trust_coeff=config.trust_coefficient,
    )


def lamb(config: LAMBConfig, vector: Flat) -> Optimizer:
    import_torchvision()
    from timm.optim.lamb import Lamb

    return Lamb(_layer_groups(config, vector), lr=config.lr, betas=config.betas, eps=config.eps)


def from_target(config: OwnOptimizerConfig, vector: Flat) -> Optimizer:
    """Return the optimizer that the user's own function `target(parameters, lr, **options)` makes.

    `parameters` are parameter groups as `torch.optim` takes them. Each group has a `weight_decay`
    and one long parameter or, with `by_layer`, the model's tensors.

    Raises:
        ConfigError: If the function fails or returns no optimizer, or if a group of the optimizer
            has no `lr`, which the schedule sets.
    """
    groups = (_layer_groups if config.by_layer else _flat_groups)(config, vector)
    optimizer: Optimizer = user_code.make("optimizer", config, Optimizer, groups, config.lr)
    if not all("lr" in group for group in optimizer.param_groups):
        raise ConfigError(
            f"optimizer.target={config.target}: its param_groups have no 'lr', where the schedule "
            "sets the learning rate: give each group an 'lr', and let step() read it from there."
        )
    return optimizer


def most_norm(optimizer: Optimizer) -> float | None:
    """Return the norm above which an optimizer scales the gradient of the whole model down to it;
    None if it does not.
    """
    most: float | None = optimizer.defaults.get("max_grad_norm")  # as timm's LAMB names it
    return most


def _flat_groups(config: OptimizerConfig, vector: Flat) -> list[dict[str, object]]:
    if vector.by_tensor:
        return _layer_groups(config, vector)
    size = vector.parameters.numel()
    decays_all = config.decay_norm_and_bias or not config.weight_decay
    matrices = [piece.num_elements for piece in vector.slices if piece.is_matrix]
    border = size if decays_all else sum(matrices)
    groups: list[dict[str, object]] = []
    for start, stop, weight_decay in ((0, border, config.weight_decay), (border, size, 0.0)):
        if start == stop:  # all is one part, or a shard has no matrices or no vectors
            continue
        parameter = nn.Parameter(vector.parameters[start:stop])
        parameter.grad = vector.gradients[start:stop]
        groups.append({"params": [parameter], "weight_decay": weight_decay})
    return groups


def _layer_groups(config: OptimizerConfig, vector: Flat) -> list[dict[str, object]]:
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for piece, tensor in zip(vector.slices, vector.tensors, strict=True):
        (matrices if piece.is_matrix else vectors).append(tensor)
    rest = config.weight_decay if config.decay_norm_and_bias else 0.0
    groups: list[tuple[list[Tensor], float]] = [(matrices, config.weight_decay), (vectors, rest)]
    return [{"params": tensors, "weight_decay": decay} for tensors, decay in groups if tensors]


def learning_rate(config: RunConfig, epoch: float, rate_batch: float) -> float:
    """Return the learning rate of a step, by the run's rule, warm-up and schedule.

    The rate depends on epochs, not on steps, so that runs with different batch sizes follow the
    same curve.

    Args:
        config: The run's configuration.
        epoch: The number of epochs so far.
        rate_batch: The number of examples behind the step, see `Strategy.rate_batch`; it may change
            at any step.
    """
    o, base = config.optimizer, base_learning_rate(config, rate_batch)
    assert base is not None, "only a program of the user's own trains without a configured rate"
    if epoch < o.warmup_epochs:
        return base * epoch / o.warmup_epochs
    span = config.epochs - o.warmup_epochs
    return base * _decay(o, epoch, (epoch - o.warmup_epochs) / span if span else 0.0)


def _decay(o: OptimizerConfig, epoch: float, progress: float) -> float:
    """Return the factor by which the schedule multiplies the base learning rate at `epoch`.

    `progress` runs from 0 after warm-up to 1.
    """
    match o.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "multistep":
            return o.gamma ** sum(epoch >= milestone for milestone in o.milestones)
        case "one_cycle":
            # Smith, arXiv 1708.07120: up for the first 30 %, then down to near zero, both by cosine
            if progress < _ONE_CYCLE_RISE:
                return 0.04 + 0.48 * (1 - math.cos(math.pi * progress / _ONE_CYCLE_RISE))
            return 0.5 * (
                1 + math.cos(math.pi * (progress - _ONE_CYCLE_RISE) / (1 - _ONE_CYCLE_RISE))
            )
    return 1.0


_ONE_CYCLE_RISE = 0.3


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of this process's parts of an optimizer's state, such as momentum."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(part_of(value).nbytes for value in values if isinstance(value, Tensor))


@contextmanager
def set_within(
    holders: Sequence[dict[str, Any]], key: str, values: Iterable[float]
) -> Iterator[None]:
    """Let an optimizer make its steps in the `with` block with other numbers.

    Args:
        holders: Dictionaries of the optimizer, such as its groups.
        key: The key of the number in each of them, such as `lr`.
        values: The number for each of them.
    """
    before = [holder[key] for holder in holders]
    for holder, value in zip(holders, values, strict=True):
        holder[key] = value
    try:
        yield
    finally:
        for holder, value in zip(holders, before, strict=True):
            holder[key] = value


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Let an optimizer make its next steps with one learning rate for all of its groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
