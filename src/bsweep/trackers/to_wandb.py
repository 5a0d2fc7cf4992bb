"""The module that writes runs to the tracker Weights & Biases, each to a folder on this machine.

`wandb sync` sends the folder later. With WANDB_MODE=online, wandb also sends each run at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb


def place(study_dir: Path) -> str:
    return str(study_dir)


def has(stored_in: str, study: str, run_id: str, fingerprint: str) -> bool:
    return False


def view(stored_in: str) -> str:
    return f"wandb sync {shlex.quote(stored_in)}/wandb/offline-run-*"


class Tracked:
    """One run in Weights & Biases, with the methods of `bsweep.trackers.Tracked`."""

    def __init__(self, stored_in: str, study: str, run_id: str, began_at: float) -> None:
        folder = Path(stored_in)
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in (folder / "wandb").glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(earlier)
        settings = wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            dir=stored_in,
            project=study,
            id=run_id,
            name=run_id,
            mode=mode,
            settings=settings,
            reinit="create_new",
        )
        self._axes: set[str] = set()

    def config(self, settings: Mapping[str, Any]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)  # type: ignore[no-untyped-call]

    def metrics(self, numbers: Mapping[str, float], axis: str, step: int, time: float) -> None:
        for name in numbers:
            if name not in self._axes:
                self._run.define_metric(name, step_metric=axis)
                self._axes.add(name)
        self._run.log({**numbers, axis: step, "time": time})

    def note(self, text: str, time: float) -> None:
        self._run.notes = "\n".join(filter(None, (self._run.notes, text)))

    def end(self, status: str, summary: Mapping[str, float], fingerprint: str, time: float) -> None:
        self._run.summary.update({**summary, "status": status})
        self._run.finish(exit_code=0 if status == "completed" else 1)


open = Tracked  # noqa: A001
