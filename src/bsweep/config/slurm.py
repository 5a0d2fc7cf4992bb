"""The hosts and tasks of a SLURM allocation, read from the environment variables of its
processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bsweep.config.hosts import names_in
from bsweep.core.words import counted

HOSTS = "BSWEEP_HOSTS"
"""The environment variable by which the parent process of a sweep tells its child processes the
hosts of the SLURM allocation. A child process may be in a SLURM step whose SLURM variables differ.
"""


def hosts(env: Mapping[str, str]) -> str | None:
    """Return the nodes of the surrounding SLURM allocation with their slots, such as `n1:4,n2:4`;
    None outside an allocation.

    The slots of a node are the GPUs that SLURM gave to this node, if any. Otherwise they are the
    node's tasks, or its CPUs if SLURM does not say the tasks, or one slot if it says neither.

    Raises:
        ValueError: If SLURM's list of nodes cannot be read, or its counts do not fit the list.
    """
    if HOSTS in env:
        return env[HOSTS]
    listed = env.get("SLURM_JOB_NODELIST")
    if not listed:
        return None
    try:
        nodes = names_in(listed)
    except ValueError as error:
        raise ValueError(f"SLURM_JOB_NODELIST={listed}: {error}") from None
    counts = _slots(env, len(nodes))
    return ",".join(f"{node}:{slots}" for node, slots in zip(nodes, counts, strict=True))


def variables(env: Mapping[str, str]) -> str:
    """Return the variables that say which nodes and slots an allocation has, for messages."""
    return ", ".join(
        f"{name}={env[name]}" for name in ("SLURM_JOB_NODELIST", *_COUNTS) if name in env
    )


_PER_NODE = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
_COUNTS = ("SLURM_GPUS_ON_NODE", *_PER_NODE)


def _slots(env: Mapping[str, str], num_nodes: int) -> list[int]:
    gpus = env.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and int(gpus):
        return [int(gpus)] * num_nodes  # this node's count; hosts_check reports nodes with fewer
    for name in _PER_NODE:
        counts = expanded(env.get(name, ""))
        if len(counts) == num_nodes:  # inside a step the list may cover fewer nodes
            return counts
    if given := ", ".join(f"{name}={env[name]}" for name in _PER_NODE if env.get(name)):
        raise ValueError(
            f"{given}: not the slots of the {counted(num_nodes, 'node')} in SLURM_JOB_NODELIST. "
            "Correct or unset it, or name the hosts by launch.hosts=h1:4,h2:4"
        )
    return [1] * num_nodes


def expanded(counts: str) -> list[int]:
    """Return the numbers of a list in SLURM's short form: `2(x3),1` gives 2, 2, 2 and 1. Return an
    empty list for anything else.
    """
    form = re.compile(r"([1-9]\d{0,3})(?:\(x(\d{1,5})\))?")
    matches = [form.fullmatch(count) for count in counts.split(",")]
    if not all(matches):
        return []
    return [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]


def started_often(env: Mapping[str, str]) -> str:
    """Return an error message if srun started several processes of this command, which needs only
    one; an empty text otherwise.
    """
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")  # unset in a batch script, which is no task
    if tasks == "1":
        return ""
    return (
        f"srun started this command {tasks} times (SLURM_STEP_NUM_TASKS={tasks}), but one process "
        "leads all workers: leave srun out, in a batch script or in salloc's shell. launch=srun "
        "starts the workers on the allocation's nodes; launch.hosts=slurm starts them by ssh"
    )
