"""Estimates of the memory that the workers of points will take, and warnings of points that cannot
fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from bsweep import data, models
from bsweep.config.groups import ModelConfig, StrategyConfig
from bsweep.config.run import RunConfig
from bsweep.config.splitting import StagedConfig
from bsweep.core import gpus
from bsweep.core.memory import available_bytes
from bsweep.data import DataInfo
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Calibration, Numerics

if TYPE_CHECKING:  # it imports torch
    from bsweep.models.activations import StageKept


@dataclass(frozen=True)
class Memory:
    """The estimated memory of one worker, in bytes.

    `strategy_bytes` is what the strategy and the codec hold beside the model. `activation_bytes` is
    the most that a step's passes hold at one time. `process_bytes` is that of Python and torch on a
    CPU; 0 on a GPU, whose memory they do not take.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    strategy_bytes: int
    activation_bytes: int
    process_bytes: int
    bytes_after_start: int  # the part that counts against `launch.memory_limit_mb`

    @property
    def total_bytes(self) -> int:
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.strategy_bytes
            + self.activation_bytes
            + self.process_bytes
        )


@dataclass(frozen=True)
class Estimated:
    """The estimated memory of a point's fullest worker, or the reason why there is none. `warning`
    says that the point cannot fit; empty if it can, as far as is known.
    """

    fullest: Memory | None
    why_not: str = ""
    warning: str = ""

    @property
    def says(self) -> str:
        return mebibytes(self.fullest.total_bytes) if self.fullest else "not estimated"

    def as_json(self) -> dict[str, int | str | None]:
        """Return the parts, their sum, the warning and the reason for none, in plain values."""
        parts = asdict(self.fullest) if self.fullest else {}
        total = self.fullest.total_bytes if self.fullest else None
        return {
            **parts,
            "total_bytes": total,
            "warning": self.warning or None,
            "not_estimated": self.why_not or None,
        }


@dataclass(frozen=True)
class _Passes:
    """All on which the memory of passes depends, without the batch."""

    info: DataInfo
    numerics: Numerics
    num_passes: int
    gradient_share: float
    num_parts: int  # workers that share layers
    num_microbatches: int


def estimates(configs: Sequence[RunConfig]) -> list[Estimated]:
    """Return the estimated memory of each of the given points, at its configured batch.

    The passes of a model are counted at the smallest and the largest of its local batches. Between
    these, a line gives the bytes.

    Args:
        configs: The points, which were checked.

    Returns:
        One estimate for each point.
    """
    batches: dict[tuple[object, ...], set[int]] = {}
    for config in configs:
        if not _why_not(config):
            batches.setdefault(_key(config), set()).update(config.local_batches)
    found = []
    for config in configs:
        why_not = _why_not(config)
        try:
            found.append(
                Estimated(None, why_not) if why_not else _estimated(config, batches[_key(config)])
            )
        except Exception as error:  # the code of a model may raise anything
            told = " ".join(str(error).split())
            found.append(
                Estimated(None, f"the model does not run without values: {told[:_MOST_TOLD]}")
            )
    return found


_MOST_TOLD = 200  # characters of an error message


def _why_not(config: RunConfig) -> str:
    if config.program.is_own:
        return "only the program knows its model"
    if config.optimizer.vectors_of_state is None:
        return "only your own optimizer knows its state"
    return ""


def _key(config: RunConfig) -> tuple[object, ...]:
    if config.strategy.can.cuts_model:
        return config.model, _passes(config), config.strategy, config.num_workers
    return config.model, _passes(config)


def _passes(config: RunConfig) -> _Passes:
    strategy, workers = config.strategy, config.num_workers
    return _Passes(
        data.prepare(config.data),
        _numerics(config),
        min(2, config.accumulation_steps),
        strategy.new_gradient_share(workers),
        strategy.num_parts(workers) if strategy.can.splits_layers else 1,
        strategy.num_microbatches,
    )


@functools.cache  # a sweep asks for every point
def _stages(
    card: ModelConfig,
    info: DataInfo,
    strategy: StrategyConfig,
    num_workers: int,
    num_passes: int,
) -> tuple[tuple[StageKept, ...], ...]:
    """Return the stages of each worker of a replica. Without configured cuts, the stages have
    nearly equal numbers of operations.
    """
    from bsweep.models.activations import StageKept, flops_of_pieces  # imports torch
    from bsweep.strategies.stages import balanced

    staged = cast("StagedConfig", strategy)
    flops = flops_of_pieces(card, info, _COUNTED_EXAMPLES)
    num_stages = staged.num_stages(num_workers)
    borders = [0, *(staged.cuts or balanced(flops, num_stages)), len(flops)]
    every: list[tuple[StageKept, ...]] = []
    for part in range(staged.num_parts(num_workers)):
        own = [one for one in range(num_stages) if staged.part_of(one, num_workers) == part]
        kept = staged.in_flight(part, num_workers, num_passes)
        every.append(
            tuple(
                StageKept(borders[one], borders[one + 1], number)
                for one, number in zip(own, kept, strict=True)
            )
        )
    return tuple(every)


_COUNTED_EXAMPLES = 2  # whose operations are counted: BatchNorm refuses one alone


def _numerics(config: RunConfig) -> Numerics:
    """Return the precision and memory format of a point, as far as they are known before it runs.

    A calibration that the study does not have yet may choose others.
    """
    default = calibration_file.PLAIN
    if gpus.num_gpus(config.device):
        import torch

        from bsweep.numerics import precision

        default = Numerics(precision.choose(config, torch.device("cuda")), channels_last=True)
    return calibration_file.numerics_for(
        config, _calibration(calibration_file.path_of(config)), default
    )


@functools.cache  # a sweep asks for every point
def _calibration(path: Path) -> Calibration | None:
    return calibration_file.read_calibration(path)


def _estimated(config: RunConfig, batches: set[int]) -> Estimated:
    every = [_memory(config, batch, batches) for batch in dict.fromkeys(config.local_batches)]
    fullest = max(every, key=lambda one: one.total_bytes)
    by_batch = dict(zip(dict.fromkeys(config.local_batches), every, strict=True))
    return Estimated(
        fullest, warning=_warning(config, fullest, [by_batch[b] for b in config.local_batches])
    )


def _memory(config: RunConfig, local_batch: int, batches: set[int]) -> Memory:
    """Return the estimated memory of the fullest worker of those with this local batch."""
    passes, strategy = _passes(config), config.strategy
    element_bytes = 8 if passes.numerics.precision == "fp64" else 4
    model, info, workers = config.model, passes.info, config.num_workers
    blocks = [element_bytes * size for size in _sizes_of_blocks(model, info)]
    # This comes before passes are counted, for which torch imports what no worker needs.
    process = 0 if gpus.num_gpus(config.device) else _process_bytes()
    of_workers: tuple[tuple[StageKept, ...], ...] = ((),)
    if strategy.can.cuts_model:
        of_workers = _stages(model, info, strategy, workers, config.accumulation_steps)
    found = []
    for part, stages in enumerate(of_workers):
        parameters, gradients, held = (
            element_bytes * _num_elements(model, info, num_parts, passes.num_parts, stages)
            for num_parts in strategy.parts_held(workers)
        )
        early = (strategy.vectors_held - strategy.vectors_of_first_step) * held
        early += config.compression.vectors_held * held
        later = strategy.vectors_of_first_step * held + strategy.bytes_in_passes(blocks)
        later += strategy.weight_copies(part, workers) * parameters
        optimizer = (config.optimizer.vectors_of_state or 0) * held
        activations = _activation_bytes(config, passes, stages, local_batch, batches)
        found.append(
            Memory(
                parameter_bytes=parameters,
                gradient_bytes=gradients,
                optimizer_bytes=optimizer,
                strategy_bytes=early + later,
                activation_bytes=activations,
                process_bytes=process,
                bytes_after_start=optimizer + later + activations,
            )
        )
    return max(found, key=lambda one: one.total_bytes)


def _activation_bytes(
    config: RunConfig,
    passes: _Passes,
    stages: tuple[StageKept, ...],
    local_batch: int,
    batches: set[int],
) -> int:
    from bsweep.models import activations  # imports torch

    card, info, numerics = config.model, passes.info, passes.numerics
    parts = number = passes.num_microbatches
    if stages and not config.strategy.can.in_step:  # batches follow one another without a pause
        number = stages[0].in_flight + config.accumulation_steps
    how: Any = {"precision": numerics.precision, "channels_last": numerics.channels_last}

    def count(batch: int) -> int:
        if stages:
            return activations.bytes_of_stages(card, info, stages, batch // parts, number, **how)
        return activations.bytes_of_passes(
            card,
            info,
            batch,
            **how,
            num_passes=passes.num_passes,
            gradient_share=passes.gradient_share,
            num_parts=passes.num_parts,
        )

    least, most = min(batches), max(batches)
    low, high = count(least), count(most)
    return low + (high - low) * (local_batch - least) // max(1, most - least)


@functools.cache
def _process_bytes() -> int:
    """Return the memory of this process, which has imported torch and built a model by now, as each
    worker does.
    """
    resident: int = psutil.Process().memory_info().rss
    return resident


@functools.cache  # a sweep asks for every point
def _num_elements(
    card: ModelConfig,
    info: DataInfo,
    num_parts: int,
    parts_of_layers: int,
    stages: tuple[StageKept, ...],
) -> int:
    """Return the number of elements of trained parameters that a worker holds: those of its stages,
    or its part of the layers in the model's plan and all other parameters, or else of each
    parameter one of `num_parts` parts by the first dimension.
    """
    model = models.outlined(card, info.num_classes, info.shape)
    if stages:
        pieces = models.pieces(card, model)
        kept = [piece for one in stages for _, piece in pieces[one.start : one.stop]]
        every = [tensor for piece in kept for tensor in piece.parameters()]
        return sum(tensor.numel() for tensor in every if tensor.requires_grad)
    if parts_of_layers > 1:
        from bsweep.models import plans  # imports torch

        shapes = plans.shapes(plans.of(card, model), model, parts_of_layers)
        return sum(
            math.prod(shapes.get(name, tensor.shape))
            for name, tensor in model.named_parameters()
            if tensor.requires_grad
        )
    trained = [one.shape for one in model.parameters() if one.requires_grad]
    return sum(
        math.ceil(shape[0] / num_parts) * math.prod(shape[1:]) if shape else 1 for shape in trained
    )


@functools.cache  # the same
def _sizes_of_blocks(card: ModelConfig, info: DataInfo) -> tuple[int, ...]:
    """Return the number of elements of each block of the model, and last that of parameters outside
    of all blocks. Only trained parameters count.
    """
    model = models.outlined(card, info.num_classes, info.shape)
    sizes: list[int] = []
    known: set[int] = set()
    for block in (*reversed(models.blocks(card, model)), model):  # inner blocks before outer ones
        own = [p for p in block.parameters() if p.requires_grad and id(p) not in known]
        known.update(map(id, own))
        sizes.append(sum(p.numel() for p in own))
    return tuple(sizes)


@functools.cache  # at the time of the first point
def _available_bytes() -> int:
    return available_bytes()


def _warning(config: RunConfig, fullest: Memory, of_ranks: Sequence[Memory]) -> str:
    is_split = config.strategy.num_parts(config.num_workers) > 1
    other = "fewer strategy.replicas" if is_split else "strategy=sharded"
    remedy = f"use a smaller local_batch with more accumulation_steps, or {other}"
    limits = config.launch.memory_limit_mb or ()
    for rank, limit in enumerate(limits):
        one = of_ranks[min(rank, len(of_ranks) - 1)]
        if one.bytes_after_start > limit * 2**20:
            return (
                f"worker {rank} would take about {mebibytes(one.bytes_after_start)} in its steps, "
                f"more than launch.memory_limit_mb={limit:g}: {remedy}."
            )
    if limits or config.launch.named_hosts:
        return ""  # named hosts have memory of their own
    on_gpu = gpus.num_gpus(config.device) > 0
    here = gpus.memory_bytes() if on_gpu else _available_bytes() // config.num_workers
    if here is None or fullest.total_bytes <= here:
        return ""
    of = "the GPU has" if on_gpu else "this machine has free for each worker"
    return (
        f"a worker would take about {mebibytes(fullest.total_bytes)}, more than the "
        f"{mebibytes(here)} that {of}: {remedy}."
    )


def mebibytes(number: float) -> str:
    """Return a number of bytes as a text such as `1,234 MiB`."""
    return f"{number / 2**20:,.0f} MiB"
