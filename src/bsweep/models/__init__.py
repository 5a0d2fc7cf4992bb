"""Models: one file for each.

A card comes in, with the number of classes and the shape of an example. A freshly initialised
`torch.nn.Module` goes out, the same on all workers (`initial`), or its outline without numbers
(`outlined`), by which a point is checked before anything starts.

A model must not know how it is trained: neither the strategy, nor the batch, nor that there are
other workers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bsweep.config import ConfigError, ModelConfig, RunConfig, resolve

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bsweep.data.dataset import Dataset


def build(config: ModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A freshly initialised model.

    For examples of `shape` (C, H, W) it maps images (B, C, H, W) to logits (B, num_classes); a
    language model maps tokens (B, T) to logits (B, T, num_classes). One with an objective of its
    own may return what that takes.
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
    """A run's model for its data, the same at each call."""
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    torch.manual_seed(config.seed)
    shape = tuple(dataset.train_inputs.shape[1:])
    model = build(config.model, num_classes=dataset.num_classes, shape=shape).to(device, dtype)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:  # a module's own `to` would fail for volumes
            tensor.data = tensor.data.to(memory_format=layout)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = (
                None  # counts for nobody, and would be an operation for each layer and step
            )
    return model


def check(config: RunConfig, num_classes: int, shape: tuple[int, ...]) -> None:
    """What the data and, where its card does not know, the module itself say of a run's model.

    Raises:
        ValueError: the model cannot be built, is not for such data, or needs larger batches.
    """
    config.model.check_num_classes(num_classes)
    if config.model.has_batchnorm is not None:
        return
    from torch.nn.modules.batchnorm import _BatchNorm

    model = outlined(config.model, num_classes, shape)
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        problems = list(config.model.lone_examples(config))
        if problems:
            raise ConfigError(*problems)


@functools.cache  # a sweep asks for every point
def outlined(config: ModelConfig, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The model on the meta device: its layers without their numbers."""
    import torch

    try:
        with torch.device("meta"):
            model = build(config, num_classes=num_classes, shape=shape)
    except (
        NotImplementedError
    ):  # it looks at numbers while it is built, as torchvision's RegNets do
        model = build(config, num_classes=num_classes, shape=shape)
    return model.to("meta")
