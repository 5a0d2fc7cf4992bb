"""The checks that find out, before a point's workers start, whether this machine and its SLURM
allocation can run the point.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator

import psutil

from bsweep.config import slurm
from bsweep.config.launch import ProcessesConfig, most_at_once, nodes_of, slots_by_host, slots_of
from bsweep.config.run import RunConfig
from bsweep.core import memory, network
from bsweep.core.extras import refuse_missing
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import World, horovodrun_size, inside_horovodrun, num_cores
from bsweep.core.torch_versions import refuse_torch
from bsweep.core.words import counted
from bsweep.launch import ssh

_refuse_torch_once = functools.cache(refuse_torch)  # reading torch's metadata takes milliseconds


def check_machine(config: RunConfig) -> list[str]:
    """Return warnings about running a point on this machine, such as too few cores for its workers.

    The run's records will hold them.

    Raises:
        ValueError: If the point cannot run here.
    """
    check_packages(config)
    check_slurm(config)
    for problem in _problems(config):
        raise ValueError(problem)
    return [*_warnings(config)]


def check_packages(config: RunConfig) -> None:
    """Raise ValueError if torch is missing or too old, or if a package that the point's data set,
    model, optimizer or strategy needs is missing.

    Raises:
        ValueError: If a package is missing, or if torch is too old.
    """
    _refuse_torch_once()
    for group in ("data", "model", "optimizer", "strategy"):
        card = getattr(config, group)
        for package in card.needs:
            refuse_missing(f"{group}={card.name}", [package], package)


def check_slurm(config: RunConfig) -> None:
    """Raise ValueError if a point needs the hosts of a SLURM allocation that is missing or has too
    few slots.

    Raises:
        ValueError: If there is no allocation, or if it has fewer slots than the point has workers.
    """
    launch = config.launch
    if not isinstance(launch, ProcessesConfig) or not launch.uses_slurm:
        return
    if launch.named_hosts is None:
        raise ValueError(
            f"launch={launch.name} needs a SLURM allocation (SLURM_JOB_NODELIST): start bsweep by "
            "sbatch or within salloc, or name launch.hosts with launch=torchrun or horovodrun."
        )
    if (slots := len(slots_of(launch.named_hosts))) < config.num_workers:
        raise ValueError(
            f"num_workers={config.num_workers}, but the SLURM allocation offers {slots} slots "
            f"({launch.named_hosts}, from {slurm.variables(os.environ)}): ask SLURM for more, or "
            "use fewer workers."
        )


def _problems(config: RunConfig) -> Iterator[str]:
    """Yield messages about what keeps a point from running here.

    Raises:
        ValueError: If torch cannot use this machine's GPUs.
    """
    launch, can = config.launch, config.strategy.can
    if inside_horovodrun():
        yield from _problems_inside_horovodrun(config)
    if launch.uses_horovod or can.uses_horovod:
        yield from _problems_of_horovod(config)
    # Of named hosts, the GPUs are not visible from here.
    may_use_gpus = config.device != "cpu" if launch.named_hosts else num_gpus(config.device) > 0
    if not may_use_gpus and config.device == "cuda":
        yield "device=cuda, but this machine shows no GPU: use device=auto or device=cpu."
    if not may_use_gpus and can.why_no_cpu:
        yield can.why_no_cpu
    if launch.memory_limit_mb and not memory.can_limit():
        yield "launch.memory_limit_mb needs Linux: leave it out."
    if launch.memory_limit_mb and may_use_gpus:
        yield (
            "launch.memory_limit_mb limits the main memory of processes, not the memory of GPUs: "
            "set device=cpu, or leave launch.memory_limit_mb out."
        )
    if not isinstance(launch, ProcessesConfig):
        return
    if missing := ", ".join(name for name in launch.environment if name not in os.environ):
        yield f"launch.environment: {missing} not set here. Export it, or leave it out."
    interface = launch.network_interface
    if interface and not launch.named_hosts and interface not in (there := psutil.net_if_addrs()):
        yield f"launch.network_interface={interface}: this machine has only {', '.join(there)}."
    here = _num_workers_here(config)
    gpus = num_gpus(config.device) if here else 0
    if 0 < gpus < here:
        yield (
            f"num_workers={config.num_workers}: {here} workers are to run here, but this machine "
            f"has {counted(gpus, 'GPU')}. Give each host no more slots than GPUs, name more hosts "
            "in launch.hosts, use fewer workers, or set device=cpu."
        )


def _problems_inside_horovodrun(config: RunConfig) -> Iterator[str]:
    strategy = config.strategy
    if config.program.is_own:
        yield (
            "program=own inside horovodrun: bsweep starts the workers of your program itself. "
            f"Leave horovodrun out, and give launch=horovodrun num_workers={config.num_workers}."
        )
    if strategy.can.launchers and not strategy.can.uses_horovod:
        has_other = "horovodrun" in strategy.kind_can.launchers
        algorithm = " with a strategy.algorithm other than horovod" if has_other else ""
        yield (
            f"strategy={strategy.name}{algorithm} inside horovodrun: torchrun starts the processes "
            "of this strategy. Leave horovodrun out, or use strategy=horovod."
        )
    if most_at_once(config.launch) > 1:
        yield "launch.parallel inside horovodrun trains one point at a time: leave one of them out."
    if config.num_workers != (started := horovodrun_size()):
        yield (
            f"num_workers={config.num_workers}, but horovodrun started {started} processes: leave "
            f"num_workers out, or start horovodrun -np {config.num_workers}."
        )
    if config.launch.memory_limit_mb:
        yield (
            "launch.memory_limit_mb inside horovodrun: a point that runs out of memory would spoil "
            "the processes for the next one. Leave horovodrun out."
        )


def _problems_of_horovod(config: RunConfig) -> Iterator[str]:
    if not _has_horovod():
        yield (
            "Horovod is not installed: run `bsweep setup-horovod`, or use strategy=ddp, allreduce, "
            "local_sgd, parameter_server or diloco, or launch=inline strategy=single."
        )
    if config.strategy.can.needs_mpi and not _has_mpi():
        yield (
            "strategy.op=adasum needs a Horovod built with MPI, which this one is not: use "
            "strategy.op=average, or rebuild Horovod with HOROVOD_WITH_MPI=1."
        )
    if inside_horovodrun():
        config.strategy.refuse_started(os.environ)
    elif not config.launch.named_hosts and (problem := network.unresolved_name()):
        yield f"{problem}."


@functools.cache  # a sweep calls this for every point
def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def _has_mpi() -> bool:
    import horovod.torch as hvd

    return bool(hvd.mpi_built())


def _num_workers_here(config: RunConfig) -> int:
    """Return how many workers of a point run on this machine."""
    if hosts := config.launch.named_hosts:
        nodes = nodes_of(hosts, config.num_workers)
        return sum(number for host, number in nodes if ssh.is_here(host))
    world = World.from_environment()
    return world.local_workers if world.local_workers < world.num_workers else config.num_workers


def _warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about the hosts of a point, such as processes that share cores, servers beside
    workers, or unused hosts.
    """
    launch, workers, servers = config.launch, config.num_workers, config.num_server_processes
    if isinstance(launch, ProcessesConfig) and (hosts := launch.named_hosts):
        name = "the SLURM allocation " if launch.uses_slurm else "launch.hosts="
        if (beside := workers + servers - len(slots_of(hosts))) > 0:
            yield (
                f"{beside} of {servers} servers run beside workers: {name}{hosts} has no more slots"
            )
        used = dict(nodes_of(hosts, workers, servers))
        idle = [host for host in slots_by_host(hosts) if host not in used]
        if idle and launch.uses_slurm:
            some = ", ".join(idle[:3]) + ", ..." * (len(idle) > 3)
            yield (
                f"{len(idle)} of the allocation's {len(idle) + len(used)} nodes are not used "
                f"({some}): ask SLURM for fewer nodes"
            )
        return
    if _num_workers_here(config) < workers:
        return  # other hosts' cores are not visible from here
    cores, threads = num_cores(), launch.threads_per_worker or 0
    if launch.starts_processes and not num_gpus(config.device) and workers + servers > cores:
        beside_them = f" and {counted(servers, 'server')}" if servers else ""
        yield (
            f"{counted(workers, 'worker')}{beside_them} share {counted(cores, 'core')}: their step "
            "times say little about workers that have cores of their own"
        )
    elif threads * workers > cores:
        yield (
            f"launch.threads_per_worker={threads} x {workers} workers share {cores} cores: their "
            "threads take turns"
        )
