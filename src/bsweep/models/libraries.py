"""Checks that a model library such as timm has the chosen architecture, and that the model takes
the user's options and images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bsweep.config.models import LibraryConfig
from bsweep.config.values import ConfigError, did_you_mean


def refuse_unknown(config: LibraryConfig, known: Sequence[str]) -> None:
    if config.architecture not in known:
        near = did_you_mean(config.architecture, known)
        raise ConfigError(
            f"model.architecture={config.architecture}: {config.name} has no such classifier.{near}"
        )


@contextmanager
def refused(config: LibraryConfig, shape: tuple[int, ...]) -> Iterator[None]:
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


def tried(model: nn.Module, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a model unchanged, after a check that it maps images of `shape` to logits if it is on
    torch's meta device.

    The trial passes two images through the model, which computes no values on the meta device. Many
    models do not take small images.

    Raises:
        TypeError: If the model does not return logits.
    """
    if next(model.parameters()).is_meta:
        with torch.no_grad():
            outputs = model(torch.empty(2, *shape, device="meta"))
        if not isinstance(outputs, Tensor) or outputs.shape != (2, num_classes):
            kind = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise TypeError(
                f"the model returns {kind} for two images in training mode, not logits [2, "
                f"{num_classes}]"
            )
    return model
