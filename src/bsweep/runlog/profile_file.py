"""The profile of a run: how long each part of a training step takes, and advice on the bottleneck.

`bsweep.measure.profile_worker` measures the parts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from bsweep.config.run import RunConfig
from bsweep.config.values import Finite, NonNegative, Positive
from bsweep.core.words import aligned
from bsweep.runlog.reading import Damaged

PARTS = ("data", "forward", "backward", "graph", "exchange", "optimizer", "loop")
"""The names of the parts of a training step, in the order of the step.

`graph` replaces data, forward and backward if they run as one CUDA graph. `loop` is the time that
belongs to no other part.
"""

# A part other than computing is a bottleneck only if it takes at least this share of a step.
_WORTH_NAMING = 0.2


@dataclass(frozen=True)
class Anatomy:
    """The mean seconds of one worker's training step and of its parts.

    `wait_seconds` or `busy_seconds` is None if it was not measured.
    """

    parts: dict[str, Finite]
    step_seconds: Positive  # of the same steps, by a clock around them
    # Of as many steps without timed parts, taken in turns with these.
    untimed_step_seconds: NonNegative
    wait_seconds: Finite | None  # the part of the exchange that waits for slower workers
    busy_seconds: NonNegative | None  # the time in which a GPU computes
    overlaps: bool  # True if the exchange may overlap with the backward pass

    def __post_init__(self) -> None:
        if not 0 < sum(self.parts.values()) < math.inf:
            raise ValueError("the seconds of a step's parts must add up to a finite number above 0")


def table(workers: Sequence[Anatomy]) -> str:
    """Return a table, as text, of how long each measured part of a training step takes.

    Each row has the mean over workers in milliseconds and its share of the sum of all parts; with
    several workers, a row also has the slowest one and its time.
    """
    step = _step_seconds(workers)
    rows = [["part of a step", "ms", "share", "slowest"]]

    def add(name: str, seconds: Sequence[float | None]) -> None:
        """Add a row of each worker's seconds, unless none was measured or all are 0."""
        known = [value for value in seconds if value is not None]
        if not any(known):
            return
        slowest = max(range(len(known)), key=known.__getitem__)
        most = f"{known[slowest] * 1e3:.3g} (worker {slowest})" if len(known) > 1 else ""
        mean = statistics.fmean(known)
        rows.append([name, f"{mean * 1e3:.3g}", f"{mean / step:.0%}", most])

    for part in PARTS:
        has_exchange = part == "backward" and workers[0].overlaps
        name = "backward, exchange in it" if has_exchange else part
        add(name, [worker.parts.get(part, 0.0) for worker in workers])
        if part == "exchange":
            add("  of it waiting", [worker.wait_seconds for worker in workers])
    add("all parts", [sum(worker.parts.values()) for worker in workers])
    add("step", [worker.step_seconds for worker in workers])
    add("step, parts not timed", [worker.untimed_step_seconds for worker in workers])
    add("GPU busy", [worker.busy_seconds for worker in workers])
    return "\n".join(aligned(rows, left=[0]))


def _step_seconds(workers: Sequence[Anatomy]) -> float:
    return statistics.fmean(sum(worker.parts.values()) for worker in workers)


def bottleneck(workers: Sequence[Anatomy]) -> str:
    """Return sentences that name the bottleneck of the workers' training steps, and a remedy.

    The bottleneck is what takes most of a step other than computing; it is computing if nothing
    else takes a fifth of a step.
    """
    step = _step_seconds(workers)
    share = {
        part: statistics.fmean(worker.parts.get(part, 0.0) for worker in workers) / step
        for part in PARTS
    }
    waits = [worker.wait_seconds or 0.0 for worker in workers]
    waiting = min(statistics.fmean(waits) / step, share["exchange"])
    busy = [worker.busy_seconds for worker in workers if worker.busy_seconds is not None]
    held_up_by = {part: share[part] for part in ("exchange", "data", "optimizer", "loop")}
    held_up_by["launch"] = (
        max(0.0, 1 - share["exchange"] - statistics.fmean(busy) / step) if busy else 0.0
    )
    worst = max(held_up_by, key=held_up_by.__getitem__)
    if held_up_by[worst] < _WORTH_NAMING:
        worst = "computing"
        held_up_by[worst] = share["forward"] + share["backward"] + share["graph"]
    if worst == "exchange" and waiting >= share["exchange"] / 2:
        worst, held_up_by["waiting"] = "waiting", share["exchange"]
    return _SENTENCES[worst].format(
        share=f"{held_up_by[worst]:.0%}",
        waiting=f"{waiting:.0%}",
        slowest=waits.index(min(waits)),
        least=f"{_WORTH_NAMING:.0%}",
    )


_SENTENCES = {
    "waiting": "waiting: {share} of a step is the exchange, and half of it or more ({waiting} of a "
    "step) is waiting, probably for worker {slowest}, which waits the least. Give each worker the "
    "load that it can bear (allocation=...), or find out what else runs on that worker's machine.",
    "exchange": "exchange: {share} of a step is the exchange, of which waiting for other workers "
    "is {waiting} of a step. A larger local_batch or more "
    "accumulation_steps make exchanges rarer, and compression=fp16 makes gradients half as large; "
    "strategy=ddp, and strategy=horovod with strategy.buckets above 1, overlap the exchange with "
    "the backward pass.",
    "data": "data: {share} of a step is the preparation of examples. Keep the examples on the "
    "device if they fit (data.device), make images smaller (data.side, if the data set has it), or "
    "give workers more threads.",
    "optimizer": "optimizer: {share} of a step is the update. A larger local_batch or more "
    "accumulation_steps make updates rarer; optimizer=sgd computes the least.",
    "loop": "loop: {share} of a step belongs to no other part, such as the code of the training "
    "loop. A larger local_batch makes this share smaller.",
    "launch": "launch: the GPU is idle for {share} of a step, probably because the host launches "
    "kernels more slowly than the GPU computes them. A larger local_batch then helps, or "
    "graph=true if it was switched off.",
    "computing": "computing: forward and backward passes take {share} of a step, and each other "
    "part takes less than {least}. A faster precision, a smaller model, or a smaller local_batch "
    "on more workers makes a step shorter.",
}


def folder_of(config: RunConfig) -> Path:
    """Return the path of the folder with a run's profile and traces."""
    return config.study_dir / "profile" / config.run_id


def read_anatomies(config: RunConfig) -> list[Anatomy]:
    """Return the seconds of a step's parts that `bsweep profile` measured, one item for each
    worker, by rank.

    Raises:
        Damaged: If the file is missing or holds no profile.
    """
    path = folder_of(config) / "profile.json"
    try:
        return _PROFILE.validate_json(path.read_bytes()).workers
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise Damaged(f"{path} is no profile ({reason}): run `bsweep profile` again.") from None


@dataclass(frozen=True)
class _Profile:
    workers: Annotated[list[Anatomy], Field(min_length=1)]


_PROFILE: TypeAdapter[_Profile] = TypeAdapter(_Profile)
