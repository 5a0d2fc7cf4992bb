"""What keeps points from being run here: asked of all points of a sweep before the first begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bsweep import allocation, data, models, runlog
from bsweep.config import ConfigError, RunConfig, own, refuse_vain_evaluations
from bsweep.core.ranks import inside_horovodrun
from bsweep.launch import check as check_launch
from bsweep.launch import preflight
from bsweep.runlog import RunPaths
from bsweep.strategies.sharding import check_sharding
from bsweep.study import branching
from bsweep.study.attempts import paths_of, result_of
from bsweep.trackers import check_trackers


def check(config: RunConfig) -> list[str]:
    """What is doubtful about a point here and now; its record will carry it.

    Raises:
        ConfigError: the point cannot run: the data, the machine or Horovod do not allow it.
    """
    try:
        warnings = check_launch(config)
        if config.resume_from and not (runlog.checkpoints(paths_of(config)) or result_of(config)):
            branching.check_branch(config)  # until the run has what it goes on from
        check_trackers(config.trackers)
        info = data.prepare(config.data)
        models.check(config, info.num_classes, info.shape)
        _try_own(config, info)
        check_sharding(config, info.num_classes, info.shape)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config.examples_per_step > info.num_train:
        given = config.allocation.local_batches
        batches = (
            f"allocation.local_batches={list(given)}"
            if given
            else f"local_batch={config.examples_per_pass} x num_workers={config.num_workers}"
        )
        raise ConfigError(
            f"global batch {config.examples_per_step} ({batches} x "
            f"accumulation_steps={config.accumulation_steps}) is larger than the training set of "
            f"{info.num_train} examples: choose a smaller batch."
        )
    if config.strategy.can.takes_local_steps:
        each = (
            batch * steps
            for batch, steps in zip(config.worker_batches, config.local_steps, strict=True)
        )
        if (per_round := sum(each)) > info.num_train:
            warnings.append(
                f"a round of {per_round} examples is longer than an epoch of {info.num_train}, at "
                "whose end workers synchronise in any case: local steps "
                f"{list(config.local_steps)} are never reached"
            )
    if problems := list(config.batching.problems_with_data(config, info.num_train)):
        raise ConfigError(*problems)
    refuse_vain_evaluations(config, info.num_train)
    return [*warnings, *allocation.doubts(config)]


def _try_own(config: RunConfig, info: data.DataInfo) -> None:
    """ValueError if an optimizer, batching policy or strategy of the user's own is none, or does
    not fit the run.
    """
    parts = own.cards(config)
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


def check_all(configs: Iterable[RunConfig]) -> list[list[str]]:
    """Return what is doubtful about each point, see `check`.

    Raises:
        ConfigError: lists what keeps any of them from being run here.
    """
    doubts: list[list[str]] = []
    problems: dict[str, None] = {}  # each once, in order
    for config in configs:
        try:
            doubts.append(check(config))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(*problems)
    return doubts


def unready_hosts(configs: Iterable[RunConfig]) -> list[str]:
    """Return what keeps hosts from running those points that are not done."""
    if inside_horovodrun():
        return []
    try:
        return preflight.problems(config for config in configs if not result_of(config))
    except OSError as error:
        return [f"results_dir: {error}."]


def refuse_newer(study_dir: Path) -> None:
    """ConfigError if a newer bsweep wrote to the study: this one would not know its runs, and
    repeat them.
    """
    for summary in study_dir.glob("*/summary.json"):
        try:
            runlog.read_summary(RunPaths(summary.parent))
        except runlog.Damaged:
            pass  # such a run is repeated
        except ValueError as error:
            raise ConfigError(str(error)) from None
