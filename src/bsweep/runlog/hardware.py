"""What a run was trained on, in words: by which times compare, and what is fastest is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bsweep.core.words import counted


def hardware_words(meta: Mapping[str, Any]) -> str:
    """GPUs, CPU and cores of `meta.json`: what makes times differ. Drivers are in the
    provenance.
    """
    gpus = Counter(line.split(",")[0].strip() for line in meta.get("gpus") or ())
    parts = [f"{count} x {name}" for name, count in gpus.items()]
    parts += [str(meta["cpu"])] if meta.get("cpu") else []
    return ", ".join(parts + ([counted(meta["cores"], "core")] if meta.get("cores") else []))
