"""Files of tensors that are there whole or not at all."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import torch


def write(state: dict[str, Any], path: Path) -> None:
    """Write tensors, numbers, texts, and lists of them, so that they survive a power cut.

    Raises:
        OSError, RuntimeError: there is no room, or something else is in the way.
    """
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """What was written, on the CPU; None, and why on stderr, where it cannot be read. Runs no code
    of the file.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file makes torch raise what it likes
        traceback.print_exc()
        return None
    return state
