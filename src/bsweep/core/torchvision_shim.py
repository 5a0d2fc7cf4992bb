"""torchvision beside any torch, a CPU-only one included.

Where torchvision is built for CUDA and torch is not, torchvision's compiled operators do not load,
and `import torchvision` stops with `operator torchvision::nms does not exist`. Nothing here uses
these operators; it is enough that their schemas exist before the import. Data sets, transforms and
models are plain Python and then work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@functools.cache
def import_torchvision() -> ModuleType:
    """`import torchvision`, but also beside a CPU-only torch. Call it before any import of a
    torchvision submodule.
    """
    if not _operators_load():
        _define_schemas()
    return importlib.import_module("torchvision")


def _operators_load() -> bool:
    """Whether torchvision's compiled operators can be loaded, as torchvision itself is about to
    do.
    """
    spec = importlib.util.find_spec("torchvision")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ModuleNotFoundError("torchvision is not installed: run scripts/setup.sh")
    for library in Path(folders[0]).glob("_C.*"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            return False
        return True
    return False


@functools.cache
def _define_schemas() -> torch.library.Library:
    """The schemas that torchvision looks up when imported; the cache keeps them alive, for they go
    with the object.
    """
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + _SIGNATURE)
    return library
