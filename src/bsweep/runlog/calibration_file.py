"""What `auto` means in a study: the precision and the memory format that were measured to be the
fastest.

A sweep that is long enough asks for it (`request`) and its first point's workers answer
(`bsweep.train.choose_numerics`), in the study's `calibration.json`; those on GPUs do not, and take
their half precision, channels last. All points of a study train alike, whatever was faster for some
of them: else a curve over batch sizes would show what changed between them. So a study that has
runs already goes on as they did. On other hardware, whose runs do not compare with them anyway,
what was fastest may be slow: there it is asked anew, and the answer kept in a file beside. A sweep
may be sent off from one machine to run on others: what is not answered yet belongs to whoever meets
it first. `bsweep probe` and `profile` take a study's answer but give none by their only point:
where there is none they ask in their own folder.
"""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from bsweep import runlog
from bsweep.config import RunConfig
from bsweep.config.values import Count, NonNegative, Positive

_T = TypeVar("_T")

LEAST_STEPS = 1000  # of a sweep: of fewer, a calibration would take more time than it saves
_BY_GPU = "by the kind of GPU, without measuring"
_SETTLED = {"runs": "as all runs of this study", "gpu": _BY_GPU, "itself": "as this run began"}
_INDISTINCT = (
    1.03  # times as slow, and the noise, is no difference: the first of such candidates is taken
)


@dataclass(frozen=True)
class Numerics:
    """How a model computes: in which precision, and whether images lie channels last."""

    precision: str
    channels_last: bool

    def __str__(self) -> str:
        return f"{self.precision}, {'channels_last' if self.channels_last else 'contiguous'}"


PLAIN = Numerics("fp32", channels_last=False)
"""What one writes first: on CPUs `auto` stands for it where nothing was measured, and is not slower
than that.
"""


@dataclass(frozen=True)
class Timed:
    """Seconds of a step without its exchange, the least of some, at each of the calibration's local
    batches.
    """

    numerics: Numerics
    step_seconds: tuple[Positive, ...]


@dataclass(frozen=True)
class Calibration:
    """`timed` is empty until a worker has measured; `settled` is set where none does: on GPUs,
    after other runs.
    """

    schema: int
    # Local batches of the points that asked.
    wanted_batches: Annotated[tuple[Count, ...], Field(min_length=1)]
    precision: str = "auto"  # what all of them say themselves
    channels_last: Literal["auto", True, False] = "auto"
    measured_batches: tuple[Count, ...] = ()
    timed: tuple[Timed, ...] = ()
    settled: Numerics | None = None
    settled_by: Literal["runs", "gpu", "itself"] = "runs"
    noise: NonNegative = (
        0.0  # by which fraction the second of such steps was longer than the least, of most
    )
    hardware: str = (
        ""  # of the run that answered, until then of who asked; empty where that is not known
    )
    instead_of: str = ""  # the hardware of the study's first answer, where that is other
    models: tuple[str, ...] = ()  # of the points that asked
    example_shape: tuple[Count, ...] = ()  # of the point that measured
    torch: str = ""  # its version

    def __post_init__(self) -> None:
        are_timed = bool(self.measured_batches) == bool(self.timed)
        if not are_timed or any(
            len(one.step_seconds) != len(self.measured_batches) for one in self.timed
        ):
            raise ValueError("not one time for each measured batch")

    @property
    def is_open(self) -> bool:
        return not self.timed and self.settled is None

    @property
    def was_worth_it(self) -> bool:
        """Whether the study's steps were enough to measure, rather than its runs enough to go
        by.
        """
        return bool(self.timed) or self.settled_by == "gpu"

    def seconds_per_example(self, candidate: Timed) -> float:
        """Over the wanted batches, each by the measured one that is nearest."""
        times = dict(zip(self.measured_batches, candidate.step_seconds, strict=True))
        nearest = (
            min(times, key=lambda one: abs(math.log(one / batch))) for batch in self.wanted_batches
        )
        return statistics.fmean(times[batch] / batch for batch in nearest)

    def ranked(self, config: RunConfig) -> list[tuple[Numerics, float]]:
        """What `config` leaves open, with its seconds per example; the one to take comes first.

        That is the plainest that no other is faster than by more than the noise and a little.
        """
        open_to = [one for one in self.timed if is_open_to(config, one.numerics)] or self.timed
        timed = [(one.numerics, self.seconds_per_example(one)) for one in open_to]
        least = min(seconds for _, seconds in timed)
        first = next(pair for pair in timed if pair[1] <= (_INDISTINCT + self.noise) * least)
        return [first, *sorted((pair for pair in timed if pair != first), key=lambda pair: pair[1])]

    def says(self, config: RunConfig) -> str:
        """What was chosen for a run, and why; nothing while nothing was measured."""
        if self.settled:
            return (
                f"{choose(config, self, self.settled)}: "
                f"{_SETTLED[self.settled_by]}{self._of_here()}"
            )
        if not self.measured_batches:
            return ""
        (chosen, least), *others = self.ranked(config)
        compared = ", ".join(f"{numerics} {seconds / least:.2f}x" for numerics, seconds in others)
        batches = ", ".join(map(str, self.measured_batches))
        margin = f"none is faster by more than {_INDISTINCT - 1 + self.noise:.0%}"
        why = (
            "the fastest"
            if least <= min((seconds for _, seconds in others), default=least)
            else margin
        )
        times = f" (time of {compared})" if compared else ""
        return f"{chosen}: {why} at local batch {batches}{times}{self._of_here()}"

    def _of_here(self) -> str:
        return (
            f", on {self.hardware}; this study's first answer was for {self.instead_of}"
            if self.instead_of
            else ""
        )


def unmeasured(start: Mapping[str, Any], was_asked: bool = False) -> str:
    """What a run computes in where nothing was found, and why, by its `start` record."""
    why = (
        "nothing could be measured"
        if was_asked
        else f"of fewer than {LEAST_STEPS:,} steps, nothing was measured"
    )
    why = why if start["device"] == "cpu" else _BY_GPU
    return f"{Numerics(start['precision'], start['channels_last'] is True)}: {why}"


def path_of(config: RunConfig, hardware: str = "") -> Path:
    """Where the answer of a study is, or will be, for some hardware; empty: for that of the
    first.
    """
    first = config.study_dir / _FILE
    found = read_calibration(first) if hardware else None
    is_other = found and not found.is_open and found.hardware not in ("", hardware)
    return (
        first.with_stem(f"{first.stem}-{zlib.crc32(hardware.encode()):08x}") if is_other else first
    )


def path_in(folder: Path, config: RunConfig) -> Path:
    """Where the workers that have this folder find what is asked: in it, or with their study."""
    own = folder / _FILE
    return own if own.exists() else path_of(config, hardware_of(folder))


def asked(path: Path, config: RunConfig, hardware: str) -> Calibration | None:
    """What workers on some hardware, of which `path` is, are asked or told; empty where no record
    says which it is.

    Who asked may have been on a machine of another kind, so that nothing was asked of this one, nor
    its runs seen.
    """
    found = read_calibration(path)
    first = None if found else read_calibration(path_of(config))
    if first and not first.is_open and first.was_worth_it:
        found = Calibration(
            1,
            wanted_batches=first.wanted_batches,
            precision=first.precision,
            channels_last=first.channels_last,
            hardware=hardware,
            instead_of=first.hardware,
            models=first.models,
        )
    if found and found.is_open and hardware:
        found = replace(found, settled=next(_of_runs(config.study_dir, hardware), None))
    return found


_FILE = "calibration.json"


def read_calibration(path: Path) -> Calibration | None:
    """What was asked or found; None where there is nothing, or nothing that can be read."""
    try:
        found = runlog.read_json(path)
        return None if found is None else parse(found)
    except ValueError:  # it is asked for, or measured, anew
        return None


def parse(found: Mapping[str, Any]) -> Calibration:
    return _ADAPTER.validate_json(json.dumps(found))


def write_calibration(path: Path, calibration: Calibration) -> None:
    runlog.write_json(path, asdict(calibration))


_ADAPTER: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def request(
    configs: Sequence[RunConfig], num_steps: float, folder: Path | None = None, hardware: str = ""
) -> None:
    """Have the first point that runs measure for all of a study, if that is left to it and pays.

    Args:
        configs: Points of one study.
        num_steps: That all of them will take together.
        folder: Where to ask for a point by itself, unless its study has an answer; None: for the
            study.
        hardware: Of this machine, as `runlog.hardware_words`. Of a study with an answer for other,
            it is asked anew.
    """
    asking = [config for config in configs if is_asked(config)]
    if not asking:
        return
    path = path_of(configs[0], hardware)
    found, is_other = read_calibration(path), path.name != _FILE
    if found and not (folder and found.is_open):
        if folder and is_other:  # where its workers look
            write_calibration(folder / _FILE, found)
        return
    settled = next(_of_runs(configs[0].study_dir, hardware), None)
    first = read_calibration(path_of(configs[0])) if is_other else None
    if settled or (first and first.was_worth_it) or num_steps >= LEAST_STEPS:
        wanted = Calibration(
            1,
            wanted_batches=tuple(
                sorted({batch for config in asking for batch in config.local_batches})
            ),
            precision=_common([config.precision for config in asking]),
            channels_last=_common([config.channels_last for config in asking]),
            settled=settled,
            hardware=hardware,
            instead_of=first.hardware if first else "",
            models=tuple(sorted({config.model.name for config in asking})),
        )
        write_calibration(folder / _FILE if folder else path, wanted)


def hardware_of(run: Path) -> str:
    """In the words of reports; empty where the run's folder does not say."""
    with suppress(ValueError):  # a damaged run, which reports name
        return runlog.hardware_words(runlog.read_meta(runlog.RunPaths(run)))
    return ""


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
    # Of a later sweep in the same study.
    is_refused = found.precision == "fp16" and bool(config.strategy.can.why_no_fp16)
    return Numerics(
        ("fp32" if is_refused else found.precision)
        if config.precision == "auto"
        else config.precision,
        found.channels_last if config.channels_last == "auto" else config.channels_last,
    )


def is_open_to(config: RunConfig | Calibration, numerics: Numerics) -> bool:
    return config.precision in ("auto", numerics.precision) and config.channels_last in (
        "auto",
        numerics.channels_last,
    )


def begun(metrics: Path, config: RunConfig) -> Calibration | None:
    """Settles in what a run goes on that has begun, on whatever hardware that was; None for a new
    one.
    """
    start = next(iter(_starts(metrics)), None)
    if start is None:
        return None
    return Calibration(
        1, wanted_batches=config.local_batches, settled=_of_start(start), settled_by="itself"
    )


def _of_runs(study_dir: Path, hardware: str) -> Iterator[Numerics]:
    """What runs of the study on such hardware that left it open did compute in, by their
    records.
    """
    for metrics in sorted(study_dir.glob(_RUNS)):
        if not hardware or hardware_of(metrics.parent) in ("", hardware):
            starts = _starts(metrics)
            yield from (_of_start(one) for one in starts if one["config"]["precision"] == "auto")


_RUNS = "*/metrics.jsonl"


def _starts(metrics: Path) -> list[dict[str, Any]]:
    """Of the run itself, not of another that it went on from, whose records it has a copy of."""
    starts: list[dict[str, Any]] = []
    with suppress(ValueError, FileNotFoundError):  # a damaged run, which reports name
        for record in runlog.read_records(metrics, with_steps=False)[0]:
            if record["type"] == "start":
                starts.append(record)
            elif record["type"] == "event" and record["event"] == "continued":
                starts.clear()
    return starts


def _of_start(record: Mapping[str, Any]) -> Numerics:
    return Numerics(record["precision"], record["channels_last"])
