"""The probe of a model that is split over workers: runs of a few steps at several local batches, up
to the largest that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bsweep import data
from bsweep.allocation import probes
from bsweep.config.run import RunConfig
from bsweep.core import gpus
from bsweep.core.memory import available_bytes
from bsweep.launch import Outcome
from bsweep.runlog.probe_file import ProbedSplit, SplitBatch
from bsweep.study import side_runs

_MOST_SECONDS = 120.0  # for the steps of one run
# The kernels of an epoch's smaller last step stay in memory beside those of full ones.
_STEPS = side_runs.TRIED_STEPS - 0.5
_NEAR = 1.5  # A batch that does not fit is at most so many times as large as the largest that does.


def probe(config: RunConfig, say: Callable[[str], None]) -> Outcome:
    """Train a point for a few steps at its own local batch and at others, and write the times, the
    peaks of memory and the largest batch that fits into the probe file.

    The batch doubles as long as it fits, and as there are examples, time and memory for a larger
    one. If the point's own batch does not fit, it is halved until one does.

    Args:
        config: The point, whose model is split.
        say: Called with a line for each local batch.

    Returns:
        How the probe ended: `completed` if some batch fits, and no run failed.
    """
    failed = None
    tried: dict[int, SplitBatch | None] = {}  # None is out of memory
    batch, stopped_by = config.examples_per_pass, ""
    while batch:
        at_batch = replace(config, local_batch=batch, global_batch=None)
        # What the workers print is that of a run.
        times = side_runs.try_out(at_batch, lambda line: None, _STEPS)
        if not isinstance(times, Outcome):
            tried[batch] = SplitBatch(batch, times.step_seconds, times.peak_bytes)
            say(f"local batch {batch}: {times.step_seconds:.3g} s per step")
        elif times.status == "out_of_memory":
            tried[batch] = None
            say(f"local batch {batch}: out of memory ({times.message.partition(chr(10))[0]})")
        else:
            failed = replace(times, message=f"local batch {batch}: {times.message}")
            stopped_by = "failed"
            break
        batch, stopped_by = _next(config, tried)
    batches = tuple(fitting for _, fitting in sorted(tried.items()) if fitting)
    if batches:
        largest, settings = batches[-1].local_batch, probes.settings_of_split(config)
        probes.write_split(config, ProbedSplit(settings, batches, largest, stopped_by))
        return failed or Outcome("completed")
    least = config.strategy.num_microbatches
    return failed or Outcome(
        "out_of_memory",
        f"a local batch of {least} is out of memory: give the workers more memory, split the "
        "model over more of them, or choose a smaller model",
    )


def _next(config: RunConfig, tried: Mapping[int, SplitBatch | None]) -> tuple[int, str]:
    """Return the local batch to try next; 0 for none, with the reason why no larger one is tried:
    out_of_memory, memory (a larger one may not fit beside other processes), examples or seconds.

    Args:
        config: The point.
        tried: The batches that were tried; None for those that are out of memory.
    """
    unit = config.strategy.num_microbatches  # divides each local batch
    fitting = [batch for batch in tried.values() if batch]
    too_large = min((batch for batch, fits in tried.items() if not fits), default=0)
    if not fitting:
        return too_large // 2 // unit * unit, ""
    largest = max(fitting, key=lambda fits: fits.local_batch)
    batch = largest.local_batch
    if too_large:
        middle = (batch + too_large) // 2 // unit * unit
        is_open = too_large > _NEAR * batch and middle > batch
        return (middle, "") if is_open else (0, "out_of_memory")
    num_train = data.prepare(config.data).num_train
    if 2 * batch * config.examples_per_step // config.examples_per_pass > num_train:
        return 0, "examples"
    if 2 * side_runs.TRIED_STEPS * largest.step_seconds > _MOST_SECONDS:
        return 0, "seconds"
    # Without a limit, a batch that does not fit would end other processes of the machine, too.
    is_bounded = gpus.num_gpus(config.device) or config.launch.memory_limit_mb
    share = available_bytes() / config.num_workers
    if not is_bounded and (largest.peak_bytes is None or 2 * largest.peak_bytes > share):
        return 0, "memory"
    return 2 * batch, ""
