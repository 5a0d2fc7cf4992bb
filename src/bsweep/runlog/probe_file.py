"""The file of measurements that `bsweep probe` writes. It holds the speed of each worker at several
batches, its largest measured batch, and the time of an exchange. For each way of splitting a model
it holds the seconds of steps and the peaks of memory at several batches, and the largest batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from bsweep.config.values import Count

PROBE_SCHEMA = 2


@dataclass(frozen=True)
class ProbedBatch:
    local_batch: Count
    # The time of a whole training step without its exchange.
    step_seconds: Annotated[float, Field(gt=1e-9, lt=1e9)]


@dataclass(frozen=True)
class ProbedWorker:
    """The measurements of one worker in a probe. `peak_flops` is the measured FLOP/s of a large
    matrix product. `batches` are in rising order, up to `largest_batch`.
    """

    host: str
    device: str
    precision: str
    memory_bytes: Annotated[int, Field(ge=0)] | None
    peak_flops: Annotated[float, Field(gt=0, lt=1e30)]
    batches: Annotated[tuple[ProbedBatch, ...], Field(min_length=1)]
    largest_batch: Count
    stopped_by: str  # why no larger batch was measured: out_of_memory | examples | seconds

    def __post_init__(self) -> None:
        _refuse_disorder([batch.local_batch for batch in self.batches], self.largest_batch)

    @property
    def rates(self) -> dict[int, float]:
        """The examples per second at each measured local batch."""
        return {batch.local_batch: batch.local_batch / batch.step_seconds for batch in self.batches}

    def step_seconds(self, local_batch: int) -> float:
        """Return this worker's seconds per step at a local batch, by linear interpolation between
        the local batches that the probe measured.
        """
        assert self.batches[0].local_batch <= local_batch <= self.largest_batch, local_batch
        for before, after in zip(self.batches, self.batches[1:], strict=False):
            if local_batch <= after.local_batch:
                part = (local_batch - before.local_batch) / (after.local_batch - before.local_batch)
                return before.step_seconds + part * (after.step_seconds - before.step_seconds)
        return self.batches[-1].step_seconds


def _refuse_disorder(batches: Sequence[int], largest: int) -> None:
    if any(before >= after for before, after in itertools.pairwise([*batches, largest + 1])):
        raise ValueError(
            f"the local batches of the probe are not in rising order, or exceed the largest batch "
            f"that was measured, {largest}"
        )


@dataclass(frozen=True)
class SplitBatch:
    """The measurements of a few steps of a split model at one local batch.

    `peak_bytes` is the peak memory of the worker that took most; None if it is not known.
    """

    local_batch: Count
    # The mean time of a whole training step with its exchanges.
    step_seconds: Annotated[float, Field(gt=1e-9, lt=1e9)]
    peak_bytes: Annotated[int, Field(ge=0)] | None


@dataclass(frozen=True)
class ProbedSplit:
    """The measurements of a model that is split over workers in one way. `probed` says for which
    configuration they hold, see `bsweep.allocation.probes.settings_of_split`. `batches` are in
    rising order, up to `largest_batch`.
    """

    probed: dict[str, Any]
    batches: Annotated[tuple[SplitBatch, ...], Field(min_length=1)]
    largest_batch: Count
    # Why no larger batch was tried: out_of_memory | memory | examples | seconds | failed
    stopped_by: str

    def __post_init__(self) -> None:
        counts(self.probed)
        _refuse_disorder([batch.local_batch for batch in self.batches], self.largest_batch)


@dataclass(frozen=True)
class Probe:
    """The results of `bsweep probe`. `probed` says for which configuration those of workers with
    the whole model hold, see `bsweep.allocation.probes.settings`. There are no workers if only
    split models were probed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: int
    probed: dict[str, Any] = field(default_factory=dict)
    workers: tuple[ProbedWorker, ...] = ()
    # The time of one exchange of the whole vector with its codec, without waiting for others.
    exchange_seconds: Annotated[float, Field(ge=0, lt=1e9)] = 0.0
    splits: tuple[ProbedSplit, ...] = ()  # of each way of splitting the model

    def __post_init__(self) -> None:
        counts(self.probed)


def counts(probed: Mapping[str, Any]) -> tuple[int, int]:
    """Return the workers and the passes of a step for which a probe holds."""
    workers, passes = (probed.get(key, 1) for key in ("num_workers", "accumulation_steps"))
    return _COUNT.validate_python(workers), _COUNT.validate_python(passes)


_COUNT: TypeAdapter[int] = TypeAdapter(Count)
_PROBE: TypeAdapter[Probe] = TypeAdapter(Probe)


def read(path: Path) -> Probe:
    """Return the content of a probe file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no probe, or a newer bsweep wrote it.
    """
    content = path.read_bytes()
    probe = from_json(content)
    schema = probe.get("schema") if isinstance(probe, dict) else None
    if isinstance(schema, int) and schema > PROBE_SCHEMA:
        raise ValueError(
            f"a newer bsweep wrote this file (probe schema {schema}): update bsweep to read it"
        )
    return _PROBE.validate_json(content)


def reason(error: Exception) -> str:
    """Return in words why `read` raised an error, to follow the name of the file."""
    cause = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return f"is not a probe of this version ({cause})"
