"""What a SLURM allocation says of itself, in the environment of what runs in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bsweep.config.hosts import names_in

HOSTS = "BSWEEP_HOSTS"
"""What the parent of a sweep found: its processes may be in a step that says something else."""


def hosts(env: Mapping[str, str]) -> str | None:
    """The nodes of an allocation with their slots, `n1:4,n2:4`; None outside one.

    A slot is a GPU where the allocation has any, else a task.

    Raises:
        ValueError: SLURM says something that cannot be read.
    """
    if HOSTS in env:
        return env[HOSTS]
    listed = env.get("SLURM_JOB_NODELIST")
    if not listed:
        return None
    nodes = names_in(listed)
    counts = _slots(env, len(nodes))
    return ",".join(f"{node}:{slots}" for node, slots in zip(nodes, counts, strict=True))


def _slots(env: Mapping[str, str], num_nodes: int) -> list[int]:
    gpus = env.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and int(gpus):
        return [int(gpus)] * num_nodes  # of this node; preflight tells where another has fewer
    for name in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        counts = expanded(env.get(name, ""))
        if len(counts) == num_nodes:  # within a step, tasks are those of the step's nodes
            return counts
    return [1] * num_nodes


def expanded(counts: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2 and 1; nothing where it is something else."""
    found = [re.fullmatch(r"([1-9]\d{0,3})(?:\(x(\d{1,5})\))?", part) for part in counts.split(",")]
    if not all(found):
        return []
    return [int(one[1]) for one in found if one for _ in range(int(one[2] or 1))]


def number_of_task(env: Mapping[str, str]) -> int:
    """Which task of a step of several this process is; 0 also where srun did not start it."""
    return int(env.get("SLURM_PROCID", 0)) if "SLURM_STEP_NUM_TASKS" in env else 0


def started_often(env: Mapping[str, str]) -> str:
    """What is wrong where srun has started the parent of a sweep several times; empty otherwise."""
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", 1))  # a batch script is no task
    if tasks == 1:
        return ""
    return (
        f"srun has started it {tasks} times, and one leads all workers: leave srun out, in a batch "
        "script or in salloc's shell. launch=srun starts the workers on all nodes, "
        "launch.hosts=slurm by ssh"
    )
