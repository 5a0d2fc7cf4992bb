"""The user's own model: the module that a callable of the user's returns.

bsweep calls `target(num_classes, shape, **options)`, which returns a freshly initialised
`torch.nn.Module`. Random numbers that the callable draws from torch are the same on all workers.
The module may have its own objective, see `bsweep.numerics.objective`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bsweep.config import user_code
from bsweep.config.models import OwnModelConfig
from bsweep.config.values import ConfigError

if TYPE_CHECKING:
    from bsweep.models.plans import Plan


def build(config: OwnModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    # Always on the CPU, never on the meta device: the user's code may read values.
    with torch.device("cpu"):
        model: nn.Module = user_code.make("model", config, nn.Module, num_classes, shape)
    if problem := _problem(model):
        raise ConfigError(f"model.target={config.target}: {problem}")
    return model


def tensor_plan(model: nn.Module) -> Plan:
    """Return what the method `tensor_plan` of the user's module returns, a plan as in
    `bsweep.models.plans`.

    Raises:
        ConfigError: If the module has no such method.
    """
    method = getattr(model, "tensor_plan", None)
    if method is None:
        raise ConfigError(
            "strategy=tensor needs a plan of how to divide the model's layers: give your module a "
            "method tensor_plan(), which returns one, or use strategy=sharded."
        )
    plan: Plan = method()
    return plan


def _problem(model: nn.Module) -> str | None:
    """Return a reason why bsweep cannot train a model; None if it finds none."""
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not trained:
        return "what it returned has no trainable parameters: nothing would be learned."
    for name, parameter in trained.items():
        if is_lazy(parameter):
            return (
                f"parameter {name} has no shape before the first batch: give its layer the shape "
                "of its inputs."
            )
        if not parameter.is_floating_point():
            return (
                f"parameter {name} is {parameter.dtype}: bsweep trains real floating-point numbers."
            )
    return None
