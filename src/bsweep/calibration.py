"""What `auto` means in a study: the precision and the memory format that were measured to be the fastest.

A sweep that is long enough asks for it (`request`) and its first point's workers answer (`bsweep.calibrate`), in the
study's `calibration.json`; those on GPUs do not, and take their half precision, channels last. All points of a study
train alike, whatever was faster for some of them: else a curve over batch sizes would show what changed between them.
So a study that has runs already goes on as they did.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from bsweep import runlog
from bsweep.config import RunConfig

_T = TypeVar("_T")

LEAST_STEPS = 1000  # of a sweep: of fewer, a calibration would take more time than it saves
_INDISTINCT = 1.03  # times as slow is no difference: the first of such candidates is taken


@dataclass(frozen=True)
class Numerics:
    """How a model computes: in which precision, and whether images lie channels last."""

    precision: str
    channels_last: bool

    def __str__(self) -> str:
        return f"{self.precision}, {'channels_last' if self.channels_last else 'contiguous'}"


@dataclass(frozen=True)
class Timed:
    """Seconds of forward and backward passes, each at one of the calibration's local batches, which rise."""

    numerics: Numerics
    step_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """`timed` is empty until a worker has measured; `settled` is set where none does: on GPUs, after other runs."""

    schema: int
    wanted_batches: tuple[int, ...]  # local batches of the points that asked
    precision: str = "auto"  # what all of them say themselves
    channels_last: Literal["auto", True, False] = "auto"
    measured_batches: tuple[int, ...] = ()
    timed: tuple[Timed, ...] = ()
    settled: Numerics | None = None

    @property
    def is_open(self) -> bool:
        return not self.timed and self.settled is None

    def seconds_per_example(self, candidate: Timed) -> float:
        """Over the wanted batches, each by the measured one that is nearest."""
        times = dict(zip(self.measured_batches, candidate.step_seconds, strict=True))
        nearest = (min(times, key=lambda one: abs(math.log(one / batch))) for batch in self.wanted_batches)
        return statistics.fmean(times[batch] / batch for batch in nearest)

    def ranked(self, config: RunConfig) -> list[tuple[Numerics, float]]:
        """What `config` leaves open, with its seconds per example; the one to take comes first."""
        open_to = [one for one in self.timed if is_open_to(config, one.numerics)] or self.timed
        timed = [(one.numerics, self.seconds_per_example(one)) for one in open_to]
        least = min(seconds for _, seconds in timed)
        first = next(pair for pair in timed if pair[1] < _INDISTINCT * least)
        return [first, *sorted((pair for pair in timed if pair != first), key=lambda pair: pair[1])]

    def says(self, config: RunConfig) -> str:
        """What was chosen for a run, and why; nothing while nothing was measured."""
        if self.settled:
            return f"{choose(config, self, self.settled)}: as all runs of this study"
        if not self.measured_batches:
            return ""
        (chosen, least), *others = self.ranked(config)
        compared = ", ".join(f"{numerics} {seconds / least:.2f}x" for numerics, seconds in others)
        batches = ", ".join(map(str, self.measured_batches))
        return f"{chosen}: the fastest at local batch {batches}" + (f" (time of {compared})" if compared else "")


def path_of(config: RunConfig) -> Path:
    return config.study_dir / "calibration.json"


def read(path: Path) -> Calibration | None:
    found = runlog.read_json(path)
    return None if found is None else parse(found)


def parse(found: Mapping[str, Any]) -> Calibration:
    return _ADAPTER.validate_json(json.dumps(found))


def write(path: Path, calibration: Calibration) -> None:
    runlog.write_json(path, asdict(calibration))


_ADAPTER: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def request(configs: Sequence[RunConfig], num_steps: float) -> None:
    """Have the first point that runs measure for all of a study, if that is left to it and pays.

    Args:
        configs: Points of one study.
        num_steps: That all of them will take together.
    """
    path = path_of(configs[0])
    asking = [config for config in configs if is_asked(config)]
    if not asking or path.exists():
        return
    settled = next(_of_runs(configs[0].study_dir), None)
    if settled or num_steps >= LEAST_STEPS:
        wanted = Calibration(
            1,
            wanted_batches=tuple(sorted({batch for config in asking for batch in config.local_batches})),
            precision=_common([config.precision for config in asking]),
            channels_last=_common([config.channels_last for config in asking]),
            settled=settled,
        )
        write(path, wanted)


def _common(values: Sequence[_T]) -> _T | Literal["auto"]:
    return values[0] if len(set(values)) == 1 else "auto"


def is_asked(config: RunConfig) -> bool:
    return "auto" in (config.precision, config.channels_last)


def choose(config: RunConfig, calibration: Calibration | None, default: Numerics) -> Numerics:
    """What a run computes in: what it says itself, else what was calibrated, else `default`."""
    found = default
    if calibration and calibration.settled:
        found = calibration.settled
    elif calibration and calibration.timed:
        found = calibration.ranked(config)[0][0]
    is_refused = found.precision == "fp16" and bool(config.strategy.refuses_fp16)  # of a later sweep in the same study
    return Numerics(
        ("fp32" if is_refused else found.precision) if config.precision == "auto" else config.precision,
        found.channels_last if config.channels_last == "auto" else config.channels_last,
    )


def is_open_to(config: RunConfig | Calibration, numerics: Numerics) -> bool:
    return config.precision in ("auto", numerics.precision) and config.channels_last in ("auto", numerics.channels_last)


def _of_runs(study_dir: Path) -> Iterator[Numerics]:
    """What runs of the study that left it open did compute in, by their records."""
    for metrics in sorted(study_dir.glob("*/metrics.jsonl")):
        with suppress(ValueError):  # a damaged run, which reports name
            for record in runlog.read_records(metrics, with_steps=False)[0]:
                if record["type"] == "start" and (found := _of_start(record)):
                    yield found


def _of_start(record: Mapping[str, Any]) -> Numerics | None:
    config = record["config"]
    if config["precision"] != "auto":
        return None
    told = record.get("channels_last")  # null in records of earlier versions, whose configuration said which
    return Numerics(record["precision"], bool(config["channels_last"]) if told is None else told)
