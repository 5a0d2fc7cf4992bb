"""The models that bsweep can train, one file for each.

A model is built from its card, the number of classes and the shape of an example. `initial` returns
a freshly initialised `torch.nn.Module`, the same on all workers. `outlined` returns the model
without the values of its parameters; `check_model` uses it to check a point before anything starts.

A model must not know how it is trained: neither the strategy, nor the batch, nor that there are
other workers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bsweep.config.card import resolve
from bsweep.config.groups import ModelConfig
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.torch_private import private

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bsweep.data.dataset import Dataset


def build(config: ModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return the model that a card describes, freshly initialised.

    For examples of `shape` (C, H, W), the model maps images (B, C, H, W) to logits
    (B, num_classes). A language model maps tokens (B, T) to logits (B, T, num_classes). A model
    with its own objective may return what that objective takes.
    """
    model: nn.Module = resolve(config.builds)(config, num_classes=num_classes, shape=shape)
    return model


def initial(
    config: RunConfig,
    dataset: Dataset,
    device: torch.device,
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> nn.Module:
    """Return a run's model with its initial parameters, which are the same at each call.

    Args:
        config: The configuration of the run.
        dataset: The data that the model trains on.
        device: The device of the model.
        dtype: The type of its parameters.
        layout: The memory format of its 4-dimensional tensors.
    """
    import torch

    torch.manual_seed(config.seed)
    shape = tuple(dataset.train_inputs.shape[1:])
    model = build(config.model, num_classes=dataset.num_classes, shape=shape).to(device, dtype)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:  # The module's own `to` would fail for 5-dimensional tensors.
            tensor.data = tensor.data.to(memory_format=layout)
    for module in model.modules():
        if isinstance(module, private("batchnorm")) and module.momentum is not None:
            module.num_batches_tracked = (
                None  # Nothing reads this counter, and it costs an operation per layer and step.
            )
    return model


def check_model(config: RunConfig, num_classes: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError if the model of a run cannot be trained on the run's data.

    If the model's card does not say whether it has BatchNorm, the module itself is examined.

    Raises:
        ValueError: If the model cannot be built, does not fit the data, or needs larger batches.
    """
    config.model.check_num_classes(num_classes)
    if config.model.has_batchnorm is not None:
        return

    model = outlined(config.model, num_classes, shape)
    if any(isinstance(module, private("batchnorm")) for module in model.modules()):
        problems = list(config.model.lone_examples(config))
        if problems:
            raise ConfigError(*problems)


@functools.cache  # A sweep asks for every point.
def outlined(config: ModelConfig, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a model on torch's meta device, which has the layers but no values of parameters."""
    import torch

    try:
        with torch.device("meta"):
            model = build(config, num_classes=num_classes, shape=shape)
    except (
        NotImplementedError
    ):  # Some models, such as torchvision's RegNets, read values while they are built.
        model = build(config, num_classes=num_classes, shape=shape)
    return model.to("meta")
