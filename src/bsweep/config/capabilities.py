"""Capabilities of a strategy. Other code asks for these instead of comparing the strategy's
name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Facts about what a strategy can do. Each `why_...` is a reason with its remedy; it is empty
    where nothing is wrong.
    """

    launchers: tuple[str, ...] = ()
    """Names of the launchers that can start the strategy's processes. If empty, any launcher can,
    because the strategy exchanges nothing. `srun` is not named; it stands in for `torchrun`.
    """

    uses_horovod: bool = False
    """True if the strategy's workers exchange over Horovod."""

    needs_mpi: bool = False
    """True if the strategy needs a Horovod that was built with MPI."""

    why_no_cpu: str = ""
    """The reason why the strategy runs only on GPUs."""

    why_no_fp16: str = ""
    """The reason why the strategy cannot train in fp16, where gradients may overflow and bsweep
    then skips the step.
    """

    why_no_noise: str = ""
    """The reason why the gradient noise scale cannot be measured with this strategy, although all
    workers make each step together.
    """

    why_apart: str = ""
    """The reason why, with this strategy, the workers' models differ until an epoch ends."""

    takes_codecs: bool = False
    """True if a codec of the group `compression` may compress the gradients that this strategy
    exchanges.
    """

    own_compression: str = ""
    """The sentence that tells users who choose a codec which key sets the strategy's own
    compression.
    """

    lockstep: bool = True
    """True if all workers make each step together, from the same parameters."""

    takes_mean: bool = True
    """True if a step takes the mean gradient of its examples, so that all such strategies need as
    many steps to a target.
    """

    takes_local_steps: bool = False
    """True if each worker may make its own number of local steps between two synchronisations."""

    exchanges_in_passes: bool | None = False
    """True if workers exchange gradients during the backward pass; None if only the user's own code
    can tell.
    """

    splits_model: bool = False
    """True if workers can hold parts of one model instead of copies of it."""

    splits_layers: bool = False
    """True if each worker computes a part of the layers that a plan of the model names."""

    gathers_blocks: bool = False
    """True if workers gather the parameters of one block of the model at a time, see
    `bsweep.models.blocks`.
    """

    cuts_model: bool = False
    """True if workers hold consecutive pieces of the model, which the model must then offer; see
    `bsweep.models.pieces`.
    """

    stores_channels_last: bool = True
    """True if the model's 4-dimensional tensors may be stored channels last."""

    needs_each_gradient: bool = False
    """True if each trained parameter must get a gradient in each pass."""

    replicates: bool = False
    """True if, without a codec, all workers have the same parameters, optimizer state and strategy
    state after each step. Any number of workers can then resume from the state of one.
    """

    loads_any_parts: bool = False
    """True if workers hold parts of a model, and any number of workers can resume from the parts of
    a checkpoint.
    """

    leaves_processes_clean: bool = True
    """True if processes that have trained one run with this strategy may train another run
    afterwards.
    """
