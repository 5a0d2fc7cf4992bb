"""The preparation of typed arguments for Hydra, the early refusal of wrong ones, and plain words
for Hydra's errors.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig

from bsweep.config.parsing import conf_dir, known_keys, unknown_key
from bsweep.config.run import GROUPS
from bsweep.config.values import ConfigError, did_you_mean, shortened, show
from bsweep.core import terminal
from bsweep.core.whole_files import is_full

logger = terminal.logger(__name__)

_MOST_POINTS = 1_000_000  # in one sweep, which plans all points before it starts one
_FIRST_PARTS = {key.partition(".")[0] for key in known_keys()}
_EXPERIMENT = "experiment"
# Keys by which Hydra runs jobs, in place of bsweep: all but those that name axes or folders.
_HYDRAS_OWN = re.compile(r"hydra(?![./](sweeper\.params|searchpath)\b|\w)")
_GRAMMAR = re.compile(r"""["'\\$(){}]""")  # values with these must be quoted by the user


def arranged(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command as Hydra needs them: flags first, then overrides in a form
    that Hydra accepts.

    Raises:
        ConfigError: If a flag or an override is wrong, or the sweep has too many points.
    """
    if problems := [*_misspelled(arguments)]:
        raise ConfigError(*problems)
    typed = parsed(arguments)
    flags = list(arguments)
    for override in typed.overrides:
        flags.remove(override)
    if typed.shell_completion:
        return [*flags, *typed.overrides]
    overrides = [as_hydra_takes(override) for override in typed.overrides]
    refuse(overrides)
    return [*flags, *overrides]


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


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Split the arguments of a command into the flags of Hydra that bsweep passes on, and the
    overrides.

    Raises:
        ConfigError: If a flag is unknown or lacks its value.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("overrides", nargs="*")
    for flag in ("--multirun", "-m"), ("--help", "-h"), ("--hydra-help",), ("--resolve",):
        add(*flag, action="store_true")
    add("--cfg", "-c", choices=("job", "hydra", "all"))
    add("--info", "-i", nargs="?", const="all", choices=_INFO)
    add("--package", "-p")
    add("--config-dir", "-cd")
    add("--config-name", "-cn")
    add("--shell-completion", "-sc", action="store_true")
    return parser.parse_intermixed_args(list(arguments))


def only_shows(arguments: Sequence[str]) -> bool:
    """Return True if a command has a flag such as --help, which prints something instead of running
    points.
    """
    given = parsed(arguments)
    return bool(given.help or given.hydra_help or given.cfg or given.info or given.shell_completion)


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
        f"'{word}'" if "=" in word or not word.isascii() else word
        for word in re.split(r"([,\[\]])", value)
    )
    return f"{key}{equals}{''.join(words)}"


def refuse(overrides: Sequence[str]) -> None:
    """Raise ConfigError if one of the overrides is wrong by itself, or if together they give too
    many points.

    The error lists the problems of all overrides.
    """
    parser = OverridesParser.create()
    problems: list[str] = []
    num_points = 1
    for text in overrides:
        try:
            override = parser.parse_override(text)
            problems += _problems(text, override)
            num_points *= _num_values(override)
        except (HydraException, ValueError, RecursionError) as error:
            problems.append(_unreadable(text, error))
    if num_points > _MOST_POINTS:
        problems.append(
            f"the sweep has {num_points:,} points or more, and bsweep takes {_MOST_POINTS:,} at "
            "most. Sweep over fewer values."
        )
    if problems:
        raise ConfigError(*problems)


def _num_values(override: Override) -> int:
    """Return the number of values that an override gives its key; a number above the limit of a
    sweep's points is returned as the limit plus 1.
    """
    return sum(1 for _ in _values(override, _MOST_POINTS + 1)) or 1


def _unreadable(text: str, error: Exception) -> str:
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        return f"{shortened(text)}: neither a flag nor KEY=VALUE."
    if not key.strip("+~"):
        return f"{shortened(text)}: no key before the '='."
    if value.endswith(","):
        return f"{shortened(text)}: remove the comma at the end: {shortened(text.rstrip(','))}"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    said = f"{shortened(text)}: Hydra cannot read it ({shortened(reason)})."
    if re.search(r"[()'\"]", value) or len(value) > 120 or not key.isascii():
        return said
    return (
        f"{said} Quote a value with characters other than letters, digits and . _ - + / : % @ both "
        f"for Hydra and for the shell: {key}=\"'{value}'\"."
    )


def _problems(text: str, override: Override) -> Iterator[str]:
    key, text = override.key_or_group, shortened(text)
    if not key:
        yield f"{text}: no key before the '='."
    elif _HYDRAS_OWN.match(key):
        yield _leave_out(text, key)
    elif key in (*GROUPS, _EXPERIMENT) or "/" in key:
        yield from _problems_of_group(text, key, override)


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


def _problems_of_group(text: str, key: str, override: Override) -> Iterator[str]:
    known = (
        sorted(path.stem for path in (conf_dir() / key).glob("*.yaml"))
        if key in (*GROUPS, _EXPERIMENT)
        else []
    )
    remedy = f" Known: {', '.join(known)}." if known else ""
    if override.is_delete():
        if key != _EXPERIMENT:
            yield (
                f"{text}: every run needs {key}. Leave this override out, or choose another {key} "
                f"by {key}=NAME.{remedy}"
            )
        return
    values = list(_values(override, 100))
    if values and isinstance(values[0], dict):
        return  # a mapping sets keys of the group and does not choose a variant
    if known and (override.is_add() or override.is_force_add()):
        yield f"{text}: {key} is there already: leave out the '+', as in {key}=NAME.{remedy}"
        return
    for value in values:
        name = value.text if isinstance(value, QuotedString) else value
        if name is None and key == _EXPERIMENT:
            continue
        if not isinstance(name, str) or not name:
            yield (
                f"{text}: {shortened(show(name)) or 'nothing'} is not a name: give "
                f"{key}=NAME.{remedy}"
            )


def _values(override: Override, most: int) -> Iterator[object]:
    """Yield the values that an override gives its key, at most a given number of them if it sweeps
    over several.

    A glob yields nothing, because it matches existing choices only. Neither does a deletion.
    """
    if override.value_type in (
        ValueType.CHOICE_SWEEP,
        ValueType.SIMPLE_CHOICE_SWEEP,
        ValueType.RANGE_SWEEP,
    ):
        yield from itertools.islice(override.sweep_iterator(), most)
    elif not override.is_sweep_override() and not override.is_delete():
        yield override.value()


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


def first_values(given: Sequence[str]) -> dict[str, str]:
    """Return the overrides by key, each with its first value if it gives several.

    A log record names each override that gives several values.
    """
    first = {}
    for override in OverridesParser.create().parse_overrides(list(given)):
        text = override.input_line or ""
        if override.is_sweep_override():
            text = f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
            logger.info(f"taking {text}, the first of {override.input_line}")
        first[override.get_key_element().lstrip("+~")] = text
    return first
