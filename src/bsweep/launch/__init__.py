"""From one point to running workers: one file and one line here for each launcher."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from bsweep import memory
from bsweep.config import (
    DDPConfig,
    DGCConfig,
    DiLoCoConfig,
    HorovodConfig,
    HorovodrunConfig,
    InlineConfig,
    RunConfig,
    TopKConfig,
    TorchrunConfig,
)
from bsweep.launch import horovodrun, inline, processes, torchrun
from bsweep.launch.outcome import Outcome
from bsweep.launch.processes import Entry
from bsweep.place import Place, inside_horovodrun, num_gpus
from bsweep.runlog import RunPaths

__all__ = ["Outcome", "check", "launch"]


def check(config: RunConfig) -> list[str]:
    """What is doubtful about a point on this machine; the run's record will carry it.

    Raises:
        ValueError: the point cannot run here.
    """
    started = Place.from_environment().num_workers
    over_horovod = getattr(config.strategy, "algorithm", None) == "horovod"
    if inside_horovodrun() and config.strategy.name not in ("horovod", "single") and not over_horovod:
        what = " with another strategy.algorithm than horovod" if config.strategy.name == "diloco" else ""
        raise ValueError(
            f"strategy={config.strategy.name}{what} inside horovodrun: torchrun starts its processes. Leave horovodrun "
            "out, or use strategy=horovod."
        )
    if inside_horovodrun() and config.num_workers != started:
        raise ValueError(
            f"num_workers={config.num_workers}, but horovodrun started {started} processes: leave num_workers out, "
            f"or start horovodrun -np {config.num_workers}."
        )
    if config.launch.name == "horovodrun" or config.strategy.name == "horovod":
        _check_horovod(config)
    if config.device == "cuda" and not num_gpus() and not getattr(config.launch, "hosts", None):
        raise ValueError("device=cuda, but this machine shows no GPU: use device=auto or device=cpu.")
    if isinstance(config.strategy, DDPConfig) and config.strategy.hook == "bf16" and not _on_gpus(config):
        raise ValueError("strategy.hook=bf16 needs GPUs, with NCCL: use strategy.hook=fp16 or none on CPUs.")
    if config.launch.memory_limit_mb and (_on_gpus(config) or not memory.can_limit()):
        raise ValueError(
            "launch.memory_limit_mb limits what Linux gives to a process, which does not count a GPU's memory: set "
            "device=cpu, or leave it out."
        )
    if config.launch.memory_limit_mb and inside_horovodrun():
        raise ValueError(
            "launch.memory_limit_mb inside horovodrun, whose processes go on after a point: one that is out of memory "
            "would spoil the next. Leave horovodrun out, so that each point has processes of its own."
        )
    match config.launch:
        case InlineConfig():
            return processes.too_many_threads(config)
        case HorovodrunConfig() | TorchrunConfig():
            return [*processes.check(config, config.launch), *_theory(config), *_normalized(config)]


def launch(config: RunConfig, paths: RunPaths, on_poll: Callable[[], None], entry: Entry = "bsweep.worker") -> Outcome:
    """Run a point whose folder is prepared, to its end; `on_poll` is called a few times a second."""
    match config.launch:
        case InlineConfig():
            return inline.launch(config, paths, on_poll, entry)
        case HorovodrunConfig():
            return horovodrun.launch(config, config.launch, paths, on_poll, entry)
        case TorchrunConfig():
            return torchrun.launch(config, config.launch, paths, on_poll, entry)


def _on_gpus(config: RunConfig) -> bool:
    """Whether workers train on GPUs, as far as can be seen from here: other hosts' are not."""
    return config.device != "cpu" and bool(num_gpus() or getattr(config.launch, "hosts", None))


def _theory(config: RunConfig) -> list[str]:
    """Whether a codec can win at all: every worker gets every payload, while a ring sends twice the vector."""
    codec, share, workers = config.compression, config.payload_share, config.num_workers
    if isinstance(codec, TopKConfig | DGCConfig) and len(codec.warmup_densities) >= config.epochs:
        unreached = (
            f"compression.density={codec.density:g} is never reached: the warm-up has {len(codec.warmup_densities)} "
            f"densities, and epochs={config.epochs}"
        )
        return [unreached]
    if share is None or workers == 1 or share < 2 / workers:
        return []
    sent = (
        f"compression={config.compression.name} cannot win on {workers} workers: each sends {workers - 1} payloads of "
        f"{share:.3g} of the gradient, a ring {2 * (workers - 1) / workers:.3g} of it"
    )
    return [sent]


def _normalized(config: RunConfig) -> list[str]:
    """Whether FedNova's weights are those of its paper, which has none for optimizers that adapt their steps."""
    s, name = config.strategy, config.optimizer.name
    if not isinstance(s, DiLoCoConfig) or s.weighting != "fednova" or s.weights or name == "sgd":
        return []
    return [f"strategy.weighting=fednova counts steps of optimizer={name} as plain ones: it is known for sgd alone"]


def _check_horovod(config: RunConfig) -> None:
    if importlib.util.find_spec("horovod") is None:
        raise ValueError(
            "Horovod is not installed: `bsweep setup-horovod` compiles it, as scripts/setup.sh does in a checkout. "
            "Without it there are strategy=ddp, allreduce, local_sgd, parameter_server and diloco, which torchrun "
            "starts, and one worker with launch=inline strategy=single."
        )
    if not isinstance(config.strategy, HorovodConfig):
        return
    if config.strategy.op == "adasum" and not _has_mpi():
        raise ValueError(
            "strategy.op=adasum needs a Horovod built with MPI, and this one is built with Gloo: use "
            "strategy.op=average, or install MPI and rebuild Horovod with HOROVOD_WITH_MPI=1."
        )
    if not inside_horovodrun():
        return
    from bsweep.strategies.horovod import KNOBS, PLAIN

    for key, (variable, unit) in KNOBS.items():
        wanted, default = getattr(config.strategy, key), getattr(PLAIN, key)
        started_with = float(os.environ.get(variable, default * unit)) / unit
        if wanted != started_with:
            raise ValueError(
                f"strategy.{key}={wanted:g}, but horovodrun started its processes with {started_with:g}, and Horovod "
                f"reads it only then: start {variable}={wanted * unit:g} horovodrun ..., or leave strategy.{key} out."
            )


def _has_mpi() -> bool:
    import horovod.torch as hvd

    return bool(hvd.mpi_built())
