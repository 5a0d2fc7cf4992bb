"""Files of tensors that are there whole or not at all."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch

from bsweep.core.whole_files import replacing


def write_tensors(state: dict[str, Any], path: Path) -> None:
    """Write tensors, numbers, texts, and lists of them, so that they survive a power cut.

    Raises:
        OSError, RuntimeError: there is no room, or something else is in the way.
    """
    with replacing(path, is_only_writer=True) as file:
        torch.save(state, file)


def read_tensors(path: Path) -> dict[str, Any] | None:
    """What was written, on the CPU; None, and why on stderr, where it cannot be read. Runs no code
    of the file.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file makes torch raise what it likes
        traceback.print_exc()
        return None
    return state
