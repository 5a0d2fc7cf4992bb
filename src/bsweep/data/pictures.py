"""The conversion of Pillow's images to arrays, and a progress line for long readings."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

_T = TypeVar("_T")


class Unfit(ValueError):
    """The error of an example that cannot be used; its message says why."""


def pixels(image: Image, side: int | None, *, keeps_grey: bool = False) -> NDArray[np.uint8]:
    """Return an image as uint8 (C, H, W).

    Args:
        image: The image.
        side: The side to which the image's centre square is scaled; None leaves the size.
        keeps_grey: True to return one channel for a grey image, False to return always three.

    Raises:
        Unfit: If the image has 32-bit grey levels, for which no white is defined.
    """
    # Imported here because a worker that finds the cache should not wait for it.
    from PIL import (
        Image as pillow,
    )

    if image.mode in ("I", "F"):
        raise Unfit(
            "32-bit grey levels do not say which level is white: save the image with 8 or 16 bits"
        )
    if image.mode.startswith("I;16"):  # `convert` would clip the levels to 255.
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert("L" if keeps_grey and image.mode in ("1", "L", "LA") else "RGB")
    if side and image.size != (side, side):
        width, height = image.size
        square = min(width, height)
        left, top = (width - square) / 2, (height - square) / 2
        image = image.resize(
            (side, side), pillow.Resampling.BILINEAR, box=(left, top, left + square, top + square)
        )
    array = np.asarray(image)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def with_progress(parts: Iterable[_T], what: str, total: int, per_part: int = 1) -> Iterator[_T]:
    """Yield the same parts, and print on stderr how many examples are done.

    Args:
        parts: The parts of a work that may take minutes.
        what: The name of the work.
        total: The number of all examples.
        per_part: The number of examples of a part.
    """
    live = sys.stderr.isatty()
    interval_seconds, said_at = 0.2 if live else 10.0, time.monotonic()
    for number, part in enumerate(parts, 1):
        yield part
        done = min(number * per_part, total)
        if time.monotonic() - said_at > interval_seconds or done == total:
            said_at = time.monotonic()
            end = "\r" if live and done < total else "\n"
            print(f"{what}: {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)
