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


def problems_with_data(config: RunConfig, num_train: int) -> Iterator[str]:
    """Yield an error message, with the remedy, for each contradiction of a point and the size of
    its training set: a larger global batch, or evaluations that never come.

    The latter are those of a run that trains on fewer than `evaluate_every_examples` examples. A
    run of one epoch with a target needs an evaluation before the epoch's end, too. It has none if
    `evaluate_every_examples` is null, or the first round that takes as many ends the epoch.
    """
    if config.examples_per_step > num_train:
        yield _problem_of_large_batch(config, num_train)
        return
    yield from config.batching.problems_with_data(config, num_train)
    every = config.evaluate_every_examples
    if every and every > config.epochs * num_train:
        yield (
            f"evaluate_every_examples={every} is more than the run trains on "
            f"(epochs={config.epochs} of {num_train} examples): use less than {num_train}, or "
            "evaluate_every_examples=null to evaluate at the ends of epochs only."
        )
    size = config.examples_per_round
    is_within = every is not None and -(-every // size) * size < num_train
    if config.target and config.epochs == 1 and not is_within:
        yield (
            f"{config.target} counts as reached when two of three evaluations in a row reach "
            "it, but epochs=1 has only one, at its end: use epochs=2 or more, or "
            f"evaluate_every_examples={max(1, num_train // 10)} with rounds of fewer examples than "
            f"the epoch's {num_train}."
        )


def _problem_of_large_batch(config: RunConfig, num_train: int) -> str:
    size = config.data_parallel_size
    key = "num_workers" if size == config.num_workers else "strategy.replicas"
    batches = f"local_batch={config.examples_per_pass} x {key}={size}"
    if given := config.allocation.local_batches:
        batches = f"allocation.local_batches={list(given)}"
    return (
        f"global batch {config.examples_per_step} ({batches} x "
        f"accumulation_steps={config.accumulation_steps}) is larger than the training set of "
        f"{num_train} examples: choose a smaller batch."
    )
