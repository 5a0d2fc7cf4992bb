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
    given = _read(config)
    wanted, other = (
        models.outlined(config, number, shape).state_dict()
        for number in (num_classes, num_classes + 1)
    )
    classifier = {name for name in wanted if wanted[name].shape != other[name].shape}
    needed = wanted.keys() - classifier
    lost = [name for name in wanted if name in needed - given.keys() and "num_batches" not in name]
    unlike = [
        f"{name} is {list(given[name].shape)} instead of {list(wanted[name].shape)}"
        for name in wanted
        if name in needed & given.keys() and given[name].shape != wanted[name].shape
    ]
    if lost or unlike:
        some = "; ".join([*(f"{name} is missing" for name in lost[:_NAMED]), *unlike][:_NAMED])
        raise ConfigError(
            f"model.weights={config.weights}: these are not weights of model.architecture="
            f"{config.architecture} for examples of shape {list(shape)} ({some}; "
            f"{len(lost) + len(unlike)} of {len(wanted)} tensors do not fit). Give the file of "
            "this architecture, or the options with which the file was made."
        )
    return {
        name: given[name]
        for name in wanted
        if name in given and given[name].shape == wanted[name].shape
    }


def _read(config: LibraryConfig) -> Mapping[str, Tensor]:
    """Return the tensors of the card's file by name. No code from the file is run."""
    assert config.weights, config
    asked, path = f"model.weights={config.weights}", Path(config.weights)
    try:
        digest = sha256_of(path)
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            with path.open("rb") as file:
                found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many types for other files
        why = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"{asked} cannot be read as weights ({type(error).__name__}: {why}): give a state dict "
            "that torch.save or safetensors wrote."
        ) from None
    if digest != config.weights_sha256:
        raise ConfigError(
            f"{asked} is not the file that was there when the run was configured: put that file "
            "there again, on all hosts."
        )
    for key in _INNER:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = {
        str(name).removeprefix("module."): value
        for name, value in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise ConfigError(f"{asked} holds no tensors with names: give a state dict of the model.")
    return tensors
