"""The points of a grid, as Hydra composes them, in a small part of its time.

Hydra takes tens of milliseconds to compose a point. So it composes one of each family: of points
that differ by plain values of keys alone. The others are that one with their values, each of which
is checked once.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from bsweep import allocation
from bsweep.config import GROUPS, ConfigError, RunConfig, own, refuse_contradictions, validate

Compose = Callable[[list[str]], DictConfig]

# A value that is another key's, or that a resolver makes of one; the environment's stays the same.
_REFERENCE = re.compile(r"\$\{(?!oc\.(env|decode):)")
# What most axes give. Hydra's grammar would take longer to read it than the point takes in all
# else.
_WHOLE_NUMBER = re.compile(r"([a-z_]+(?:\.[a-z_]+)?)=(0|[1-9][0-9]{0,17})")
_TOP_KEYS = frozenset(one.name for one in fields(RunConfig)) - set(GROUPS)


def configs(compose: Compose, points: Sequence[Sequence[str]]) -> list[RunConfig]:
    """The configurations of points.

    Args:
        compose: Hydra's composition of a point.
        points: The overrides of each, with one value a key.

    Raises:
        ConfigError: lists what is wrong with any of them.
    """
    families: dict[tuple[str, ...], _Family] = {}
    found: list[RunConfig] = []
    problems: dict[str, None] = {}  # each once, in order
    for point in points:
        keys = tuple([given[0] if (given := _given(text)) else text for text in point])
        try:
            if keys not in families:
                families[keys] = _Family(compose(list(point)), keys)
            family = families[keys]
            found.append(
                family.config(keys, point) if family.is_uniform else to_config(compose(list(point)))
            )
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(*problems)
    return found


def to_config(composed: DictConfig) -> RunConfig:
    """The point that Hydra composed, checked, and with what its allocation gives each worker."""
    return _filled_in(validate(values_of(composed)))


def values_of(composed: DictConfig) -> dict[str, Any]:
    """The keys that Hydra composed, without its own.

    Raises:
        ConfigError: one has no value.
    """
    try:
        container: Any = OmegaConf.to_container(
            _without_hydra(composed), resolve=True, throw_on_missing=True
        )
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(f"{key}: no value given. Give {key}=...") from None
    return dict(container)


class _Family:
    """Points whose overrides differ by the values of plain keys alone.

    Args:
        composed: One of them.
        overrides: Plain keys, and whole overrides of other kinds.
    """

    def __init__(self, composed: DictConfig, overrides: Sequence[str]) -> None:
        self._values = values_of(composed)
        keys = {text for text in overrides if _is_plain_key(text)}
        others = [text for text in overrides if text not in keys]
        unresolved = json.dumps(OmegaConf.to_container(_without_hydra(composed)), default=str)
        self.is_uniform = (
            not _REFERENCE.search(unresolved)
            and all(_is_plain(_at(self._values, key)) for key in keys)
            and not any(_concerns(other, key) for other in others for key in keys)
        )
        self._base = functools.cache(lambda: validate(self._values))
        self._checked = functools.cache(self._check)
        self._card = functools.cache(self._changed_card)

    def config(self, keys: Sequence[str], point: Sequence[str]) -> RunConfig:
        """That of a point: the first one's with its own values. ConfigError for one that cannot
        be.
        """
        changes: dict[str, dict[str, str]] = {}
        for key, text in zip(keys, point, strict=True):
            if key is not text:
                group, _, name = key.rpartition(".")
                changes.setdefault(group, {})[name] = text
        top = {name: self._checked(name, text) for name, text in changes.pop("", {}).items()}
        cards = {
            group: self._card(group, tuple(changed.items())) for group, changed in changes.items()
        }
        return _filled_in(replace(self._base(), **top, **cards))

    def _changed_card(self, group: str, changed: tuple[tuple[str, str], ...]) -> Any:
        """One object for all points that have it, which keeps what it knows of itself."""
        values = {name: self._checked(f"{group}.{name}", text) for name, text in changed}
        return replace(getattr(self._base(), group), **values)

    def _check(self, key: str, text: str) -> Any:
        """The value of an override as the schema has it."""
        given = _given(text)
        assert given is not None  # else the text would be the key
        group, _, name = key.rpartition(".")
        changed = {name: given[1]}
        config = validate(
            {**self._values, **({group: {**self._values[group], **changed}} if group else changed)}
        )
        return getattr(getattr(config, group) if group else config, name)


def _filled_in(config: RunConfig) -> RunConfig:
    refuse_contradictions(config)
    return allocation.fill_in(own.resolve(config))


def _without_hydra(composed: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])


@functools.cache
def _given(text: str) -> tuple[str, Any] | None:
    """The key of an override that gives one a plain value, and the value; None of others."""
    if whole := _WHOLE_NUMBER.fullmatch(text):
        return (whole[1], int(whole[2])) if _is_plain_key(whole[1]) else None
    override = _parser().parse_override(text)
    key, value = override.key_or_group, override.value()
    is_given = (
        override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD) and override.package is None
    )
    is_plain = is_given and "${" not in text and _is_plain_key(key) and _is_plain(value)
    return (key, value) if is_plain else None


def _concerns(override: str, key: str) -> bool:
    """Whether an override of another kind gives or takes a plain key's value, too, for its order
    would matter then.
    """
    other, _, value = override.lstrip("+~").partition("=")
    other = other.split("@")[0]
    return (
        other == key
        or other.startswith(f"{key}.")
        or (value.startswith("{") and other == key.rpartition(".")[0])
    )


# It looks at the signatures of all functions of the grammar.
_parser = functools.cache(OverridesParser.create)


def _is_plain_key(key: str) -> bool:
    """Whether a key's value is checked whatever the others are, and shapes no other."""
    group, _, name = key.partition(".")
    return key in _TOP_KEYS or (group in GROUPS and name.isidentifier() and name != "name")


def _is_plain(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(one is None or isinstance(one, str | int | float) for one in values)


def _at(values: dict[str, Any], key: str) -> object:
    """What a dotted key stands for; a mapping, which is no plain value, where there is none."""
    group, _, name = key.rpartition(".")
    return (values.get(group, {}) if group else values).get(name, {})
