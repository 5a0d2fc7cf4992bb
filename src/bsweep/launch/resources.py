"""The GPUs and cores of this machine for points that run at the same time; no two points share a
GPU or a core.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from bsweep.config import launch
from bsweep.config.run import RunConfig
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import num_cores, usable_cores
from bsweep.core.words import counted


@dataclass(frozen=True)
class Amount:
    """A number of cores and a number of GPUs, such as those that a point takes."""

    num_cores: int
    num_gpus: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.num_cores + other.num_cores, self.num_gpus + other.num_gpus)


@dataclass(frozen=True)
class Resources:
    """A set of cores (numbers of logical CPUs) and GPUs (as CUDA_VISIBLE_DEVICES names them)."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]

    def first(self, amount: Amount) -> Resources | None:
        """Return a set of the first cores and GPUs of this set, as many of each as `amount` says;
        return None if there are too few.
        """
        if amount.num_cores > len(self.cores) or amount.num_gpus > len(self.gpus):
            return None
        return Resources(self.cores[: amount.num_cores], self.gpus[: amount.num_gpus])

    def without(self, taken: Iterable[Resources]) -> Resources:
        """Return the cores and GPUs of this set that are in none of the sets `taken`."""
        cores = {core for resources in taken for core in resources.cores}
        gpus = {gpu for resources in taken for gpu in resources.gpus}
        return Resources(
            tuple(core for core in self.cores if core not in cores),
            tuple(gpu for gpu in self.gpus if gpu not in gpus),
        )

    def take(self) -> None:
        """Restrict this process, and the points that it launches later, to the cores and GPUs of
        this set.

        Cores are restricted only on systems that allow it, such as Linux. A set without GPUs leaves
        GPUs unrestricted.
        """
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)


def of_machine(configs: Iterable[RunConfig]) -> Resources:
    """Return all cores and GPUs of this machine that the given points may use. Of the cores there
    are no more than a container's limit of processor time grants.
    """
    count = max((num_gpus(device) for device in {config.device for config in configs}), default=0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number) for number in range(count)]
    # Not the first ones: containers on one host would all choose these.
    cores = sorted(random.sample(usable_cores(), num_cores()))
    return Resources(tuple(cores), tuple(gpus[:count]))


def amount_for(config: RunConfig) -> Amount:
    """Return how many cores and GPUs of this machine a point takes, at most all of them.

    A worker on a CPU counts as many cores as it would have threads if the point ran alone, so that
    points beside it do not change the numbers that it computes. A worker on a GPU counts
    `launch.threads_per_worker` cores or, if that is null, all cores divided by the number of GPUs.
    A parameter server counts one core beside workers on CPUs, and none beside workers on GPUs.
    """
    gpus, cores, workers = num_gpus(config.device), num_cores(), config.num_workers
    threads = config.launch.threads_per_worker or max(1, cores // (gpus or workers))
    servers = 0 if gpus else config.num_server_processes
    return Amount(min(cores, threads * workers + servers), min(gpus, workers))


def why_in_turn(configs: Sequence[RunConfig]) -> str | None:
    """Return None if points can run at once: `launch.parallel` asks for that, and this machine has
    room for two of them. Otherwise return the reason, or an empty text if nobody asked for that.
    """
    if len(configs) < 2 or most_at_once(configs) == 1:
        return ""
    machine, amounts = of_machine(configs), Counter(map(amount_for, configs))
    for amount, other in combinations_with_replacement(amounts, 2):
        if (amount != other or amounts[amount] > 1) and machine.first(amount + other):
            return None
    gpus = f"{counted(len(machine.gpus), 'GPU')} and " if machine.gpus else ""
    remedy = " Workers take all cores by default: give for example launch.threads_per_worker=1."
    if gpus or len(machine.cores) == 1 or all(c.launch.threads_per_worker for c in configs):
        remedy = ""
    return (
        f"launch.parallel: points run one after another, because this machine's {gpus}"
        f"{counted(len(machine.cores), 'core')} have no room for two points.{remedy}"
    )


def most_at_once(configs: Iterable[RunConfig]) -> float:
    """Return the largest number of the given points that `launch.parallel` lets run at once."""
    return min(launch.most_at_once(config.launch) for config in configs)
