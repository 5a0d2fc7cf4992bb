"""The description of a run's hardware: its GPUs, its CPU and its number of cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bsweep.core.words import counted


def hardware_words(meta: Mapping[str, Any]) -> str:
    """Return a text that names the GPUs, the CPU and the number of cores that a run's `meta.json`
    lists.

    Without `--mix`, a report refuses runs for which this text differs. Driver versions are not in
    it.
    """
    gpus = Counter(line.split(",")[0].strip() for line in meta.get("gpus") or ())
    parts = [f"{count} x {name}" for name, count in gpus.items()]
    parts += [str(meta["cpu"])] if meta.get("cpu") else []
    return ", ".join(parts + ([counted(meta["cores"], "core")] if meta.get("cores") else []))
