"""Capabilities of a strategy. Other code asks for these instead of comparing the strategy's
name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Facts about a strategy. Each `why_...` is a reason with its remedy; it is empty where nothing
    is wrong.
    """

    launchers: tuple[str, ...] = ()
    """Names of the launchers that can start its processes. If empty, any launcher can, because the
    strategy exchanges nothing.
    """

    uses_horovod: bool = False
    """True if it exchanges over Horovod, whose processes horovodrun starts."""

    needs_mpi: bool = False
    """True if it needs a Horovod that was built with MPI."""

    why_no_cpu: str = ""
    """The reason why it runs only on GPUs."""

    why_no_fp16: str = ""
    """The reason why its workers cannot skip a step whose gradients overflowed."""

    why_no_noise: str = ""
    """The reason why the gradient noise scale cannot be measured, although all workers step
    together.
    """

    why_apart: str = ""
    """The reason why the workers' models differ until an epoch ends."""

    takes_codecs: bool = False
    """True if gradients may be compressed by a codec of the group `compression`."""

    own_compression: str = ""
    """A hint at the strategy's own compression, for users who ask for a codec."""

    in_step: bool = True
    """True if all workers make each step together."""

    takes_local_steps: bool = False
    """True if workers step alone between two synchronisations, each with its own number of steps.
    """

    exchanges_in_passes: bool | None = False
    """True if gradients are exchanged during the backward pass; None if only the user's own code
    can tell.
    """

    replicates: bool = False
    """True if all workers have the same parameters and optimizer state after each step. Any number
    of workers can then resume from the state of one.
    """

    outlives_workers: bool = False
    """True if the other workers can still go on or stop cleanly when a worker is lost."""

    leaves_processes_clean: bool = True
    """True if processes that have trained with it may train another run."""
