"""Functions that convert Pillow's images to arrays, and show the progress while many examples are
read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from bsweep.core import terminal

if TYPE_CHECKING:
    from PIL.Image import Image

_LINE_SECONDS = 10.0  # between lines in a file or a pipe

_T = TypeVar("_T")


class Unfit(ValueError):
    """The error for data that cannot be used as examples; its message says why."""


def pixels(image: Image, side: int | None, *, keeps_grey: bool = False) -> NDArray[np.uint8]:
    """Return a Pillow image as an array, uint8 (C, H, W).

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


def with_progress(
    parts: Iterable[_T], work: str, total: int, per_part: int = 1
) -> Generator[_T, None, None]:
    """Yield each of `parts` unchanged, and show on stderr how many examples have been read.

    An interactive terminal shows a bar until all are done. Anything else gets a line about every
    ten seconds. Both end with a line that says how many examples were read.

    Args:
        parts: The parts of a work that may take minutes.
        work: The name of the work.
        total: The number of all examples.
        per_part: The number of examples of a part.
    """
    has_bar = sys.stderr.isatty() and terminal.console().is_interactive
    yield from (_with_bar if has_bar else _with_lines)(parts, work, total, per_part)


def _with_bar(
    parts: Iterable[_T], work: str, total: int, per_part: int
) -> Generator[_T, None, None]:
    # Imported here because a worker, whose stderr is a file, does not need rich.
    from rich import progress

    screen = terminal.console()
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(work, total=total)
        for number, part in enumerate(parts, 1):
            yield part
            bar.update(task, completed=min(number * per_part, total))
    screen.print(_line(work, total, total))


def _with_lines(
    parts: Iterable[_T], work: str, total: int, per_part: int
) -> Generator[_T, None, None]:
    said_at = time.monotonic()
    for number, part in enumerate(parts, 1):
        yield part
        done = min(number * per_part, total)
        if time.monotonic() - said_at > _LINE_SECONDS or done == total:
            said_at = time.monotonic()
            # Workers run this too, where no handler of a command shows log records.
            print(_line(work, done, total), file=sys.stderr, flush=True)


def _line(work: str, done: int, total: int) -> str:
    return f"{work}: {done:,} of {total:,}"
