"""The facts about a point that the user's own program gets: in braces in its command, in its
environment, and from `bsweep.join()`.
"""

from __future__ import annotations

from typing import Any

from bsweep.config.optimizers import scaled_rate
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig


def values_of(config: RunConfig) -> dict[str, Any]:
    """Return the values of a point by the names that a command may have in braces.

    Args:
        config: A point with `program=own`.

    Returns:
        The values; None for a value that the user did not give. An option of the program has its
        own name, unless a key of the point has this name, and `options.NAME`.
    """
    options: dict[str, Any] = (
        config.program.options if isinstance(config.program, OwnProgramConfig) else {}
    )
    folder = config.study_dir.absolute() / config.run_id
    return {
        **options,
        **{f"options.{name}": value for name, value in options.items()},
        "local_batch": config.examples_per_pass,
        "global_batch": config.examples_per_step,
        "num_workers": config.num_workers,
        "epochs": config.epochs,
        "seed": config.seed,
        "lr": learning_rate(config),
        "study": config.study,
        "run_id": config.run_id,
        "run_folder": str(folder),
        "checkpoint_folder": str(folder / "program"),
    }


def learning_rate(config: RunConfig) -> float | None:
    """Return the learning rate that the learning-rate rule gives for a point; None if the user gave
    no rate.
    """
    card = config.optimizer
    if card.lr is None:
        return None
    return scaled_rate(
        card.lr,
        card.lr_rule,
        reference_batch=card.reference_batch,
        rate_batch=config.rate_batch(0),
        num_workers=config.num_workers,
    )
