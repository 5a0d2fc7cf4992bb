"""The source in which Hydra finds the configuration of a run and those of all variants. They are
made from the fields of `RunConfig` and of the cards. The YAML files in `conf/` add experiments and
presets.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from bsweep.config.card import Card, Schema
from bsweep.config.groups import OptimizerConfig
from bsweep.config.run import GROUPS, RunConfig, cards_by_name

CONFIG = "config"
"""The name of the configuration with every key of a run."""

_Names = list[str]


def register() -> None:
    """Let Hydra look for configurations in this source, too."""
    Plugins.instance().register(CardSource)
    Plugins.instance().register(CardPath)


class CardPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("bsweep", "cards://")


class CardSource(ConfigSource):
    @staticmethod
    def scheme() -> str:
        return "cards"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        values = (
            _values_of_card(cards_by_name(group)[name], group, name) if group else _values_of_run()
        )
        header = {"package": "_global_" if group else None}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(values), header)

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", *GROUPS)

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return name in cards_by_name(group) if group else name == CONFIG

    def list(self, config_path: str, results_filter: ObjectType | None) -> _Names:
        group = config_path.strip("/")
        configs = sorted(cards_by_name(group)) if group else [CONFIG]
        groups = [] if group else sorted(GROUPS)
        return [
            *(groups if results_filter != ObjectType.CONFIG else []),
            *(configs if results_filter != ObjectType.GROUP else []),
        ]


def _values_of_run() -> dict[str, Any]:
    """Return the default of every key that is in no group, and the default option of each group."""
    options = {key.name: key.default.name for key in fields(RunConfig) if key.name in GROUPS}
    # Hydra lets an option bring along options of groups before its own: strategies bring launchers,
    # and a file of the user's may bring more.
    first = ("data", "model", "optimizer", "launch")
    groups = [*first, *(group for group in options if group not in first)]
    return {
        "defaults": [
            "_self_",
            *({group: options[group]} for group in groups),
            {"experiment": None},
            {"override hydra/hydra_logging": "none"},
            {"override hydra/sweeper": "bsweep"},
        ],
        **_defaults(RunConfig, GROUPS),
        # For a file of the user's, which need not name the keys that all optimizers have.
        "optimizer": _defaults(OptimizerConfig, ("lr", "weight_decay")),
        "num_workers": f"${{oc.decode:${{oc.env:HOROVOD_SIZE,{RunConfig.num_workers}}}}}",
    }


def _values_of_card(card: type[Card], group: str, name: str) -> dict[str, Any]:
    """Return the default of every key of a card, with what its variant brings along."""
    options = [{f"override /{key}": card.brings[key]} for key in card.brings if key in GROUPS]
    values = {key: value for key, value in card.brings.items() if key not in GROUPS}
    keys = {"name": name, **_defaults(card, ("name", *card.internal))}
    return {"defaults": options, **values, group: keys}


def _defaults(schema: type[Schema], without: Collection[str]) -> dict[str, Any]:
    """Return the defaults of a schema's keys as plain values; `???` for a key that has none."""
    values: dict[str, Any] = {}
    for key in fields(schema):
        if key.name not in without:
            default = key.default if key.default_factory is MISSING else key.default_factory()
            values[key.name] = "???" if default is MISSING else default
    plain: dict[str, Any] = json.loads(json.dumps(values, default=vars))
    return plain
