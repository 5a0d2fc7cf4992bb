"""The models of the libraries timm and torchvision, built with newly initialised weights, and
checked: that the library has the architecture, and that the model takes the user's options and
images. And their pretrained weights, from a file of the user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bsweep import models
from bsweep.config.models import LibraryConfig, TimmConfig, TorchvisionModelConfig
from bsweep.config.values import ConfigError, did_you_mean
from bsweep.core.checksums import sha256_of
from bsweep.core.torchvision_shim import import_torchvision

_INNER = ("state_dict", "model", "weights")  # where programs keep the weights in a file
_NAMED = 3  # tensors that a message names


def build_timm(config: TimmConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    import_torchvision()  # timm imports it
    import timm

    _refuse_unknown(config, timm.list_models())
    with _refused(config, shape):
        model = timm.create_model(
            config.architecture,
            pretrained=False,
            num_classes=num_classes,
            in_chans=shape[0],
            **config.options,
        )
        return _tried(model, num_classes, shape)


def build_torchvision(
    config: TorchvisionModelConfig, *, num_classes: int, shape: tuple[int, ...]
) -> nn.Module:
    import_torchvision()
    from torchvision import models as architectures

    _refuse_unknown(config, architectures.list_models(module=architectures))
    if shape[0] != 3:
        raise ConfigError(
            f"model=torchvision takes images of 3 channels, but these have {shape[0]}: use "
            "model=timm, most of whose models take other numbers, or other data."
        )
    with _refused(config, shape):
        model = architectures.get_model(
            config.architecture, weights=None, num_classes=num_classes, **config.options
        )
        return _tried(model, num_classes, shape)


def _refuse_unknown(config: LibraryConfig, known: Sequence[str]) -> None:
    if config.architecture not in known:
        near = did_you_mean(config.architecture, known)
        raise ConfigError(
            f"model.architecture={config.architecture}: {config.name} has no such classifier.{near}"
        )


@contextmanager
def _refused(config: LibraryConfig, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn an error of a model library inside the `with` block into a ConfigError that names the
    architecture, its options and the shape of the images.

    Libraries raise many types of errors if these three do not fit.
    """
    try:
        yield
    except NotImplementedError:
        raise  # The meta device has no values; see `bsweep.models.outlined`.
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError) as error:
        raise ConfigError(
            f"model.architecture={config.architecture} with model.options={dict(config.options)} "
            f"for images of shape {list(shape)}: {error}. Give other options, such as "
            f"model.options.img_size={shape[-1]} where it takes one, or choose another "
            "architecture or larger images."
        ) from error


def _tried(model: nn.Module, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a model unchanged, after a check that it maps images of `shape` to logits if it is on
    torch's meta device.

    The trial passes two images through the model, which computes no values on the meta device. Many
    models do not take small images.

    Raises:
        TypeError: If the model does not return logits.
        RuntimeError, ValueError, AssertionError: If the images are too small.
    """
    if not next(model.parameters()).is_meta:
        return model
    images = torch.empty(2, *shape, device="meta")
    for is_training in (True, False):
        model.train(is_training)
        with torch.no_grad():
            outputs = model(images)
        if not isinstance(outputs, Tensor) or outputs.shape != (2, num_classes):
            kind = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            mode = "training" if is_training else "evaluation"
            remedy = ": give model.options.aux_logits=false" if hasattr(model, "aux_logits") else ""
            raise TypeError(
                f"the model returns {kind} for two images in {mode} mode, not logits [2, "
                f"{num_classes}]{remedy}"
            )
    return model.train()


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
            from safetensors.torch import load_file

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
