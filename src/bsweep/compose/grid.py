"""The composition of a grid's points: the same points as Hydra would compose, mostly in less time.

Hydra takes tens of milliseconds to compose a point. Points that differ in plain values of keys only
form a family, and of a uniform family Hydra composes one point. The other points are copies of that
one with their own values. Each value is checked once.
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
from bsweep.config.contradictions import refuse_contradictions
from bsweep.config.parsing import validate
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError

Compose = Callable[[list[str]], DictConfig]

# A reference to another key, or a resolver's call. Values from the environment are the same for all
# points, so they do not count.
_REFERENCE = re.compile(r"\$\{(?!oc\.(env|decode):)")
# Most axes have whole numbers. Hydra's parser would take longer for one than everything else that a
# point needs.
_WHOLE_NUMBER = re.compile(r"([a-z_]+(?:\.[a-z_]+)?)=(0|[1-9][0-9]{0,17})")
_TOP_KEYS = frozenset(one.name for one in fields(RunConfig)) - set(GROUPS)


def configs(compose: Compose, points: Sequence[Sequence[str]]) -> list[RunConfig]:
    """Return the configuration of each point, composed from the overrides of that point.

    Args:
        compose: Has Hydra compose one point from its overrides.
        points: The overrides of each point, with one value for each key.

    Raises:
        ConfigError: If any point is wrong. It lists the problems of all points.
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
    """Return the checked configuration of a point that Hydra composed, with the batches and steps
    that its allocation chooses.
    """
    return _filled_in(validate(values_of(composed)))


def values_of(composed: DictConfig) -> dict[str, Any]:
    """Return the values of a configuration that Hydra composed, without the keys of Hydra itself.

    Raises:
        ConfigError: If a key has no value.
    """
    try:
        container: Any = OmegaConf.to_container(
            without_hydra(composed), resolve=True, throw_on_missing=True
        )
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(f"{key}: no value given. Give {key}=...") from None
    return dict(container)


class _Family:
    """A group of points that differ only in keys which bsweep can check one by one.

    If the family is uniform, Hydra composes one of its points, and `config` derives the others.
    Otherwise Hydra composes each of them.

    Args:
        composed: One point of the family, as Hydra composed it.
        overrides: The family's plain keys, and its overrides of other kinds in full.
    """

    def __init__(self, composed: DictConfig, overrides: Sequence[str]) -> None:
        self._values = values_of(composed)
        keys = {text for text in overrides if _is_plain_key(text)}
        others = [text for text in overrides if text not in keys]
        unresolved = json.dumps(OmegaConf.to_container(without_hydra(composed)), default=str)
        self.is_uniform = (
            not _REFERENCE.search(unresolved)
            and all(_is_plain(_at(self._values, key)) for key in keys)
            and not any(_concerns(other, key) for other in others for key in keys)
        )
        self._base = functools.cache(lambda: validate(self._values))
        self._checked = functools.cache(self._check)
        self._card = functools.cache(self._changed_card)

    def config(self, keys: Sequence[str], point: Sequence[str]) -> RunConfig:
        """Return the configuration of a point: a copy of the point that Hydra composed, with the
        values of the given overrides.

        Args:
            keys: The plain keys, and the overrides of other kinds in full.
            point: The overrides of the point, in the same order.

        Raises:
            ConfigError: If a value is wrong or contradicts another.
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
        """Return the card of a group, such as `optimizer`, with the values of some of its keys
        changed.

        Points with the same values share one object, so that they share its cached properties.
        """
        values = {name: self._checked(f"{group}.{name}", text) for name, text in changed}
        return replace(getattr(self._base(), group), **values)

    def _check(self, key: str, text: str) -> Any:
        """Return the value of an override KEY=VALUE, checked and converted to the type that the
        schema demands.
        """
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
    return allocation.fill_in(config.resolved())


def without_hydra(composed: DictConfig) -> DictConfig:
    """Return a composed point without the settings of Hydra itself."""
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])


@functools.cache
def _given(text: str) -> tuple[str, Any] | None:
    """Return the key and the value of an override KEY=VALUE with a simple value, such as a number;
    None for other overrides.

    The key must be plain: its value can be checked alone, without other keys.
    """
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
    """Return True if an override may set or delete the given key: it names the key or a key below
    it, or it gives the key's group a mapping.

    If the key is set by a plain override, too, the order of the overrides matters then.
    """
    other, _, value = override.lstrip("+~").partition("=")
    other = other.split("@")[0]
    return (
        other == key
        or other.startswith(f"{key}.")
        or (value.startswith("{") and other == key.rpartition(".")[0])
    )


# Creating a parser is slow: it inspects the signatures of all functions of the grammar.
_parser = functools.cache(OverridesParser.create)


def _is_plain_key(key: str) -> bool:
    """Return True if a key is plain: its value can be checked without other keys and changes no
    other key.
    """
    group, _, name = key.partition(".")
    return key in _TOP_KEYS or (group in GROUPS and name.isidentifier() and name != "name")


def _is_plain(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(one is None or isinstance(one, str | int | float) for one in values)


def _at(values: dict[str, Any], key: str) -> object:
    """Return the value of a dotted key, such as `optimizer.lr`, in nested mappings; an empty
    mapping if the key is missing.
    """
    group, _, name = key.rpartition(".")
    return (values.get(group, {}) if group else values).get(name, {})
