"""Measures, before a study's first point is trained, in which precision and memory format its model is fastest.

All workers of the point measure at once, as they will train at once; the slowest of them counts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

import torch

from bsweep import calibration, models, objective, precision
from bsweep.calibration import Calibration, Numerics, Timed
from bsweep.clock import StepClock
from bsweep.config import RunConfig
from bsweep.data.dataset import Dataset
from bsweep.errors import is_out_of_memory
from bsweep.job import autocast, memory_format, model_inputs, model_targets
from bsweep.strategies import Strategy

_MOST_SECONDS = 15.0  # for all batches: one that would take longer is left out
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 5
_HOPELESS = 1.5  # times as slow as the fastest in the first rounds: not measured again at this batch

Program = Callable[[int], None]  # forward and backward passes at a local batch


def agree(config: RunConfig, dataset: Dataset, strategy: Strategy, device: torch.device) -> Numerics:
    """What the run computes in, the same on all workers, which call it together; measured, if nobody did it before.

    Raises:
        ValueError: the device has no such precision.
    """
    default = Numerics(precision.choose(config, device), channels_last=True)
    if not calibration.is_asked(config):
        return calibration.choose(config, None, default)
    path = calibration.path_of(config)
    found = _of_first(strategy, calibration.read(path))
    if found and found.is_open:
        if device.type == "cuda":
            # Passes that are launched kernel by kernel say how fast Python is, where the run replays a graph.
            native = precision.choose(replace(config, precision="auto"), device)
            answer = replace(found, settled=Numerics(native, channels_last=True))
        else:
            own = _measure(config, found, dataset, device)
            answer = _of_slowest([calibration.parse(each) for each in strategy.gather_json(asdict(own))])
        earlier = _of_first(strategy, calibration.read(path))  # another point of the study may have been first
        found = earlier if earlier and not earlier.is_open else answer
        if strategy.rank == strategy.members[0]:
            calibration.write(path, found)
    return calibration.choose(config, found, default)


def _of_first(strategy: Strategy, found: Calibration | None) -> Calibration | None:
    """What the first worker read: not all may see its file, or see it at once."""
    first = strategy.gather_json({"found": found and asdict(found)})[0]["found"]
    return first and calibration.parse(first)


def _of_slowest(found: Sequence[Calibration]) -> Calibration:
    """The longest of the workers' times, at the batches that all of them measured."""
    batches = min((one.measured_batches for one in found), key=len)
    each = [
        Timed(same[0].numerics, tuple(map(max, zip(*(one.step_seconds[: len(batches)] for one in same), strict=True))))
        for same in zip(*(one.timed for one in found), strict=True)
    ]
    return replace(found[0], measured_batches=batches, timed=tuple(each) if batches else ())


def _measure(config: RunConfig, wanted: Calibration, dataset: Dataset, device: torch.device) -> Calibration:
    """Seconds of this worker alone, for each candidate, at each batch that there is time and memory for."""
    formats = (False, True) if dataset.train_inputs.dim() == 4 else (True,)
    native = precision.choose(replace(config, precision="auto"), device)
    precisions = ("fp32", native) if wanted.precision == "auto" else (wanted.precision,)
    every = [Numerics(one, last) for one in dict.fromkeys(precisions) for last in formats]
    candidates = [numerics for numerics in every if calibration.is_open_to(wanted, numerics)]
    found: dict[int, list[float]] = {}
    try:
        found.update(_times(config, candidates, wanted, dataset, device))  # what came before a failure stays
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    gc.collect()  # the candidates' models
    by_candidate = zip(*found.values(), strict=True) if found else ()
    timed = [Timed(numerics, seconds) for numerics, seconds in zip(candidates, by_candidate, strict=bool(found))]
    return replace(wanted, measured_batches=tuple(found), timed=tuple(timed))


def _times(
    config: RunConfig, candidates: Sequence[Numerics], wanted: Calibration, dataset: Dataset, device: torch.device
) -> Iterator[tuple[int, list[float]]]:
    """Batches from the smallest on, with the seconds of each candidate."""
    programs = [_passes(config, numerics, dataset, device) for numerics in candidates]
    batches = _spread(sorted({min(batch, len(dataset.train_labels)) for batch in wanted.wanted_batches}))
    ends = time.monotonic() + _MOST_SECONDS
    for number, batch in enumerate(batches):
        started = time.monotonic()
        programs[0](batch)
        left = ends - time.monotonic()
        if number and (time.monotonic() - started) * len(programs) * (1 + _LEAST_ROUNDS) > left:
            break
        until = time.monotonic() + left / (len(batches) - number)
        yield batch, _least_seconds(programs, batch, device, until)


def _spread(batches: Sequence[int]) -> list[int]:
    """Four of them at most, from the smallest to the largest."""
    return sorted({batches[(len(batches) - 1) * third // 3] for third in range(4)})


def _least_seconds(programs: Sequence[Program], batch: int, device: torch.device, until: float) -> list[float]:
    """Of each program, in turns: the least, for on a machine that others use too it is what a program itself takes."""
    clocks = [StepClock(device, []) for _ in programs]
    for program in programs:
        program(batch)  # chooses and compiles kernels
    for round_number in range(_MOST_ROUNDS):
        if round_number >= _LEAST_ROUNDS and time.monotonic() > until:
            break
        fastest = min((min(clock.seconds()) for clock in clocks if len(clock)), default=0.0)
        for program, clock in zip(programs, clocks, strict=True):
            if round_number < _LEAST_ROUNDS or min(clock.seconds()) < _HOPELESS * fastest:
                with clock.step():
                    program(batch)
    return [min(clock.seconds()) for clock in clocks]


def _passes(config: RunConfig, numerics: Numerics, dataset: Dataset, device: torch.device) -> Program:
    """What differs between candidates of a step: the inputs' layout, forward and backward passes."""
    layout, dtype = memory_format(numerics.channels_last), precision.stored(numerics.precision)
    model = models.initial(config, dataset, device, dtype, layout).train()
    loss_of = objective.of(model, dataset.train_labels).loss

    def passes(batch: int) -> None:
        precision.round_products(numerics.precision)
        model.zero_grad(set_to_none=True)
        examples, labels, _ = dataset.train.take(torch.arange(batch, device=dataset.train_labels.device))
        with autocast(numerics.precision, device):
            outputs = model(model_inputs(dataset, examples, dtype, layout))
        loss_of(outputs, model_targets(labels, dtype)).backward()

    return passes
