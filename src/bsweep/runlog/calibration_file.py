"""The calibration of a study, which decides the precision and memory format to use, and whether to
compile the model, where a setting is `auto`.

A sweep that is long enough requests a calibration (`request`). The workers of its first point
measure which precision and memory format are the fastest (`bsweep.train.choose_numerics`). They
write the answer to the study's `calibration.json`. Without an answer, workers on GPUs take the half
precision of their GPU, channels last.

On equal hardware, the points of a study use the same answer, even if another one is faster for some
of them. Otherwise a curve over batch sizes would also show the effect of the precision. So a study
in which runs have settled an `auto` keeps what they used.

Runs on other hardware do not compare with these runs anyway, and the answer may be slow there. So
other hardware gets its own calibration, in a second file beside the first. A sweep may be started
on one machine and run on others: the first machine that meets an unanswered request answers it.

`bsweep probe` and `profile` use a study's answer, but they have a single point and so do not answer
for the study. If the study has no answer, they calibrate in their own folder.
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

from bsweep.config.contradictions import why_not_compiled
from bsweep.config.run import RunConfig
from bsweep.config.values import Count, NonNegative, Positive
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.hardware import hardware_words
from bsweep.runlog.reading import read_json, read_meta, read_records

_T = TypeVar("_T")

LEAST_STEPS = 1000  # For a sweep of fewer steps, a calibration takes more time than it saves.
_BY_GPU = "chosen for this kind of GPU without measuring"
_SETTLED = {
    "runs": "the same as in an earlier run of this study",
    "gpu": _BY_GPU,
    "itself": "the same as at the start of this run",
}
_INDISTINCT = 1.03  # A candidate slower by up to this factor plus the noise counts as equally fast.


@dataclass(frozen=True)
class Numerics:
    """The precision in which a model computes, whether its images are stored channels last, and
    whether torch compiles it.
    """

    precision: str
    channels_last: bool
    compiled: bool = False

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{self.precision}, {layout}{', compiled' if self.compiled else ''}"


PLAIN = Numerics("fp32", channels_last=False)
"""The precision and memory format that `auto` stands for on CPUs if there is no answer of a
calibration.
"""


@dataclass(frozen=True)
class Timed:
    """The measured seconds per step in one precision and memory format, one value for each measured
    local batch.

    The seconds are without the exchange. Each value is that of the shortest of several steps, on
    the worker on which it is longest.
    """

    numerics: Numerics
    step_seconds: tuple[Positive, ...]


@dataclass(frozen=True)
class Calibration:
    """The content of a calibration file: the request to find the fastest precision and memory
    format, and later the answer.

    `timed` is empty until a worker has measured. `settled` is set if no worker has to measure: if
    another run of the study has decided already, and if the run itself resumes.
    """

    schema: int
    # The local batches of the points that request the calibration.
    wanted_batches: Annotated[tuple[Count, ...], Field(min_length=1)]
    precision: str = "auto"  # the setting of these points, "auto" if they differ
    channels_last: Literal["auto", True, False] = "auto"
    compile: Literal["auto", True, False] = False
    leaves_out_fp16: bool = False  # because one of these points refuses it
    measured_batches: tuple[Count, ...] = ()
    timed: tuple[Timed, ...] = ()
    settled: Numerics | None = None
    settled_by: Literal["runs", "gpu", "itself"] = "runs"  # "gpu" in files of earlier versions
    # The fraction by which the second shortest time of a step exceeds the shortest: the median over
    # the measurements of a worker, and the largest of all workers.
    noise: NonNegative = 0.0
    hardware: str = (
        ""  # of the run that answered, until then of the machine that asked; empty if unknown
    )
    instead_of: str = ""  # the hardware of the study's first answer, if it differs
    models: tuple[str, ...] = ()  # of the points that request the calibration
    example_shape: tuple[Count, ...] = ()  # of the point that measured
    torch: str = ""  # the version of torch
    # In which the slowest worker compiled models; None if none was compiled. No time of a step has
    # a part of it.
    compile_seconds: NonNegative | None = None

    def __post_init__(self) -> None:
        are_timed = bool(self.measured_batches) == bool(self.timed)
        if not are_timed or any(
            len(one.step_seconds) != len(self.measured_batches) for one in self.timed
        ):
            raise ValueError("each candidate needs one time of a step for each measured batch")

    @property
    def is_open(self) -> bool:
        return not self.timed and self.settled is None

    @property
    def was_worth_it(self) -> bool:
        """True if workers measured the precision and memory format, or with earlier versions took
        those that are known for their type of GPU.

        False if the request has no answer yet, or if the answer was taken over from earlier runs.
        """
        return bool(self.timed) or self.settled_by == "gpu"

    def seconds_per_example(self, candidate: Timed) -> float:
        """Return the mean seconds per example in one precision and memory format, over the
        requested local batches.

        For each requested batch, the nearest measured batch (by ratio) counts.
        """
        times = dict(zip(self.measured_batches, candidate.step_seconds, strict=True))
        nearest = (
            min(times, key=lambda one: abs(math.log(one / batch))) for batch in self.wanted_batches
        )
        return statistics.fmean(times[batch] / batch for batch in nearest)

    def is_refused(self, config: RunConfig, numerics: Numerics) -> bool:
        """Return True if the precision is fp16, which a point refuses and with which it did not
        begin.
        """
        is_its_own = self.settled_by == "itself"
        return numerics.precision == "fp16" and refuses_fp16(config) and not is_its_own

    def ranked(self, config: RunConfig) -> list[tuple[Numerics, float]]:
        """Return the measured precisions and memory formats that `config` allows (all measured ones
        if it allows none), each with its seconds per example, the best first.

        The best one is the plainest candidate that is slower than the fastest by no more than the
        noise and a small margin. The others follow by time.
        """
        open_to = [
            one
            for one in self.timed
            if is_open_to(config, one.numerics)
            and not self.is_refused(config, one.numerics)
            and not (one.numerics.compiled and why_not_compiled(config))
        ] or self.timed
        timed = [(one.numerics, self.seconds_per_example(one)) for one in open_to]
        least = min(seconds for _, seconds in timed)
        first = next(pair for pair in timed if pair[1] <= (_INDISTINCT + self.noise) * least)
        return [first, *sorted((pair for pair in timed if pair != first), key=lambda pair: pair[1])]

    def says(self, config: RunConfig) -> str:
        """Return a sentence that names a run's precision and memory format and says why they were
        chosen.

        The sentence is empty if nothing was chosen yet, or fp16 was chosen, which this run refuses.
        """
        best = self.settled or (self.ranked(config)[0][0] if self.timed else None)
        if best is None or self.is_refused(config, best):
            return ""
        if self.settled:
            return (
                f"Using {numerics_for(config, self, self.settled)}: "
                f"{_SETTLED[self.settled_by]}{self._of_here()}"
            )
        (_, least), *others = self.ranked(config)
        chosen = numerics_for(config, self, best)
        compared = ", ".join(f"{numerics} {seconds / least:.2f}x" for numerics, seconds in others)
        batches = ", ".join(map(str, self.measured_batches))
        margin = f"no other choice is faster by more than {_INDISTINCT - 1 + self.noise:.0%}"
        why = (
            "the fastest"
            if least <= min((seconds for _, seconds in others), default=least)
            else margin
        )
        times = f" (time of {compared})" if compared else ""
        compiling = f"; compiling took {self.compile_seconds:.0f} s" if self.compile_seconds else ""
        return f"Using {chosen}: {why} at local batch {batches}{times}{compiling}{self._of_here()}"

    def _of_here(self) -> str:
        return (
            f", on {self.hardware}; this study's first answer was for {self.instead_of}"
            if self.instead_of
            else ""
        )


def unmeasured(start: Mapping[str, Any], was_asked: bool = False, calibrates: bool = True) -> str:
    """Return a sentence that names the precision and memory format of a run without a calibration,
    and the reason for both.

    Args:
        start: The run's `start` record.
        was_asked: True if a calibration was requested.
        calibrates: False if the workers of the run do not measure (`Capabilities.calibrates`).
    """
    why = (
        "no worker times steps of a model that is split"
        if not calibrates
        else "the calibration has no answer for it"
        if was_asked
        else f"the sweep has fewer than {LEAST_STEPS:,} steps, too few to calibrate"
    )
    why = why if was_asked or start["device"] == "cpu" else _BY_GPU
    return f"Using {_of_start({**start, 'channels_last': start['channels_last'] is True})}: {why}"


def path_of(config: RunConfig, hardware: str = "") -> Path:
    """Return the path of a study's calibration file for the given hardware.

    The file need not exist. If `hardware` is empty, return the path of the study's first answer.
    """
    first = config.study_dir / _FILE
    found = read_calibration(first) if hardware else None
    is_other = found and not found.is_open and found.hardware not in ("", hardware)
    return (
        first.with_stem(f"{first.stem}-{zlib.crc32(hardware.encode()):08x}") if is_other else first
    )


def path_in(folder: Path, config: RunConfig) -> Path:
    """Return the path of the calibration file for a run: the file in the run's folder if there is
    one, else the file of the study.
    """
    own = folder / _FILE
    return own if own.exists() else path_of(config, hardware_of(folder))


def asked(path: Path, config: RunConfig, hardware: str) -> Calibration | None:
    """Return a study's calibration for the given hardware, which may be answered or only requested.
    Return None if there is none.

    The request may come from a machine of another kind. Then this hardware has no request of its
    own yet, and nobody has looked at the runs on it; this function does both.

    Args:
        path: The calibration file for this hardware.
        config: A point of the study.
        hardware: The workers' hardware, as `runlog.hardware_words`; empty if no record says it.
    """
    found = read_calibration(path)
    first = None if found else read_calibration(path_of(config))
    if first and not first.is_open and first.was_worth_it:
        found = Calibration(
            1,
            wanted_batches=first.wanted_batches,
            precision=first.precision,
            channels_last=first.channels_last,
            compile=first.compile,
            leaves_out_fp16=first.leaves_out_fp16,
            hardware=hardware,
            instead_of=first.hardware,
            models=first.models,
        )
    if found and found.is_open and hardware:
        found = replace(found, settled=next(_of_runs(config.study_dir, hardware), None))
    return found


def of_other_runs(config: RunConfig, hardware: str) -> Calibration | None:
    """Return a calibration that fixes what the study's runs on the given hardware use; None if it
    has no such runs.

    A point needs it if somebody deletes the calibration file after the point was started.

    Args:
        config: A point of the study.
        hardware: The workers' hardware, as `runlog.hardware_words`; empty for any.
    """
    for settled in _of_runs(config.study_dir, hardware):
        return Calibration(1, wanted_batches=config.local_batches, settled=settled)
    return None


_FILE = "calibration.json"


def read_calibration(path: Path) -> Calibration | None:
    """Return the calibration in a file; None if the file is missing or cannot be read."""
    try:
        found = read_json(path)
        return None if found is None else parse(found)
    except ValueError:  # The calibration is requested or measured again.
        return None


def parse(found: Mapping[str, Any]) -> Calibration:
    return _ADAPTER.validate_json(json.dumps(found))


def write_calibration(path: Path, calibration: Calibration) -> None:
    write_json(path, asdict(calibration))


_ADAPTER: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def request(
    configs: Sequence[RunConfig], num_steps: float, folder: Path | None = None, hardware: str = ""
) -> None:
    """Write a request for a calibration if a point's precision, memory format or compilation is
    `auto`, the study has no calibration yet, and the points take enough steps to pay for a
    measurement.

    The workers of the first point that runs then answer the request. It is also written for fewer
    than `LEAST_STEPS` steps if an earlier run decides (the request then has the answer), or if
    workers on other hardware have answered one.

    Args:
        configs: Points of one study.
        num_steps: The number of steps that all of these points will take together.
        folder: The folder in which to request it for a single point, unless its study has an
            answer; None to request it for the study.
        hardware: The hardware of this machine, as `runlog.hardware_words`. If the study's answer is
            for other hardware, request another one.
    """
    asking = [config for config in configs if may_measure(config)]
    if not asking:
        return
    path = path_of(configs[0], hardware)
    found, is_other = read_calibration(path), path.name != _FILE
    if found and not (folder and found.is_open):
        if folder and is_other:  # The workers look in this folder.
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
            compile=_compile_of(asking),
            leaves_out_fp16=any(map(refuses_fp16, asking)),
            settled=settled,
            hardware=hardware,
            instead_of=first.hardware if first else "",
            models=tuple(sorted({config.model.name for config in asking})),
        )
        write_calibration(folder / _FILE if folder else path, wanted)


def hardware_of(run: Path) -> str:
    """Return a description of a run's hardware, as reports show it; empty if it is unknown."""
    with suppress(ValueError):  # Reports name a damaged run.
        return hardware_words(read_meta(RunPaths(run)))
    return ""


def _common(values: Sequence[_T]) -> _T | Literal["auto"]:
    return values[0] if len(set(values)) == 1 else "auto"


def _compile_of(asking: Sequence[RunConfig]) -> Literal["auto", True, False]:
    """Return "auto" only if a point leaves it open to compile its model, because to compare with
    the compiled model takes minutes. Points that say it themselves, differently, are timed without.
    """
    each = {config.compile for config in asking}
    return "auto" if "auto" in each else each == {True}


def is_asked(config: RunConfig) -> bool:
    return "auto" in (config.precision, config.channels_last, config.compile)


def may_measure(config: RunConfig) -> bool:
    """Return True if a point leaves something to a calibration, and its workers may measure."""
    return is_asked(config) and config.strategy.can.calibrates


def numerics_for(config: RunConfig, calibration: Calibration | None, default: Numerics) -> Numerics:
    """Return a run's precision, memory format and compilation: each as configured or, where it is
    `auto`, from the calibration or else from `default`.

    In place of fp16 that the run refuses, `auto` stands for the precision of `default`. Where torch
    cannot compile the run's steps, `auto` does not compile them.
    """
    found = default
    if calibration and calibration.settled:
        found = calibration.settled
    elif calibration and calibration.timed:
        found = calibration.ranked(config)[0][0]
    # A later sweep in the same study may use a strategy that cannot train in fp16.
    is_refused = calibration is not None and calibration.is_refused(config, found)
    return Numerics(
        (default if is_refused else found).precision
        if config.precision == "auto"
        else config.precision,
        (found.channels_last and config.strategy.can.stores_channels_last)
        if config.channels_last == "auto"
        else config.channels_last,
        (found.compiled and not why_not_compiled(config))
        if config.compile == "auto"
        else config.compile,
    )


def is_open_to(config: RunConfig | Calibration, numerics: Numerics) -> bool:
    return (
        config.precision in ("auto", numerics.precision)
        and config.channels_last in ("auto", numerics.channels_last)
        and config.compile in ("auto", numerics.compiled)
    )


def refuses_fp16(config: RunConfig) -> bool:
    """Return True if `auto` should not become fp16: the strategy cannot train in it, or the graphs
    of `graph=step` cannot contain its steps.
    """
    return bool(config.strategy.can.why_no_fp16) or config.graph == "step"


def begun(metrics: Path, config: RunConfig) -> Calibration | None:
    """Return a calibration that fixes the precision and memory format with which a run began;
    return None if the run has written no `start` record of its own.

    So the run resumes with them. The hardware on which the run began does not matter.
    """
    start = next(iter(starts(metrics)), None)
    if start is None:
        return None
    return Calibration(
        1, wanted_batches=config.local_batches, settled=_of_start(start), settled_by="itself"
    )


def _of_runs(study_dir: Path, hardware: str) -> Iterator[Numerics]:
    """Yield the precision and memory format of each start of a run whose configured precision was
    `auto`, on the given hardware or on hardware that is not known.

    If `hardware` is empty, all runs of the study count. Their `start` records say what `auto` stood
    for.
    """
    for metrics in sorted(study_dir.glob(_RUNS)):
        if not hardware or hardware_of(metrics.parent) in ("", hardware):
            own = starts(metrics)
            yield from (_of_start(one) for one in own if one["config"]["precision"] == "auto")


_RUNS = "*/metrics.jsonl"


def starts(metrics: Path) -> list[dict[str, Any]]:
    """Return the `start` records that a run wrote itself. Records that a run copied from the run
    that it continues do not count.

    If the run began at a checkpoint of another run, its file begins with a copy of that run's
    records.
    """
    starts: list[dict[str, Any]] = []
    with suppress(ValueError, FileNotFoundError):  # Reports name a damaged run.
        for record in read_records(metrics, with_steps=False)[0]:
            if record["type"] == "start":
                starts.append(record)
            elif record["type"] == "event" and record["event"] == "continued":
                starts.clear()
    return starts


def _of_start(record: Mapping[str, Any]) -> Numerics:
    return Numerics(record["precision"], record["channels_last"], record.get("compile", False))
