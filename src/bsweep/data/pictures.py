"""Pillow's images as arrays, and a line that says how many are done."""

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
    """What is wrong with an example, in words."""


def pixels(image: Image, side: int | None, *, keeps_grey: bool = False) -> NDArray[np.uint8]:
    """An image as uint8 (C, H, W), in colours unless it is to keep its grey; its centre square,
    scaled to `side`.

    Raises:
        Unfit: nobody knows which of its grey levels is white.
    """
    # Here, for a worker that finds the cache should not have to wait for it.
    from PIL import (
        Image as pillow,
    )

    if image.mode in ("I", "F"):
        raise Unfit("its 32-bit grey levels have no known white: save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):  # `convert` would clip to 255
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
    """The same parts, with a line on stderr that says how many examples are done: it may take
    minutes.
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
