"""Capabilities of a strategy: one value that others ask instead of its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Facts of a strategy; a `why_...` is a reason with its remedy, empty where there is none."""

    launchers: tuple[str, ...] = ()
    """Launchers that can start its processes; none named: any can, for it exchanges nothing."""

    uses_horovod: bool = False
    """It exchanges over Horovod, whose processes are started by horovodrun."""

    needs_mpi: bool = False
    """It needs a Horovod that was built with MPI."""

    why_no_cpu: str = ""
    """Why it runs on GPUs alone."""

    why_no_fp16: str = ""
    """Why its workers cannot leave out a step whose gradients overflowed."""

    why_no_noise: str = ""
    """Why the gradient noise scale cannot be measured, although all workers step together."""

    why_apart: str = ""
    """Why workers have no model in common before an epoch ends."""

    takes_codecs: bool = False
    """Gradients may travel through a codec of the group `compression`."""

    own_compression: str = ""
    """What to say of a compression of its own to those who ask for a codec."""

    in_step: bool = True
    """All workers pass each step together."""

    takes_local_steps: bool = False
    """Workers step alone between two synchronisations, each as often as it is given."""

    exchanges_in_passes: bool | None = False
    """Gradients travel from within the backward pass; None: the user's own code tells."""

    replicates: bool = False
    """After each step all workers have the same parameters and optimizer: any number of workers
    can go on from those of one.
    """

    outlives_workers: bool = False
    """The others have something left to do when a worker is lost."""

    leaves_processes_clean: bool = True
    """Processes that have trained with it may train another run."""
