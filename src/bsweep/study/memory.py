"""Estimates of the memory that the workers of points will take, and warnings of points that cannot
fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bsweep import data, models
from bsweep.config.groups import ModelConfig
from bsweep.config.run import RunConfig
from bsweep.core import gpus
from bsweep.core.memory import available_bytes
from bsweep.data import DataInfo
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Calibration, Numerics


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
    if not config.strategy.can.knows_memory:
        return f"only the library of strategy={config.strategy.name} knows what it keeps"
    if config.strategy.can.splits_layers or config.strategy.can.cuts_model:
        return f"the parts of strategy={config.strategy.name} are known only when it starts"
    return ""


def _key(config: RunConfig) -> tuple[object, ...]:
    return config.model, _passes(config)


def _passes(config: RunConfig) -> _Passes:
    return _Passes(
        data.prepare(config.data),
        _numerics(config),
        min(2, config.accumulation_steps),
        config.strategy.new_gradient_share(config.num_workers),
    )


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
    passes, strategy, workers = _passes(config), config.strategy, config.num_workers
    precision = passes.numerics.precision
    element_bytes = 8 if precision == "fp64" else 4
    num_parts = strategy.num_parts(workers)
    held = element_bytes * _num_elements(config.model, passes.info, num_parts)
    blocks = [element_bytes * size for size in _sizes_of_blocks(config.model, passes.info)]
    in_passes = strategy.bytes_in_passes(blocks)
    early = (strategy.vectors_held - strategy.vectors_of_first_step) * held
    early += config.compression.vectors_held * held
    optimizer = (config.optimizer.vectors_of_state or 0) * held
    # This comes before passes are counted, for which torch imports what no worker needs.
    process = 0 if gpus.num_gpus(config.device) else _process_bytes()
    activations = _activation_bytes(config, passes, local_batch, batches)
    later = strategy.vectors_of_first_step * held + in_passes
    return Memory(
        parameter_bytes=held,
        gradient_bytes=held,
        optimizer_bytes=optimizer,
        strategy_bytes=early + later,
        activation_bytes=activations,
        process_bytes=process,
        bytes_after_start=optimizer + later + activations,
    )


def _activation_bytes(
    config: RunConfig, passes: _Passes, local_batch: int, batches: set[int]
) -> int:
    from bsweep.models.activations import bytes_of_passes  # imports torch

    least, most = min(batches), max(batches)
    low, high = (
        bytes_of_passes(
            config.model,
            passes.info,
            batch,
            precision=passes.numerics.precision,
            channels_last=passes.numerics.channels_last,
            num_passes=passes.num_passes,
            gradient_share=passes.gradient_share,
        )
        for batch in (least, most)
    )
    return low + (high - low) * (local_batch - least) // max(1, most - least)


@functools.cache
def _process_bytes() -> int:
    """Return the memory of this process, which has imported torch and built a model by now, as each
    worker does.
    """
    resident: int = psutil.Process().memory_info().rss
    return resident


@functools.cache  # a sweep asks for every point
def _num_elements(card: ModelConfig, info: DataInfo, num_parts: int) -> int:
    """Return the number of elements of trained parameters that a worker holds, if the first
    dimension of each parameter is divided into `num_parts` parts.
    """
    model = models.outlined(card, info.num_classes, info.shape)
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
