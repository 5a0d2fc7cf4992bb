"""From one point to running workers: one file for each launcher."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable

import psutil

from bsweep.config import ProcessesConfig, RunConfig, resolve, show
from bsweep.config.launch import most_at_once, slots_of
from bsweep.core import memory
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import Place, inside_horovodrun
from bsweep.launch import environment, preflight, processes
from bsweep.launch.outcome import Outcome
from bsweep.launch.team import Entry
from bsweep.runlog import RunPaths

__all__ = ["Outcome", "check", "check_hosts", "launch"]


def check(config: RunConfig) -> list[str]:
    """What is doubtful about a point on this machine; the run's record will carry it.

    Raises:
        ValueError: the point cannot run here.
    """
    check_hosts(config)
    strategy, can = config.strategy, config.strategy.can
    if inside_horovodrun() and can.launchers and not can.uses_horovod:
        what = (
            " with another strategy.algorithm than horovod" if "horovodrun" in can.launchers else ""
        )
        raise ValueError(
            f"strategy={strategy.name}{what} inside horovodrun: torchrun starts its processes. "
            f"Leave horovodrun "
            "out, or use strategy=horovod."
        )
    if inside_horovodrun() and most_at_once(config.launch) > 1:
        raise ValueError(
            "launch.parallel inside horovodrun, whose processes train one point after another: "
            "leave one of them out."
        )
    if inside_horovodrun() and config.num_workers != (
        started := Place.from_environment().num_workers
    ):
        raise ValueError(
            f"num_workers={config.num_workers}, but horovodrun started {started} processes: leave "
            f"num_workers out, "
            f"or start horovodrun -np {config.num_workers}."
        )
    if config.launch.uses_horovod or can.uses_horovod:
        _check_horovod(config)
    on_gpus = _on_gpus(config)
    if config.device == "cuda" and not on_gpus:
        raise ValueError(
            "device=cuda, but this machine shows no GPU: use device=auto or device=cpu."
        )
    if config.graph is True and not on_gpus:
        raise ValueError(
            "graph=true, but this machine shows no GPU: leave graph out, or use graph=false."
        )
    if can.why_no_cpu and not on_gpus:
        raise ValueError(can.why_no_cpu)
    if config.launch.memory_limit_mb and (on_gpus or not memory.can_limit()):
        raise ValueError(
            "launch.memory_limit_mb limits what Linux gives to a process, which does not count a "
            "GPU's memory: set "
            "device=cpu, or leave it out."
        )
    if config.launch.memory_limit_mb and inside_horovodrun():
        raise ValueError(
            "launch.memory_limit_mb inside horovodrun, whose processes go on after a point: one "
            "that is out of memory "
            "would spoil the next. Leave horovodrun out, so that each point has processes of its "
            "own."
        )
    if isinstance(config.launch, ProcessesConfig):
        _check_variables(config.launch)
    if not config.launch.starts_processes:
        return processes.too_many_threads(config)
    return [
        *processes.check(config),
        *config.compression.warnings(config),
        *strategy.warnings(config),
    ]


def check_hosts(config: RunConfig) -> None:
    """ValueError if a point is to have the hosts of an allocation, and there is none, or it is too
    small.
    """
    launch = config.launch
    if not isinstance(launch, ProcessesConfig) or not launch.uses_allocation:
        return
    if launch.named_hosts is None:
        raise ValueError(
            f"launch={launch.name} on the hosts of an allocation, but this is none (there is no "
            f"SLURM_JOB_NODELIST): "
            "start it by sbatch or within salloc, or use launch=torchrun or horovodrun and name "
            "launch.hosts."
        )
    if (slots := len(slots_of(launch.named_hosts))) < config.num_workers:
        raise ValueError(
            f"num_workers={config.num_workers}, but the allocation offers {slots} slots "
            f"({launch.named_hosts}): ask "
            "SLURM for more nodes, tasks or GPUs, or use fewer workers."
        )


def _check_variables(launch: ProcessesConfig) -> None:
    missing = environment.missing(launch)
    if missing:
        raise ValueError(
            f"launch.environment={show(launch.environment)}: {', '.join(missing)} not set here. "
            f"Export "
            f"{'them' if len(missing) > 1 else 'it'}, or leave "
            f"{'them' if len(missing) > 1 else 'it'} out."
        )
    interface = launch.network_interface
    if interface and not launch.named_hosts and interface not in (there := psutil.net_if_addrs()):
        raise ValueError(
            f"launch.network_interface={interface}: this machine has no such interface. It has "
            f"{', '.join(there)}."
        )


def launch(
    config: RunConfig,
    paths: RunPaths,
    on_poll: Callable[[], None],
    entry: Entry = "bsweep.train.worker",
) -> Outcome:
    """Run a point whose folder is prepared, to its end; `on_poll` is called a few times a
    second.
    """
    unready = preflight.problems([config]) if config.launch.named_hosts else []
    if unready:  # since an earlier try failed on them
        return Outcome("failed", "; ".join(unready), may_pass=True)
    outcome: Outcome = resolve(config.launch.builds).launch(
        config, config.launch, paths, on_poll, entry
    )
    if config.launch.named_hosts and outcome.status in ("failed", "timeout"):
        preflight.forget(config)
    return outcome


def _on_gpus(config: RunConfig) -> bool:
    """Whether workers train on GPUs, as far as can be seen from here: other hosts' are not.

    Raises:
        ValueError: torch cannot use this machine's.
    """
    if config.launch.named_hosts:
        return config.device != "cpu"
    return num_gpus(config.device) > 0


def _check_horovod(config: RunConfig) -> None:
    if not _has_horovod():
        raise ValueError(
            "Horovod is not installed: `bsweep setup-horovod` compiles it, as scripts/setup.sh "
            "does in a checkout. "
            "Without it there are strategy=ddp, allreduce, local_sgd, parameter_server and diloco, "
            "which torchrun "
            "starts, and one worker with launch=inline strategy=single."
        )
    if config.strategy.can.needs_mpi and not _has_mpi():
        raise ValueError(
            "strategy.op=adasum needs a Horovod built with MPI, and this one is built with Gloo: "
            "use "
            "strategy.op=average, or install MPI and rebuild Horovod with HOROVOD_WITH_MPI=1."
        )
    if inside_horovodrun():
        config.strategy.refuse_started(os.environ)


@functools.cache  # a sweep asks for every point
def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def _has_mpi() -> bool:
    import horovod.torch as hvd

    return bool(hvd.mpi_built())
