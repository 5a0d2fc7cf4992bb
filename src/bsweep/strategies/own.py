"""The construction and the checks of the user's own strategy, which is the object that
`target(config, strategy, world, paths, **options)` returns. The target may be a class.
"""

from __future__ import annotations

from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.strategies import OwnStrategyConfig
from bsweep.config.values import ConfigError
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths
from bsweep.strategies.base import Rounds, Strategy, Summing
from bsweep.strategies.groups import TorchStrategy


def build(
    config: RunConfig, strategy: OwnStrategyConfig, world: World, paths: RunPaths
) -> Strategy:
    built = user_code.call(strategy, config, strategy, world, paths)
    _refuse(type(built), config, strategy)
    assert isinstance(built, Strategy)
    return built


def check_own_strategy(config: RunConfig) -> None:
    """Check before any worker starts that the user's own strategy can be loaded and suits the run's
    configuration.

    If `strategy.target` is a function, its result is checked later, in the workers.

    Raises:
        ConfigError: If the target cannot be the run's strategy.
    """
    strategy = config.strategy
    assert isinstance(strategy, OwnStrategyConfig), strategy
    target = user_code.load_target(strategy)
    if isinstance(target, type):
        _refuse(target, config, strategy)


def _refuse(kind: type, config: RunConfig, strategy: OwnStrategyConfig) -> None:
    target, name = f"strategy.target={strategy.target}", kind.__name__
    if not issubclass(kind, Strategy):
        raise ConfigError(f"{target}: {name} is not a bsweep.strategies.Strategy.")
    if missing := ", ".join(sorted(getattr(kind, "__abstractmethods__", ()))):
        raise ConfigError(
            f"{target}: {name} lacks {missing}: write what is missing, or inherit "
            "bsweep.strategies.groups.TorchStrategy, which has all but step."
        )
    if not config.launch.starts_processes and issubclass(kind, TorchStrategy):
        raise ConfigError(
            f"launch={config.launch.name} with {target}: {name} exchanges over torch.distributed, "
            "which needs processes that torchrun starts. Use launch=torchrun or, with one worker, "
            "strategy=single."
        )
    if strategy.sync_every > 1 and not issubclass(kind, Rounds):
        raise ConfigError(
            f"strategy.sync_every={strategy.sync_every} with {target}: {name} has no rounds of "
            "several steps. Inherit bsweep.strategies.Rounds, or use strategy.sync_every=1."
        )
    if config.compression.builds and not issubclass(kind, Summing):
        raise ConfigError(
            f"compression={config.compression.name} with {target}: {name} takes no codec. Inherit "
            "bsweep.strategies.Summing, or use compression=none."
        )
