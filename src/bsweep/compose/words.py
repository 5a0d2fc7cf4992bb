"""The preparation of typed arguments for Hydra, the early refusal of wrong ones, and plain words
for Hydra's errors.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString, Transformer
from hydra.errors import HydraException
from omegaconf import DictConfig

from bsweep.config.parsing import known_keys, unknown_key
from bsweep.config.run import GROUPS, RunConfig
from bsweep.config.values import ConfigError, did_you_mean, shortened
from bsweep.core.whole_files import is_full

MOST_POINTS = 1_000_000  # in one sweep, which plans all points before it starts one
_TOP_KEYS = frozenset(field.name for field in fields(RunConfig)) - set(GROUPS)
_FIRST_PARTS = {key.partition(".")[0] for key in known_keys()}
# Keys by which Hydra runs jobs, in place of bsweep: all but those that name axes or folders.
_HYDRAS_OWN = re.compile(r"hydra(?![./](sweeper\.params|searchpath)\b|\w)")
_GRAMMAR = re.compile(r"""["'\\$(){}]""")  # values with these must be quoted by the user


@dataclass(frozen=True)
class Words:
    """The typed arguments of a command."""

    flags: argparse.Namespace
    """The flags of Hydra that bsweep passes on, such as `help`, and the command's own switches."""

    overrides: list[str]
    """The overrides, in a form that Hydra accepts."""

    arranged: list[str]
    """All arguments as Hydra needs them: flags first, then the overrides."""

    @property
    def only_show(self) -> bool:
        """True if a flag such as --help prints something instead of running points."""
        shown = ("help", "hydra_help", "cfg", "info", "shell_completion")
        return any(getattr(self.flags, flag) for flag in shown)


def read(arguments: Sequence[str], switches: Sequence[str] = ()) -> Words:
    """Return the arguments of a command, as a person typed them. The overrides of a line that a
    shell completes (`-sc`) stay as they are.

    Args:
        arguments: The arguments.
        switches: The command's own flags, such as `--report`, which Hydra does not get.

    Raises:
        ConfigError: If a flag or the form of an override is wrong.
    """
    if problems := [*_misspelled(arguments)]:
        raise ConfigError(*problems)
    parser = _Parser(add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("overrides", nargs="*")
    for flag in ("--multirun", "-m"), ("--help", "-h"), ("--hydra-help",), ("--resolve",):
        add(*flag, action="store_true")
    for switch in switches:
        add(switch, action="store_true")
    add("--cfg", "-c", choices=("job", "hydra", "all"))
    add("--info", "-i", nargs="?", const="all", choices=_INFO)
    add("--package", "-p")
    add("--config-dir", "-cd")
    add("--config-name", "-cn")
    add("--shell-completion", "-sc", action="store_true")
    flags = parser.parse_intermixed_args(list(arguments))
    arranged = [argument for argument in arguments if argument not in switches]
    overrides = list(flags.overrides)
    for override in overrides:
        arranged.remove(override)
    if not flags.shell_completion:
        overrides = [as_hydra_takes(override) for override in overrides]
    return Words(flags, overrides, [*arranged, *overrides])


def _misspelled(arguments: Sequence[str]) -> Iterator[str]:
    """Yield messages about assignments that are typed with leading dashes, with blanks around the
    '=', or by a script with Windows line ends. Each message has the form that bsweep takes.
    """
    if any("\r" in argument for argument in arguments):
        yield (
            "an argument ends in a carriage return: the script that holds this command, or a file "
            "that it reads, has Windows line ends. Remove them: sed -i 's/\\r$//' FILE"
        )
        return
    for place, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if argument.startswith("--") and key.lstrip("-").partition(".")[0] in _FIRST_PARTS:
            yield f"{shortened(argument)}: keys take no dashes: {key.lstrip('-')}={value or '...'}"
        elif equals and not key.strip("+~") and place and "=" not in arguments[place - 1]:
            words = [arguments[place - 1], value or "".join(arguments[place + 1 : place + 2])]
            yield f"write {shortened('='.join(words))} without spaces."


_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. `bsweep run --help` lists the main flags.")


def as_hydra_takes(argument: str) -> str:
    """Return a typed override, changed where needed to a form that Hydra accepts.

    The ~ of key=~/path becomes the home folder, because most shells do not expand it there. Words
    with letters beyond ASCII, or with a '=', are quoted, unless the value already has characters of
    Hydra's grammar such as quotes. Keys of `options` and of `program.environment` get a ++, as they
    need not exist. A `program.command` is one value, whatever it contains, unless its user has
    quoted it for Hydra.
    """
    argument = re.sub(r"^((?:\w+\.options|program\.environment)(\.[\w.]+)?=)", r"++\1", argument)
    key, equals, value = argument.partition("=")
    if re.match("~(/|$)", value):
        with suppress(RuntimeError):  # of a user without a home
            value = f"{Path(value).expanduser()}"
        argument = f"{key}={value}"
    if key.lstrip("+") == "program.command" and value and value[0] not in "\"'":
        quoted = value.replace('"', '\\"') if "'" in value else value
        mark = '"' if "'" in value else "'"
        return f"{key}{equals}{mark}{quoted}{mark}"
    if _GRAMMAR.search(value):
        return argument
    words = (
        f"'{word.strip()}'" if "=" in word or not word.isascii() else word
        for word in re.split(r"([,\[\]])", value)
    )
    return f"{key}{equals}{''.join(words)}"


@dataclass(frozen=True)
class Setting:
    """One value of an override."""

    text: str
    """The override with this value alone."""

    value: Any
    key: str | None
    """The key, if it is plain: its value is simple, such as a number, and can be checked without
    other keys. Else None.
    """

    is_swept: bool
    """True if the override has the form of several values."""


def settings_of(texts: Sequence[str], loader: ConfigLoader) -> dict[str, list[Setting]]:
    """Return the values of overrides by key, as Hydra's grammar reads them. The last override of a
    key counts. Those of Hydra's own keys are left out.

    Args:
        texts: The overrides.
        loader: Finds the choices that a glob such as `model=glob(*)` matches.

    Raises:
        ConfigError: If any of the overrides is wrong by itself. It lists the problems of all.
    """
    parser = OverridesParser.create()
    settings: dict[str, list[Setting]] = {}
    problems: list[str] = []
    for text in texts:
        try:
            override = parser.parse_override(text)
            override.config_loader = loader
            values, key = _settings(override), override.key_or_group
            is_choice = key in (*GROUPS, "experiment") and not override.is_delete()
            if not key or not values:
                problems.append(f"{shortened(text)}: no key before the '=', or no value that fits.")
            elif _HYDRAS_OWN.match(key):
                problems.append(_leave_out(shortened(text), key))
            elif is_choice and not all(
                (isinstance(v.value, str | dict) and v.value)
                or (v.value is None and key == "experiment")
                for v in values
            ):
                problems.append(f"{shortened(text)}: give {key}=NAME.")
            elif not override.is_hydra_override():
                settings[override.get_key_element()] = values
        except (HydraException, ValueError, RecursionError) as error:
            problems.append(_unreadable(text, error))
    if problems:
        raise ConfigError(*problems)
    return settings


def _settings(override: Override) -> list[Setting]:
    """Return the values of an override; at most one more than a sweep may have points."""
    element, key = override.get_key_element(), override.key_or_group
    if is_swept := override.is_sweep_override():
        values = itertools.islice(override.sweep_iterator(), MOST_POINTS + 1)
        given = [(_unquoted(value), Transformer.str(value)) for value in values]
    else:
        given = [(override.value(), override.get_value_element_as_str())]
    is_plain = (
        override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
        and override.package is None
        and _is_plain_key(key)
    )
    return [
        Setting(
            f"{element}={text}",
            value,
            key if is_plain and "${" not in text and is_simple(value) else None,
            is_swept,
        )
        for value, text in given
    ]


def _unquoted(value: Any) -> Any:
    """Return a value of Hydra's grammar in which quoted texts are plain texts."""
    if isinstance(value, list):
        return [_unquoted(each) for each in value]
    return value.text if isinstance(value, QuotedString) else value


def _is_plain_key(key: str) -> bool:
    """Return True if a key is plain: its value can be checked without other keys and changes no
    other key.
    """
    group, _, name = key.partition(".")
    return key in _TOP_KEYS or (group in GROUPS and name.isidentifier() and name != "name")


def is_simple(value: object) -> bool:
    """Return True for a number, a text, a truth or nothing, and for a list of them."""
    values = value if isinstance(value, list) else [value]
    return all(item is None or isinstance(item, str | int | float) for item in values)


def _unreadable(text: str, error: Exception) -> str:
    key, equals, _ = text.partition("=")
    if not equals and not text.startswith("~"):
        return f"{shortened(text)}: neither a flag nor KEY=VALUE."
    if not key.strip("+~"):
        return f"{shortened(text)}: no key before the '='."
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{shortened(text)}: Hydra cannot read it ({shortened(reason)}). Quote other characters "
        "than letters, digits and . _ - + / : % @ for Hydra and for the shell: KEY=\"'VALUE'\"."
    )


def refuse_hydras_own(hydra: DictConfig) -> None:
    """Raise ConfigError if a file of the configuration sets a key by which Hydra runs jobs."""
    chosen = {
        "hydra/launcher": hydra.runtime.choices["hydra/launcher"] != "basic",
        "hydra.callbacks": hydra.callbacks,
        "hydra.job.env_set": hydra.job.env_set,
    }
    if problems := [_leave_out("the configuration", key) for key in chosen if chosen[key]]:
        raise ConfigError(*problems)


def _leave_out(place: str, key: str) -> str:
    return f"{place}: bsweep forms the points of a sweep without Hydra's key {key}: leave it out."


def explain(error: Exception) -> str:
    """Return a message that explains an error of Hydra or bsweep to the user, and suggests what the
    user may have meant if that can be guessed.
    """
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return f"{error.strerror if is_full(error) else error}."
    if not isinstance(error, ValueError | HydraException) and not type(error).__module__.startswith(
        "omegaconf"
    ):
        text = (
            f"Hydra cannot compose this: {type(error).__name__}: {text}. HYDRA_FULL_ERROR=1 shows "
            "where."
        )
    unknown = re.search(r"Could not override '([^'@]+)'", text)
    if unknown:
        return f"{unknown_key(unknown[1])} `bsweep run --help` lists the keys."
    group = re.search(
        r"Could not find '([\w/]+)/([^/']+)'\s+Available options in '[\w/]+':\s+((?:\s*\S+\n)+)",
        text,
    )
    if group:
        options = group[3].split("Config search path")[0].split()
        near = did_you_mean(group[2], options)
        return f"{group[1]}={group[2]}: unknown {group[1]}.{near} Known: {', '.join(options)}."
    if text.startswith("Error merging") and error.__cause__:
        text = f"{text}: {error.__cause__}"
    text = text.split("\nConfig search path")[0].split("\nSee https://hydra.cc")[0]
    return "\n".join(shortened(line, 1000) for line in text.strip().splitlines())
