"""The composition of a grid's points: the same points as Hydra would compose, mostly in less time.

Hydra takes a tenth of a second or two to compose a point. Points that differ in plain values of
keys only form a family, and of a uniform family Hydra composes one point. The other points are
copies of that one with their own values, each of which is checked once.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from bsweep import allocation
from bsweep.compose.words import Setting, is_simple
from bsweep.config.parsing import validate
from bsweep.config.rules import refuse_contradictions
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError

Compose = Callable[[list[str]], DictConfig]

# A reference to another key, or a resolver's call. Values from the environment are the same for all
# points, so they do not count.
_REFERENCE = re.compile(r"\$\{(?!oc\.(env|decode):)")


def configs(compose: Compose, points: Iterable[Sequence[Setting]]) -> list[RunConfig]:
    """Return the configuration of each point, composed from the overrides of that point.

    Args:
        compose: Has Hydra compose one point from its overrides.
        points: The settings of each point, with one value for each key.

    Raises:
        ConfigError: If any point is wrong. It lists the problems of all points.
    """
    families: dict[tuple[str, ...], _Family] = {}
    checked: list[RunConfig] = []
    problems: dict[str, None] = {}  # each once, in order
    for point in points:
        keys = tuple([setting.key or setting.text for setting in point])
        try:
            if keys not in families:
                families[keys] = _Family(compose([each.text for each in point]), point)
            family = families[keys]
            checked.append(
                family.config(point)
                if family.is_uniform
                else to_config(compose([each.text for each in point]))
            )
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(*problems)
    return checked


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
        point: The settings of this point.
    """

    def __init__(self, composed: DictConfig, point: Sequence[Setting]) -> None:
        self._values = values_of(composed)
        keys = {setting.key for setting in point if setting.key}
        others = [setting.text for setting in point if not setting.key]
        unresolved = json.dumps(OmegaConf.to_container(without_hydra(composed)), default=str)
        self.is_uniform = (
            not _REFERENCE.search(unresolved)
            and all(is_simple(_at(self._values, key)) for key in keys)
            and not any(_concerns(other, key) for other in others for key in keys)
        )
        self._base = functools.cache(lambda: validate(self._values))
        self._checked: dict[tuple[str, ...], Any] = {}  # values and cards, by their settings

    def config(self, point: Sequence[Setting]) -> RunConfig:
        """Return the configuration of a point: a copy of the point that Hydra composed, with the
        values of the given settings.

        Raises:
            ConfigError: If a value is wrong or contradicts another.
        """
        changes: dict[str, dict[str, Setting]] = {}
        for setting in point:
            if setting.key:
                part, _, name = setting.key.partition(".")
                changes.setdefault(part, {})[name] = setting
        parts = {part: self._part(part, changed) for part, changed in changes.items()}
        return _filled_in(replace(self._base(), **parts))

    def _part(self, part: str, changed: Mapping[str, Setting]) -> Any:
        """Return the value of a key that is in no group, such as `seed`, or the card of a group,
        such as `optimizer`, with the values of some of its keys changed.

        Points with the same values share one object. A card is validated as a whole, because a key
        may decide the default of another one.
        """
        texts = tuple(setting.text for setting in changed.values())
        if texts not in self._checked:
            values = {name: setting.value for name, setting in changed.items()}
            value = {**self._values[part], **values} if part in GROUPS else values[""]
            self._checked[texts] = getattr(validate({**self._values, part: value}), part)
        return self._checked[texts]


def _filled_in(config: RunConfig) -> RunConfig:
    """Return a point without contradictions, with the fingerprints of the files that it names and
    the batches and steps that its allocation chooses.

    Raises:
        ConfigError: If values contradict each other, or a file or a probe cannot be used.
    """
    refuse_contradictions(config)
    return allocation.fill_in(config.with_fingerprints())


def without_hydra(composed: DictConfig) -> DictConfig:
    """Return a composed point without the settings of Hydra itself."""
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])


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


def _at(values: dict[str, Any], key: str) -> object:
    """Return the value of a dotted key, such as `optimizer.lr`, in nested mappings; an empty
    mapping if the key is missing.
    """
    group, _, name = key.rpartition(".")
    return (values.get(group, {}) if group else values).get(name, {})
