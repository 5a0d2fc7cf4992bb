"""The images of the figures on a report's page, kept so small that one can mail the page.

Together they take at most 2.7 million bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image

_MAX_SVG_BYTES = 500_000  # of one figure; a larger one becomes a PNG
_MAX_BYTES = 2_700_000  # of all images; base64 in the page adds a third
_SHRINK = 0.7


def within_page(folder: Path, names: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    """Return the kind (`svg+xml` or `png`) and the bytes of each figure's image, by the figure's
    name.

    An image is SVG. While all images together are too large, the largest becomes a PNG or a smaller
    PNG. A figure whose SVG is too large is a PNG from the start.
    """
    smaller = {name: _ever_smaller(folder, name) for name in names}
    images = {name: next(candidates) for name, candidates in smaller.items()}
    while sum(len(image) for _, image in images.values()) > _MAX_BYTES:
        largest = max(images, key=lambda name: len(images[name][1]))
        images[largest] = next(smaller[largest])
    return images


def _ever_smaller(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    svg = (folder / f"{name}.svg").read_bytes()
    if len(svg) <= _MAX_SVG_BYTES:
        yield "svg+xml", svg
    scale = 1.0
    while True:
        yield "png", _few_colors(folder / f"{name}.png", scale)
        scale *= _SHRINK


def _few_colors(path: Path, scale: float) -> bytes:
    """Return a PNG file scaled and reduced to 64 colours, which are enough for a figure and take
    fewer bytes.
    """
    buffer = io.BytesIO()
    with Image.open(path) as image:
        width, height = (max(1, round(side * scale)) for side in image.size)
        shown = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        shown.quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
