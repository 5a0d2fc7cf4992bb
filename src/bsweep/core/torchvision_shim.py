"""An import of torchvision that works even if torchvision is built for CUDA and torch is not.

If torchvision is built for CUDA and torch is not, torchvision's compiled operators do not load.
Then `import torchvision` stops with `operator torchvision::nms does not exist`. bsweep does not use
these operators: it is enough that their schemas exist before the import. Data sets, transforms and
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
    """Import and return torchvision, even if it is built for CUDA and torch is not. Call this
    before any import of a torchvision submodule.
    """
    with torch.device("cpu"):  # torch 2.6 and 2.8 import modules that compute on the default device
        if not _operators_load():
            _define_schemas()
        return importlib.import_module("torchvision")


def _operators_load() -> bool:
    """Try to load torchvision's compiled operators as torchvision itself does, and return True if
    they could be loaded.
    """
    spec = importlib.util.find_spec("torchvision")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ValueError(
            "torchvision is not installed: `bsweep doctor` names the command that installs it"
        )
    for library in Path(folders[0]).glob("_C*.*"):  # `_C_stable` since 0.29
        try:
            torch.ops.load_library(str(library))
        except OSError:
            return False
        return True
    return False


@functools.cache
def _define_schemas() -> torch.library.Library:
    """Define in torch the operator schemas (signatures) that torchvision looks up when it is
    imported. They vanish with the returned object, so the cache keeps this object.
    """
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + _SIGNATURE)
    return library
