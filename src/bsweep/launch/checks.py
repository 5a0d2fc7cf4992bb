"""The checks that find out, before a point's workers start, whether this machine and its SLURM
allocation can run the point.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import psutil

from bsweep.config import slurm
from bsweep.config.launch import ProcessesConfig, most_at_once, nodes_of, slots_by_host, slots_of
from bsweep.config.rules import warnings_of
from bsweep.config.run import RunConfig
from bsweep.config.values import show
from bsweep.core import memory, network
from bsweep.core.extras import refuse_missing
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import Place, inside_horovodrun, num_cores
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
    check_hosts(config)
    if inside_horovodrun():
        _check_inside_horovodrun(config)
    if config.launch.uses_horovod or config.strategy.can.uses_horovod:
        _check_horovod(config)
    on_gpus = _on_gpus(config)
    if not on_gpus:
        _check_without_gpus(config)
    if config.launch.memory_limit_mb:
        _check_memory_limit(on_gpus)
    if isinstance(config.launch, ProcessesConfig):
        _check_variables(config.launch)
    if not config.launch.starts_processes:
        return [*warnings_of(config), *_too_many_threads(config)]
    return [*warnings_of(config), *_doubts_about_machines(config)]


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


def check_hosts(config: RunConfig) -> None:
    """Raise ValueError if a point needs the hosts of a SLURM allocation that is missing or has too
    few slots.

    Raises:
        ValueError: If there is no allocation, or if it has fewer slots than the point has workers.
    """
    launch = config.launch
    if not isinstance(launch, ProcessesConfig) or not launch.uses_allocation:
        return
    if launch.named_hosts is None:
        raise ValueError(
            f"launch={launch.name} takes the hosts of a SLURM allocation, but there is none here "
            "(SLURM_JOB_NODELIST is not set): start bsweep by sbatch or within salloc, or use "
            "launch=torchrun or horovodrun and name launch.hosts."
        )
    if (slots := len(slots_of(launch.named_hosts))) < config.num_workers:
        raise ValueError(
            f"num_workers={config.num_workers}, but the SLURM allocation offers {slots} slots "
            f"({launch.named_hosts}, from {slurm.variables(os.environ)}): ask SLURM for more "
            "nodes, tasks or GPUs, or use fewer workers."
        )


def _check_inside_horovodrun(config: RunConfig) -> None:
    strategy = config.strategy
    if config.program.is_own:
        raise ValueError(
            "program=own inside horovodrun: bsweep starts the workers of your program itself. "
            f"Leave horovodrun out, and give launch=horovodrun num_workers={config.num_workers}."
        )
    if strategy.can.launchers and not strategy.can.uses_horovod:
        with_other_algorithm = (
            " with a strategy.algorithm other than horovod"
            if "horovodrun" in strategy.can.launchers
            else ""
        )
        raise ValueError(
            f"strategy={strategy.name}{with_other_algorithm} inside horovodrun: torchrun starts "
            "the processes of this strategy. Leave horovodrun out, or use strategy=horovod."
        )
    if most_at_once(config.launch) > 1:
        raise ValueError(
            "launch.parallel inside horovodrun: the processes of horovodrun train only one point "
            "at a time. Leave launch.parallel or horovodrun out."
        )
    if config.num_workers != (started := Place.from_environment().num_workers):
        raise ValueError(
            f"num_workers={config.num_workers}, but horovodrun started {started} processes: leave "
            f"num_workers out, or start horovodrun -np {config.num_workers}."
        )


def _check_without_gpus(config: RunConfig) -> None:
    if config.device == "cuda":
        raise ValueError(
            "device=cuda, but this machine shows no GPU: use device=auto or device=cpu."
        )
    if config.strategy.can.why_no_cpu:
        raise ValueError(config.strategy.can.why_no_cpu)


def _check_memory_limit(on_gpus: bool) -> None:
    if not memory.can_limit():
        raise ValueError("launch.memory_limit_mb needs Linux: leave it out.")
    if on_gpus:
        raise ValueError(
            "launch.memory_limit_mb limits only the main memory of processes, not the memory of "
            "GPUs: set device=cpu, or leave launch.memory_limit_mb out."
        )
    if inside_horovodrun():
        raise ValueError(
            "launch.memory_limit_mb inside horovodrun: the processes of horovodrun train several "
            "points, and a point that runs out of memory would spoil the next one. Leave "
            "horovodrun out, so that each point has its own processes."
        )


def _check_variables(launch: ProcessesConfig) -> None:
    if missing := [name for name in launch.environment if name not in os.environ]:
        raise ValueError(
            f"launch.environment={show(launch.environment)}: {', '.join(missing)} not set here. "
            f"Export {'them' if len(missing) > 1 else 'it'}, or leave "
            f"{'them' if len(missing) > 1 else 'it'} out."
        )
    interface = launch.network_interface
    if interface and not launch.named_hosts and interface not in (there := psutil.net_if_addrs()):
        raise ValueError(
            f"launch.network_interface={interface}: this machine has no such interface. Choose "
            f"one of {', '.join(there)}."
        )


def _on_gpus(config: RunConfig) -> bool:
    """Return True if the workers of a point train on GPUs, or may train on GPUs of hosts that this
    machine cannot see.

    GPUs of other hosts are not visible from here. For named hosts the answer is therefore True
    unless device=cpu.

    Raises:
        ValueError: If torch cannot use this machine's GPUs.
    """
    if config.launch.named_hosts:
        return config.device != "cpu"
    return num_gpus(config.device) > 0


def _check_horovod(config: RunConfig) -> None:
    if not _has_horovod():
        raise ValueError(
            "Horovod is not installed: `bsweep setup-horovod` compiles it, as scripts/setup.sh "
            "does in a checkout. Without Horovod, use strategy=ddp, allreduce, local_sgd, "
            "parameter_server or diloco, which torchrun starts, or one worker with launch=inline "
            "strategy=single."
        )
    if config.strategy.can.needs_mpi and not _has_mpi():
        raise ValueError(
            "strategy.op=adasum needs a Horovod built with MPI, but this Horovod is built without "
            "it: use strategy.op=average, or install MPI and rebuild Horovod with "
            "HOROVOD_WITH_MPI=1."
        )
    if inside_horovodrun():
        config.strategy.refuse_started(os.environ)
    elif not config.launch.named_hosts and (problem := network.unresolved_name()):
        raise ValueError(f"{problem}.")


@functools.cache  # a sweep calls this for every point
def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def _has_mpi() -> bool:
    import horovod.torch as hvd

    return bool(hvd.mpi_built())


def _doubts_about_machines(config: RunConfig) -> list[str]:
    """Return warnings about the hosts of a point, such as processes that share cores, servers
    beside workers, or unused hosts.

    Raises:
        ValueError: If this machine has GPUs, but fewer than the workers that it is to run.
    """
    here, workers, hosts = _num_workers_here(config), config.num_workers, config.launch.named_hosts
    gpus, cores = num_gpus(config.device) if here else 0, num_cores()
    if gpus and here > gpus:
        placed = (
            f"{_named(config, hosts)} places {here} workers here"
            if hosts
            else f"{here} workers are to run here"
        )
        raise ValueError(
            f"num_workers={workers}: {placed}, but this machine has {counted(gpus, 'GPU')}, and "
            "NCCL needs a separate GPU for each worker. Give each host no more slots than GPUs, "
            "name more hosts in launch.hosts, use fewer workers, or set device=cpu."
        )
    if hosts:
        return [*_servers_beside_workers(config, hosts), *_idle_nodes(config, hosts)]
    if here < workers:
        return []  # other hosts' cores are not visible from here
    processes = workers + config.num_server_processes
    if not gpus and processes > cores:
        counts = ((workers, "worker"), (processes - workers, "server"), (cores, "core"))
        *kinds, shared = [counted(count, noun) for count, noun in counts if count]
        return [
            (
                f"{' and '.join(kinds)} share {shared}: their step times say little about workers "
                "that have cores of their own"
            )
        ]
    return _too_many_threads(config)


def _num_workers_here(config: RunConfig) -> int:
    """Return how many workers of a point run on this machine."""
    hosts = config.launch.named_hosts
    if hosts:
        return sum(
            number for host, number in nodes_of(hosts, config.num_workers) if ssh.is_here(host)
        )
    place = Place.from_environment()
    return place.local_workers if place.local_workers < place.num_workers else config.num_workers


def _servers_beside_workers(config: RunConfig, hosts: str) -> list[str]:
    """Return a warning if a point's hosts have too few slots to give each server of the point its
    own slot.
    """
    beside = config.num_workers + config.num_server_processes - len(slots_of(hosts))
    if beside <= 0:
        return []
    return [
        (
            f"{beside} of {config.num_server_processes} servers run beside workers: "
            f"{_named(config, hosts)} has no more slots"
        )
    ]


def _named(config: RunConfig, hosts: str) -> str:
    assert isinstance(config.launch, ProcessesConfig), config.launch
    is_by_slurm = config.launch.uses_allocation
    return f"the SLURM allocation {hosts}" if is_by_slurm else f"launch.hosts={hosts}"


def _idle_nodes(config: RunConfig, hosts: str) -> list[str]:
    """Return a warning if some nodes of the SLURM allocation run no process of the point."""
    used = dict(nodes_of(hosts, config.num_workers, config.num_server_processes))
    idle = [host for host in slots_by_host(hosts) if host not in used]
    assert isinstance(config.launch, ProcessesConfig), config.launch
    if not idle or not config.launch.uses_allocation:
        return []
    some = ", ".join(idle[:3]) + ", ..." * (len(idle) > 3)
    return [
        (
            f"{len(idle)} of the allocation's {len(idle) + len(used)} nodes are not used ({some}): "
            "ask SLURM for fewer nodes"
        )
    ]


def _too_many_threads(config: RunConfig) -> list[str]:
    """Return a warning if `launch.threads_per_worker` gives a point's workers more threads together
    than this machine has cores.
    """
    threads, workers, cores = config.launch.threads_per_worker, config.num_workers, num_cores()
    if threads is None or threads * workers <= cores:
        return []
    return [
        (
            f"launch.threads_per_worker={threads} x {workers} workers share {cores} cores: their "
            "threads take turns"
        )
    ]
