"""The checks that find out, before the first point of a sweep begins, whether all points of the
sweep can run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from bsweep import allocation, data, models
from bsweep.config import user_code
from bsweep.config.rules import problems_with_data, warnings_of
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.launch import check_machine
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.files import RunPaths
from bsweep.strategies.sharding import check_sharding
from bsweep.study import branching
from bsweep.study.states import result_of
from bsweep.trackers import check_trackers


def check_point(config: RunConfig, *, begins_anew: bool = False) -> list[str]:
    """Check that a point can run on this machine, and return warnings about it, which its run will
    record.

    Args:
        config: The point.
        begins_anew: True if the files of its earlier run are set aside first.

    Raises:
        ConfigError: If a check finds that the point cannot run, for example because of its data,
            this machine or the user's own code.
    """
    user_code.check(config)
    try:
        warnings = [*warnings_of(config), *check_machine(config)]
        if config.resume_from and (
            begins_anew or not (checkpoints(RunPaths(config.folder)) or result_of(config))
        ):
            branching.check_branch(config)  # the run has no copy of its source
        check_trackers(config.trackers)
        if config.program.is_own:
            return warnings
        info = data.prepare(config.data)
        models.check_model(config, info.num_classes, info.shape)
        models.try_model(config, info)
        _try_own(config, info)
        check_sharding(config, info.num_classes, info.shape)
        warnings += info.notes
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if problems := [*problems_with_data(config, info.num_train)]:
        raise ConfigError(*problems)
    if config.strategy.can.takes_local_steps and config.examples_per_round > info.num_train:
        warnings.append(
            f"a round of {config.examples_per_round} examples is longer than an epoch of "
            f"{info.num_train}, and workers synchronise at the end of each epoch: they never take "
            f"all local steps {list(config.local_steps)}"
        )
    return [*warnings, *allocation.warnings(config)]


def _try_own(config: RunConfig, info: data.DataInfo) -> None:
    """Raise ValueError if a point cannot use the optimizer, the policy or the strategy that the
    user wrote.

    Either that code does not have the interface of its kind, or it does not fit the run.
    """
    parts = user_code.cards(config)
    if "optimizer" in parts:
        from bsweep.numerics import optim  # imports torch, as the user's code does
        from bsweep.numerics.vector import Vector

        optim.build(
            config.optimizer, Vector(models.outlined(config.model, info.num_classes, info.shape))
        )
    if "batching" in parts:
        from bsweep import batching

        batching.build(config)
    if "strategy" in parts:
        from bsweep.strategies.own import check_own_strategy

        check_own_strategy(config)


def check_all(
    configs: Iterable[RunConfig], repeated: Collection[str] = ()
) -> dict[Path, list[str]]:
    """Check that all points of a sweep can run, and return the warnings about each point by its
    run folder. See `check_point`; the points with the ids in `repeated` begin anew.

    Raises:
        ConfigError: If any point cannot run here. It lists what was found of each such point.
    """
    warnings: dict[Path, list[str]] = {}
    problems: dict[str, None] = {}  # each once, in order
    for config in configs:
        try:
            is_repeated = config.run_id in repeated
            warnings[config.folder] = check_point(config, begins_anew=is_repeated)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(*problems)
    return warnings
