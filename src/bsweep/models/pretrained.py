"""Pretrained weights of timm's and torchvision's models, from a file of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bsweep import models
from bsweep.config.models import LibraryConfig
from bsweep.config.values import ConfigError
from bsweep.core.checksums import sha256_of

_INNER = ("state_dict", "model", "weights")  # where programs keep the weights in a file
_NAMED = 3  # tensors that a message names


def fitting(
    config: LibraryConfig, num_classes: int, shape: tuple[int, ...]
) -> Mapping[str, Tensor]:
    """Return those tensors of the card's file, by name, that a model for the data takes.

    If the file's classifier has another number of classes, it is not among them, and the model's
    keeps its initial values.

    Args:
        config: The card, with the path and the hash of the file.
        num_classes: The number of classes of the data.
        shape: The shape of an example.

    Raises:
        ConfigError: If the file cannot be read, was changed, or belongs to another model.
    """
    weights = _read(config)
    model, other_model = (
        models.outlined(config, number, shape).state_dict()
        for number in (num_classes, num_classes + 1)
    )
    problems = [
        f"{name} is {list(weights[name].shape)} instead of {list(tensor.shape)}"
        if name in weights
        else f"{name} is missing"
        for name, tensor in model.items()
        if tensor.shape == other_model[name].shape  # else it belongs to the classifier
        and not _fits(weights, name, tensor)
        and "num_batches" not in name
    ]
    if problems:
        raise ConfigError(
            f"model.weights={config.weights}: these are not weights of model.architecture="
            f"{config.architecture} for examples of shape {list(shape)} "
            f"({'; '.join(problems[:_NAMED])}; {len(problems)} of {len(model)} tensors do not "
            "fit). Give the file of this architecture, or the options with which the file was made."
        )
    return {name: weights[name] for name, tensor in model.items() if _fits(weights, name, tensor)}


def _fits(weights: Mapping[str, Tensor], name: str, tensor: Tensor) -> bool:
    return name in weights and weights[name].shape == tensor.shape


def _read(config: LibraryConfig) -> Mapping[str, Tensor]:
    """Return the tensors of the card's file by name. No code from the file is run."""
    assert config.weights, config
    path = Path(config.weights)
    try:
        digest = sha256_of(path)
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many types for other files
        why = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"model.weights={path} cannot be read as weights ({type(error).__name__}: {why}): give "
            "a state dict that torch.save or safetensors wrote."
        ) from None
    if digest != config.weights_sha256:
        raise ConfigError(
            f"model.weights={path} is not the file that was there when the run was configured: put "
            "that file there again, on all hosts."
        )
    for key in _INNER:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    tensors = {
        str(name).removeprefix("module."): value
        for name, value in (state.items() if isinstance(state, Mapping) else ())
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise ConfigError(
            f"model.weights={path} holds no tensors with names: give a state dict of the model."
        )
    return tensors
