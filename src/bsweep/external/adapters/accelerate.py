"""An adapter for Hugging Face Accelerate.

    for epoch in run.epochs():
        for batch in steps(run, accelerator, loader):
            with accelerator.accumulate(model):
                ...
        run.evaluated(test_loss=loss, reduce="mean", mean=mean(accelerator))
        save(run, accelerator)

Seen to work with Accelerate 1.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from accelerate import Accelerator

from bsweep.external.client import Run


def steps(run: Run, accelerator: Accelerator, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a prepared loader and time each step, which with
    `accelerator.accumulate` takes several batches. `run.steps` does the same for one batch a step.

    Args:
        run: What `bsweep.join()` returned.
        accelerator: The accelerator that prepared the loader.
        batches: The loader.
    """
    return run.loop.steps(batches, lambda _: accelerator.sync_gradients)


def mean(accelerator: Accelerator) -> Callable[[float], float]:
    """Return a function that averages a number over all workers, for `run.log` and
    `run.evaluated`.
    """

    def averaged(value: float) -> float:
        given = torch.tensor(float(value), device=accelerator.device)
        return float(accelerator.reduce(given, reduction="mean"))

    return averaged


def save(run: Run, accelerator: Accelerator) -> None:
    """Save the state of what the accelerator prepared, at the end of an epoch. An epoch that was
    cut short is not saved, since a resumed run repeats it. All workers call this.
    """
    if not run.should_stop:
        accelerator.save_state(str(run.checkpoint_folder))


def resume(run: Run, accelerator: Accelerator) -> None:
    """Load the state that `save` saved, if the run resumes."""
    if run.resumed_from:
        accelerator.load_state(str(run.resumed_from))
