"""What the models of libraries share: which there are, and whether one takes the options and the
images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bsweep.config import ConfigError, LibraryConfig, did_you_mean


def refuse_unknown(config: LibraryConfig, known: Sequence[str]) -> None:
    if config.architecture not in known:
        near = did_you_mean(config.architecture, known)
        raise ConfigError(
            f"model.architecture={config.architecture}: {config.name} has no such model.{near}"
        )


@contextmanager
def refused(config: LibraryConfig, shape: tuple[int, ...]) -> Iterator[None]:
    """What a library makes of an architecture, options or a shape that do not fit, as a
    ConfigError.
    """
    try:
        yield
    except NotImplementedError:
        raise  # for want of numbers
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError) as error:
        raise ConfigError(
            f"model.architecture={config.architecture} with model.options={dict(config.options)} "
            f"for images of shape {list(shape)}: {error}. Give other options, such as "
            f"model.options.img_size={shape[-1]} where it takes one, or choose another "
            "architecture or larger images."
        ) from error


def tried(model: nn.Module, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The model. An outline of one is shown two images first, which costs nothing: many take none
    that are small.
    """
    if next(model.parameters()).is_meta:
        with torch.no_grad():
            outputs = model(torch.empty(2, *shape, device="meta"))
        if not isinstance(outputs, Tensor):
            raise TypeError(f"it returns {type(outputs).__name__} where it trains, not logits")
        if outputs.shape != (2, num_classes):
            raise TypeError(
                f"it returns {list(outputs.shape)} for two images, not logits [2, {num_classes}]"
            )
    return model
