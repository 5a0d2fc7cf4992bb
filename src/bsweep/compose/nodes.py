"""The configurations that Hydra composes points from, made from the fields of `RunConfig` and of
the cards. The YAML files in `conf/` add experiments and presets.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from hydra.core.config_store import ConfigStore

from bsweep.config.card import Card, Schema
from bsweep.config.run import GROUPS, RunConfig, names, variants

CONFIG = "config"
"""The name of the configuration with every key of a run."""


@functools.cache
def store() -> None:
    """Give Hydra the configuration of a run, and that of each variant of each group."""
    hydra = ConfigStore.instance()
    hydra.store(CONFIG, _node_of_run())
    for group in GROUPS:
        for card in variants(group):
            for name in names(card):
                hydra.store(name, _node_of_card(card, group, name), group, package="_global_")


def _node_of_run() -> dict[str, Any]:
    """Return the default of every key that is in no group, and the default option of each group."""
    options = {key.name: key.default.name for key in fields(RunConfig) if key.name in GROUPS}
    # Hydra lets an option bring along options of groups before its own: strategies bring launchers.
    groups = sorted(options, key=lambda group: group != "launch")
    return {
        "defaults": [
            "_self_",
            *({group: options[group]} for group in groups),
            {"experiment": None},
            {"override hydra/hydra_logging": "none"},
            {"override hydra/sweeper": "bsweep"},
        ],
        **_values(RunConfig, GROUPS),
        "num_workers": f"${{oc.decode:${{oc.env:HOROVOD_SIZE,{RunConfig.num_workers}}}}}",
    }


def _node_of_card(card: type[Card], group: str, name: str) -> dict[str, Any]:
    """Return the default of every key of a card, with what its variant brings along."""
    options = [{f"override /{key}": card.brings[key]} for key in card.brings if key in GROUPS]
    values = {key: value for key, value in card.brings.items() if key not in GROUPS}
    keys = {"name": name, **_values(card, ("name", *card.internal))}
    return {"defaults": options, **values, group: keys}


def _values(schema: type[Schema], without: Collection[str]) -> dict[str, Any]:
    """Return the defaults of a schema's keys as plain values; `???` for a key that has none."""
    values = {
        key.name: "???" if key.default is MISSING else key.default
        for key in fields(schema)
        if key.name not in without
    }
    plain: dict[str, Any] = json.loads(json.dumps(values, default=vars))
    return plain
