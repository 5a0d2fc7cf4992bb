"""The rules that a point must keep, alone and with the size of its training set. `problems` asks
each of its cards, too.

A rule yields a message of a sentence or two, with the values and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bsweep.config.run import CARDS, GROUPS, RunConfig
from bsweep.config.values import ConfigError, show


def refuse_contradictions(config: RunConfig) -> None:
    """Raise a ConfigError with a message for each rule that a point breaks."""
    if problems := [*problems_of(config)]:
        raise ConfigError(*problems)


def problems_of(config: RunConfig) -> Iterator[str]:
    """Yield an error message, with the remedy, for each contradiction of a point's values.

    Args:
        config: The point, whose every key is valid by itself.

    Yields:
        One message for each contradiction.
    """
    if (config.local_batch is None) == (config.global_batch is None):
        yield (
            f"local_batch={show(config.local_batch)} and global_batch={show(config.global_batch)}: "
            "give exactly one, such as local_batch=64, and set the other to null if an experiment "
            "or data=text sets it."
        )
    if config.precision == "tf32" and config.device == "cpu":
        yield "precision=tf32 with device=cpu: only GPUs have TF32. Use precision=fp32."
    yield from _problems_of_target(config)
    yield from problems_of_cards(config)


def problems_of_cards(config: RunConfig, groups: Sequence[str] = CARDS) -> Iterator[str]:
    """Yield the error messages of the cards of some groups, such as `strategy`."""
    for group in groups:
        yield from getattr(config, group).problems(config)


def warnings_of(config: RunConfig) -> list[str]:
    """Return a warning for each doubt of a card about a point without contradictions."""
    return [warning for group in GROUPS for warning in getattr(config, group).warnings(config)]


def _problems_of_target(config: RunConfig) -> Iterator[str]:
    try:
        _ = config.target
    except ValueError as error:
        given = (("target_accuracy", config.target_accuracy), ("target_loss", config.target_loss))
        keys = [f"{key}={show(value)}" for key, value in given if value is not None]
        yield f"{' and '.join(keys)}: {error}"


def refuse_vain_evaluations(config: RunConfig, num_train: int) -> None:
    """Raise a ConfigError if a run trains on fewer than `evaluate_every_examples` examples. Raise
    one also for a run of one epoch with a target if no evaluation can come before the epoch's end:
    `evaluate_every_examples` is null or not less than the training set, or a round takes all of it.
    """
    every = config.evaluate_every_examples
    if every and every > config.epochs * num_train:
        raise ConfigError(
            f"evaluate_every_examples={every} is more than the run trains on "
            f"(epochs={config.epochs} of {num_train} examples): use less than {num_train}, or "
            "evaluate_every_examples=null to evaluate at the ends of epochs only."
        )
    rounds = zip(config.worker_batches, config.local_steps, strict=True)
    per_round = sum(batch * steps for batch, steps in rounds)
    is_within = every is not None and every < num_train and per_round < num_train
    if config.target and config.epochs == 1 and not is_within:
        raise ConfigError(
            f"{config.target} counts as reached when two of three evaluations in a row reach "
            "it, but epochs=1 has only one, at its end: use epochs=2 or more, or "
            f"evaluate_every_examples={max(1, num_train // 10)} with rounds of fewer examples than "
            f"the epoch's {num_train}."
        )
