"""The cards of runs' variants, from their settings in a table of runs. In the table, lists are
texts, whole numbers may be floats, and a missing value is null or an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd
import yaml
from pydantic import TypeAdapter, ValidationError

from bsweep.config.capabilities import Capabilities
from bsweep.config.card import Card
from bsweep.config.groups import StrategyConfig
from bsweep.config.parsing import validate
from bsweep.config.run import RunConfig, cards_by_name
from bsweep.config.values import did_you_mean

OWN_CODE = ("own", "program")
"""The variants whose code may do anything in a step."""

PREFIX = "strategy."
"""The beginning of a column with a setting of the strategy."""


def settings_of(
    card: type[Card], values: Mapping[Any, Any] | pd.Series[Any], group: str
) -> dict[str, Any]:
    """Return the settings of a card as its schema has them, from values by dotted key."""
    settings: dict[str, Any] = {}
    for key in fields(card):
        value = values.get(f"{group}.{key.name}")
        if value is None or value == "" or value != value:  # NaN
            value = None
        elif isinstance(value, str) and str(key.type).startswith("tuple"):
            value = tuple(yaml.safe_load(item) for item in value.split(", "))
        elif isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        settings[key.name] = value
    return settings


def settings_of_runs(card: type[Card], runs: pd.DataFrame, group: str) -> list[dict[str, Any]]:
    """Return the settings of each run's card, which is of the given class."""
    columns = [f"{group}.{key.name}" for key in fields(card)]
    rows = runs.reindex(columns=columns).to_dict("records")
    return [settings_of(card, row, group) for row in rows]


def card_of(settings: Mapping[Any, Any] | pd.Series[Any]) -> StrategyConfig | None:
    """Return a run's card of its strategy, from its settings by dotted key; None if they are not
    complete and valid. Unlike `card_like`, it fills in no missing setting.
    """
    name = str(settings.get(f"{PREFIX}name", settings.get("strategy")))
    if (kind := cards_by_name("strategy").get(name)) is None:
        return None
    try:
        values = {**settings_of(kind, settings, "strategy"), "name": name}
        card: Any = TypeAdapter(kind).validate_python(values)
    except ValidationError:
        return None
    return card if isinstance(card, StrategyConfig) else None


def capabilities_of(runs: pd.DataFrame) -> list[Capabilities]:
    """Return for each run what its strategy can do with the run's settings, as far as they are
    known.
    """
    texts, known = strategy_texts(runs), {}
    for text, group in runs.groupby(texts):
        card = card_of(group.iloc[0])
        known[text] = card.can if card else capabilities_of_kind(str(group["strategy"].iloc[0]))
    return [known[text] for text in texts]


def capabilities_of_kind(strategy: str) -> Capabilities:
    """Return what a strategy can do with any settings; nothing if it is unknown."""
    kind: Any = cards_by_name("strategy").get(strategy)
    can: Capabilities = getattr(kind, "kind_can", Capabilities())
    return can


def strategy_texts(runs: pd.DataFrame) -> pd.Series[str]:
    """Return all settings of each run's strategy as one text."""
    columns = [name for name in runs if name == "strategy" or str(name).startswith(PREFIX)]
    texts = [" ".join(map(str, row)) for row in runs[columns].itertuples(index=False)]
    return pd.Series(texts, runs.index)


def card_like(
    group: str,
    name: str,
    runs: pd.DataFrame | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Return the card of a variant. Unlike `card_of`, which takes the settings of one run, it
    has the defaults of settings that are not known.

    Args:
        group: The group, such as `compression`.
        name: The name of the variant.
        runs: Runs of a study. If all with the variant share a setting, the card has it, too.
        given: Settings that a user has given. All others have their defaults.

    Raises:
        ValueError: If there is no such variant, bsweep does not know its code, or a value is wrong.
    """
    kind, settings = class_of(group, name), {"name": name}
    if runs is not None and group in runs:
        first, *others = settings_of_runs(kind, runs[runs[group] == name], group) or [{}]
        settings |= {
            key: value
            for key, value in first.items()
            if value is not None and all(run[key] == value for run in others)
        }
    values = {**asdict(RunConfig()), group: {**settings, **(given or {})}}
    return getattr(validate(values), group)


def class_of(group: str, name: str) -> type[Card]:
    """Return the class of a variant's card.

    Raises:
        ValueError: If there is no such variant, or bsweep does not know its code.
    """
    known = [name for name in cards_by_name(group) if name not in OWN_CODE]
    if name in OWN_CODE:
        raise ValueError(
            f"{group}={name} has code that bsweep does not know, so it is not simulated. Choose "
            f"another {group}: {', '.join(known)}."
        )
    if (card := cards_by_name(group).get(name)) is None:
        near = did_you_mean(name, known)
        raise ValueError(f"{group}={name} is unknown.{near} Known: {', '.join(known)}.")
    return card
