"""Functions that turn the plain values of a configuration into a checked `RunConfig`, or raise an
error with a message for each invalid value. If there are none, the error has a message for each
contradiction.
"""

from __future__ import annotations

import functools
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bsweep.config.rules import refuse_contradictions
from bsweep.config.run import GROUPS, RunConfig, cards_by_name, hints
from bsweep.config.values import ConfigError, did_you_mean, shortened, show

_ADAPTER: TypeAdapter[RunConfig] = TypeAdapter(RunConfig)


def parse(composed: Mapping[str, Any]) -> RunConfig:
    """Return the checked `RunConfig` that a mapping of keys to plain values describes.

    Raises:
        ConfigError: If a key is unknown or missing, a value has the wrong type or range, or values
            contradict each other.
    """
    config = validate(composed)
    refuse_contradictions(config)
    return config


def validate(composed: Mapping[str, Any]) -> RunConfig:
    """Return the `RunConfig` that a mapping of keys to plain values describes, after a check of
    each key by itself. Unlike `parse`, it accepts values that contradict each other. Keys that are
    missing have their defaults; groups, and keys without a default, must not be missing.

    Raises:
        ConfigError: If a key is unknown or missing, or a value has the wrong type or range.
    """
    if missing := [group for group in GROUPS if group not in composed]:
        raise ConfigError(*map(_no_value, missing))
    try:
        # Strict JSON rules: 3.5 is no int and "yes" no bool, but a list may fill a tuple.
        return _ADAPTER.validate_json(json.dumps(dict(composed)), strict=True)
    except ValidationError as error:
        raise ConfigError(*(_explain(problem) for problem in error.errors())) from None
    except TypeError as error:  # for example a date, a set, or a list as a key
        raise ConfigError(
            f"a value is of a type that JSON lacks ({error}): use texts, numbers, true, false, "
            "null, lists and mappings."
        ) from None


def conf_dir() -> Path:
    """Return the path of `conf/`, the folder with experiments, presets and tables of devices and
    links: inside an installed bsweep, or next to `src/` in a checkout.
    """
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def variants_with(key: str) -> list[str]:
    """Return the names of the variants that have the given dotted key. For example, only
    parameter_server has `strategy.num_servers`.
    """
    group, _, key_of_group = key.partition(".")
    return [
        name
        for name, card in cards_by_name(group).items()
        if key_of_group in {field.name for field in fields(card)}
    ]


def unknown_key(key: str) -> str:
    """Return the error message for a key that the chosen variants do not have."""
    owners = variants_with(key)
    if owners:
        group = key.partition(".")[0]
        return (
            f"{key}: only {group}={' or '.join(owners)} has this key. Choose that, or leave the "
            f"key out. Sweep over other values of {group} in a command of their own."
        )
    return f"{shortened(key)}: unknown key.{_meant(key)}"


def _meant(key: str) -> str:
    """Return ` Did you mean 'x'?` if a known key has the same last part, or one, in the same group
    at best, is similar; else an empty text.
    """
    group, _, name = key.rpartition(".")
    within = [known for known in known_keys() if group and known.startswith(f"{group}.")]
    alike = [known for known in known_keys() if known.partition(".")[2] == name]
    near = did_you_mean(key, within) or did_you_mean(key, known_keys())
    return f" Did you mean '{alike[0]}'?" if alike else near


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Return the keys that the schema declares, with the group as in `model.name`, to suggest one
    for a mistyped key.
    """
    return tuple(sorted(set(_keys(RunConfig))))


_NAME_FORM = "letters a to z, digits, '.', '_', '+' or '-', the first a letter or digit"
_FORMS = {
    "launch.network_interface": "a name such as eth0",
    "launch.environment": "names such as WANDB_API_KEY",
    "program.metrics": "csv:FILE or jsonl:FILE",
}


def _explain(problem: Any) -> str:
    """Return the message for one error that pydantic found, for most errors in the form `key=value:
    problem`. The key leaves out the variant's name that pydantic puts into it.
    """
    kind, value = problem["type"], problem["input"]
    path = [str(part) for part in problem["loc"]]
    if len(path) > 1 and len(cards_by_name(path[0])) > 1:
        path.pop(1)  # pydantic puts the variant's name after the group
    key = ".".join(path)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(key)
    if kind in ("missing", "missing_argument", "union_tag_not_found"):
        return _no_value(key)
    if kind == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"]
        return f"{key}={shortened(show(value.get('name')))}: unknown. Known: {known}."
    if kind == "json_invalid":
        return "a value holds bytes that are not UTF-8 text: give other names."
    if kind == "value_error":
        return f"{key}={shortened(show(value))}: {problem['ctx']['error']}."
    if kind == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return (
            f"{key}={shortened(value)}: unknown.{did_you_mean(value, known)} Known: "
            f"{problem['ctx']['expected']}."
        )
    if kind == "string_pattern_mismatch":
        return (
            f"{key}={shortened(value)}: it has the wrong form. Use "
            f"{_FORMS.get(key.rstrip('.0123456789'), _NAME_FORM)}."
        )
    reason = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
    several = f" For several values, type {key}=1,2,4." if kind.startswith("int_") else ""
    return f"{key}={shortened(show(value))}: {reason}.{several}"


def _no_value(key: str) -> str:
    choices = ", ".join(cards_by_name(key))
    return f"{key}: no value given." + (f" Known: {choices}." if choices else "")


def _keys(schema: type, prefix: str = "") -> Iterator[str]:
    for field in fields(schema):
        yield f"{prefix}{field.name}"
        hint = hints(schema)[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for kind in kinds:
            if is_dataclass(kind) and isinstance(kind, type):
                yield from _keys(kind, f"{prefix}{field.name}.")
