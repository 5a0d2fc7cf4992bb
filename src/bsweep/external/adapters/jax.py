"""An adapter for plain JAX, which computes a step later than the call that asks for it returns.

    for epoch in run.epochs():
        for images, labels in steps(run, batches, lambda: params):
            params = train_step(params, images, labels)
        run.evaluated(test_loss=float(loss(params)), reduce="mean", mean=mean)

Seen to work with JAX 0.10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import jax
from jax.experimental import multihost_utils

from bsweep.external.client import Run
from bsweep.external.loop import Batch, Examples


def steps(
    run: Run, batches: Iterable[Batch], state: Callable[[], object], examples: Examples = None
) -> Iterator[Batch]:
    """Yield batches as `run.steps` does, and time each step until its result is computed.

    Args:
        run: What `bsweep.join()` returned.
        batches: This worker's batches.
        state: Returns what a step has changed, such as the parameters.
        examples: As for `run.steps`.
    """
    device = {"device": jax.local_devices()[0].device_kind}  # bsweep itself asks torch alone
    run.loop.report("facts", is_ready=False, facts=device, software={})
    return run.steps(batches, examples, finish=lambda: jax.block_until_ready(state()))


def mean(value: float) -> float:
    """Return the mean of a number over all processes, for `run.log` and `run.evaluated`."""
    every = multihost_utils.process_allgather(jax.numpy.asarray(float(value)))
    return float(every.mean())
