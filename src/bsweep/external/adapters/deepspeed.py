"""An adapter for a DeepSpeed engine.

    engine, _, _, _ = deepspeed.initialize(model=model, config=settings(run, optimizer=...))
    resume(run, engine)
    for epoch in run.epochs():
        for images, labels in steps(run, engine, loader):
            engine.backward(loss(engine(images), labels))
            engine.step()
        save(run, engine)

Seen to work with DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deepspeed import DeepSpeedEngine

from bsweep.external.client import Run


def settings(run: Run, **others: Any) -> dict[str, Any]:
    """Return a configuration of DeepSpeed with the batch sizes of the point.

    Args:
        run: What `bsweep.join()` returned.
        **others: The other keys. With `gradient_accumulation_steps`, a batch of the loader is this
            part of the local batch.
    """
    passes = others.get("gradient_accumulation_steps", 1)
    return {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.local_batch // passes,
        **others,
    }


def steps(run: Run, engine: DeepSpeedEngine, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader and time each step of the engine, which takes several batches
    if it accumulates gradients.

    Args:
        run: What `bsweep.join()` returned.
        engine: What `deepspeed.initialize` returned.
        batches: The loader.
    """
    before = engine.global_steps

    def has_stepped(_: int) -> bool:
        nonlocal before
        before, earlier = engine.global_steps, before
        return bool(before > earlier)

    return run.loop.steps(batches, has_stepped)


def save(run: Run, engine: DeepSpeedEngine) -> None:
    """Save the engine's state, at the end of an epoch. An epoch that was cut short is not saved,
    since a resumed run repeats it. All workers call this.
    """
    if not run.should_stop:
        engine.save_checkpoint(str(run.checkpoint_folder), tag="last")


def resume(run: Run, engine: DeepSpeedEngine) -> None:
    """Load the state that `save` saved, if the run resumes."""
    if run.resumed_from:
        engine.load_checkpoint(str(run.resumed_from), tag="last")
