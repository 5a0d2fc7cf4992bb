"""Functions that convert Pillow's images to arrays, and show the progress while many examples are
read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bsweep.core import terminal

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x112  # an EXIF tag
_LINE_SECONDS = 10.0  # between lines in a file or a pipe

_T = TypeVar("_T")


class Unfit(ValueError):
    """The error for data that cannot be used as examples; its message says why."""


def note_on_levels(num_bits: int) -> str:
    """Return the sentence for the user on images of 16 bits that were read by `num_bits`, see
    `pixels`.
    """
    white = 2**num_bits - 1
    return f"grey levels of 16 bits are scaled for the whole data set so that {white} is white"


def num_bits(image: Any) -> int:
    """Return the number of bits, at least 8, that the brightest level of a Pillow image of 16 bits
    needs; 0 for anything else.
    """
    return max(8, int(np.asarray(image).max()).bit_length()) if has_16_bits(image) else 0


def has_16_bits(image: Any) -> bool:
    """Return True for a Pillow image with grey levels of 16 bits."""
    return hasattr(image, "getbands") and image.mode.startswith("I;16")


def pixels(
    image: Image, side: int | None, num_bits: int = 16, *, keeps_grey: bool = False
) -> NDArray[np.uint8]:
    """Return a Pillow image as an array, uint8 (C, H, W), upright if it has an orientation tag.

    Args:
        image: The image.
        side: The side to which the image's centre square is scaled; None leaves the size.
        num_bits: The number of bits, from 8 to 16, that the brightest level of the data set's
            images of 16 bits needs. The upper eight of them are kept.
        keeps_grey: True to return one channel for a grey image, False to return always three.

    Raises:
        Unfit: If the image has 32-bit grey levels, for which no white is defined.
    """
    # Imported here because a worker that finds the cache should not wait for it.
    from PIL import Image as pillow
    from PIL import ImageOps

    if image.getexif().get(_ORIENTATION, 1) != 1:  # else it would be copied
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F"):
        raise Unfit(
            "32-bit grey levels do not say which level is white: save the image with 8 or 16 bits"
        )
    if has_16_bits(image):  # `convert` would clip the levels to 255.
        image = pillow.fromarray((np.asarray(image) >> (num_bits - 8)).astype(np.uint8))
    image = image.convert("L" if keeps_grey and image.mode in ("1", "L", "LA") else "RGB")
    if side:
        image = ImageOps.fit(image, (side, side), pillow.Resampling.BILINEAR)
    array = np.array(image)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def with_progress(examples: Iterable[_T], work: str, total: int) -> Iterator[_T]:
    """Yield each of `examples` unchanged, and show on stderr how many have been read.

    An interactive terminal shows a bar until all are done. Anything else gets a line about every
    ten seconds. Both end with a line that says how many examples were read.

    Args:
        examples: The results of a work that may take minutes, which raises its errors itself.
        work: The name of the work.
        total: The number of examples.
    """
    if sys.stderr.isatty() and (screen := terminal.console()).is_interactive:
        # Imported here because a worker, whose stderr is a file, does not need rich.
        from rich.progress import track

        yield from track(examples, work, total, console=screen, transient=True)
        screen.print(_line(work, total, total))
        return
    said_at = time.monotonic()
    for number, example in enumerate(examples, 1):
        yield example
        if time.monotonic() - said_at > _LINE_SECONDS or number == total:
            said_at = time.monotonic()
            # Workers run this too, where no handler of a command shows log records.
            print(_line(work, number, total), file=sys.stderr, flush=True)


def _line(work: str, num_read: int, total: int) -> str:
    return f"{work}: {num_read:,} of {total:,}"
