"""Which batch size, how many workers and which way of exchanging gradients should I train with? Measured."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsweep import plots
    from bsweep.analysis import load

__all__ = ["load", "plots"]


def __getattr__(name: str) -> Any:
    # On first use: the worker processes import this package too, and need neither pandas nor matplotlib.
    if name == "load":
        return importlib.import_module("bsweep.analysis").load
    if name == "plots":
        return importlib.import_module("bsweep.plots")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
