"""Checks that refuse a point whose values contradict each other or do not fit the size of the
training set.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import asdict

from bsweep.config.groups import StrategyConfig
from bsweep.config.program_point import values_of
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig, names, variants
from bsweep.config.values import ConfigError, show


def refuse_contradictions(config: RunConfig) -> None:
    """Raise a ConfigError if values of a configuration contradict each other. It has a message for
    each contradiction found.
    """
    problems = list(_contradictions(config))
    if problems:
        raise ConfigError(*problems)


def refuse_vain_evaluations(config: RunConfig, num_train: int) -> None:
    """Raise a ConfigError if a run trains on fewer than `evaluate_every_examples` examples. Raise
    one also for a run of one epoch with a target if no evaluation can come before the epoch's end:
    `evaluate_every_examples` is null or not less than the training set, or a round takes all of it.
    """
    every = config.evaluate_every_examples
    if every and every > config.epochs * num_train:
        raise ConfigError(
            f"evaluate_every_examples={every} is more than the run trains on "
            f"(epochs={config.epochs} of {num_train} examples), so it would add no evaluation to "
            f"those at the ends of epochs: use less than {num_train}, or "
            "evaluate_every_examples=null to evaluate at the ends of epochs only."
        )
    per_round = sum(
        batch * steps
        for batch, steps in zip(config.worker_batches, config.local_steps, strict=True)
    )
    is_within = every is not None and every < num_train and per_round < num_train
    if config.target and config.epochs == 1 and not is_within:
        raise ConfigError(
            f"{config.target} counts as reached when two of three evaluations in a row reach it, "
            "but epochs=1 has only one evaluation, at its end: use epochs=2 or more, or "
            f"evaluate_every_examples={max(1, num_train // 10)}. Evaluations within an epoch need "
            "steps, or rounds of local steps, that take fewer examples than the epoch's "
            f"{num_train}."
        )


def _contradictions(config: RunConfig) -> Iterator[str]:
    c = config
    if (c.local_batch is None) == (c.global_batch is None):
        yield (
            f"local_batch={show(c.local_batch)} and global_batch={show(c.global_batch)}: give "
            "exactly one, for example local_batch=64, and set the other to null if an experiment "
            "or data=text sets it."
        )
    if c.precision == "tf32" and c.device == "cpu":
        yield (
            "precision=tf32 with device=cpu: only GPUs have TF32. Use precision=fp32, or "
            "device=cuda."
        )
    if c.channels_last is True and not c.strategy.can.stores_channels_last:
        yield (
            f"channels_last=true with strategy={c.strategy.name}: this strategy divides tensors "
            "that are stored contiguously. Leave channels_last out, or use channels_last=false."
        )
    if c.compile and (reason := _why_not_compiled(c)):
        yield f"compile=true with {reason}. Leave compile out, or use compile=false."
    yield from _target_contradictions(c)
    yield from _program_contradictions(c)
    yield from _metrics_contradictions(c)
    yield from c.measure.problems(c)
    yield from c.model.problems(c)
    yield from c.launch.problems(c)
    yield from exchange_contradictions(c)
    for card in (c.batching, c.optimizer, c.data):
        yield from card.problems(c)


def exchange_contradictions(config: RunConfig) -> Iterator[str]:
    """Yield an error message, with the remedy, for each contradiction of the strategy, the codec
    and the allocation with each other or with the rest of a configuration.

    Args:
        config: The configuration, whose every key is valid by itself.

    Yields:
        One message for each contradiction.
    """
    yield from config.strategy.problems(config)
    yield from _codec_contradictions(config)
    for card in (config.compression, config.allocation):
        yield from card.problems(config)


def _why_not_compiled(config: RunConfig) -> str:
    """Return the setting with which torch cannot compile the steps of a run, and the reason; return
    "" if there is none.
    """
    if config.strategy.can.exchanges_in_passes is not False:
        return (
            f"strategy={config.strategy.name}: gradients that are exchanged within the backward "
            "pass must come one by one, and a compiled pass gives them at its end"
        )
    if config.launch.memory_limit_mb:
        return "launch.memory_limit_mb: the compiler would have to work in this memory"
    return ""


def _program_contradictions(c: RunConfig) -> Iterator[str]:
    """Yield an error message for each key that the chosen program does not read."""
    parts = ("data", "model", "optimizer", "strategy")
    for group in parts:
        name = getattr(c, group).name
        if c.program.is_own and name != "program":
            yield (
                f"{group}={name} with program=own: your program has its own {group}. Leave "
                f"{group}={name} out; program.options.NAME=... passes a value on to the program."
            )
        if not c.program.is_own and name == "program":
            yield f"{group}=program is the part of a program of your own: add program=own."
    if not c.program.is_own:
        return
    yield from _unread(c)
    if c.measures_noise:
        yield (
            "measure.noise_scale=true with program=own: pass a bsweep.NoiseScale to "
            "bsweep.join().noise() in the program instead."
        )
    if not isinstance(c.program, OwnProgramConfig) or (c.local_batch or c.global_batch) is None:
        return
    try:
        c.program.command_of(values_of(c))
    except ConfigError as error:
        yield from error.problems


def _unread(c: RunConfig) -> Iterator[str]:
    """Yield an error message for each key that the user's own program does not read."""
    unread: dict[str, object] = {
        "precision": "auto",
        "channels_last": "auto",
        "compile": False,
        "graph": True,
        "keep_weights": False,
        "resume_from": None,
        "accumulation_steps": 1,
        "evaluate_every_examples": None,
        "average_batchnorm": True,
        "launch.slowdown": None,
        "launch.memory_limit_mb": None,
    }
    if c.checkpoint_every is not None:
        unread["checkpoint_every"] = "auto"
    for key, default in unread.items():
        if (value := operator.attrgetter(key)(c)) != default:
            yield (
                f"{key}={show(value)} with program=own: bsweep does not train here, so "
                f"it cannot see to it. Leave {key} out; program.options.NAME=... passes a value "
                "on to the program."
            )
    for group, name in (("batching", "fixed"), ("allocation", "uniform"), ("compression", "none")):
        if getattr(c, group).name != name:
            yield (
                f"{group}={getattr(c, group).name} with program=own: your program decides about "
                f"this. Leave {group} out."
            )


def _metrics_contradictions(c: RunConfig) -> Iterator[str]:
    """Yield an error message for each key that does not fit the metrics that a program writes."""
    program = c.program
    if not isinstance(program, OwnProgramConfig) or (c.local_batch or c.global_batch) is None:
        return
    given = [key for key, name in asdict(program.fields).items() if name is not None]
    if program.metrics is None:
        if given:
            yield (
                f"program.fields.{given[0]} without program.metrics: say what the program writes, "
                "for example program.metrics=csv:log.csv, or leave it out."
            )
        return
    try:
        program.metrics_of(values_of(c))
    except ConfigError as error:
        yield from error.problems
    if getattr(c.data, "num_train", None) is None:
        yield (
            f"program.metrics={program.metrics} needs the number of training examples: give "
            "data.num_train=50000."
        )
    if "{" not in program.metrics and getattr(c.launch, "parallel", 1) != 1:
        yield (
            f"program.metrics={program.metrics} with launch.parallel: points that run at the same "
            "time would write the same file. Give the program a place of its own for each point, "
            "such as csv:{run_folder}/log.csv, also in its command."
        )


def _codec_contradictions(c: RunConfig) -> Iterator[str]:
    if c.compression.builds and not c.strategy.can.takes_codecs:
        cards = (
            card
            for card in variants("strategy")
            if issubclass(card, StrategyConfig) and card.kind_can.takes_codecs
        )
        *others, last = (name for card in cards for name in names(card))
        yield (
            f"compression={c.compression.name} with strategy={c.strategy.name}: only "
            f"{', '.join(others)} and {last} take a codec.{c.strategy.can.own_compression} Use "
            "compression=none or another strategy."
        )


def _target_contradictions(config: RunConfig) -> Iterator[str]:
    """Yield an error message, with the remedy, if both targets are given, if a target is no valid
    accuracy or loss, or if `stop_at_target` is false without a target.
    """
    given = {key: getattr(config, key) for key in ("target_accuracy", "target_loss")}
    try:
        target = config.target
    except ValueError as error:
        keys = [f"{key}={show(value)}" for key, value in given.items() if value is not None]
        yield f"{' and '.join(keys)}: {error}"
        return
    if target is None and not config.stop_at_target:
        yield (
            "stop_at_target=false without a target: give target_accuracy=0.9 or target_loss=0.5, "
            "or leave stop_at_target out."
        )
