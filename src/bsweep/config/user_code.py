"""The user's own code: how a callable that the user names is found, checked, saved with a run and
imported by the workers.

A target is `path/file.py:name` or `package.module:name`. The parent process calls
`with_fingerprints`, which finds the code and records its fingerprint, so that changed code gives
another run id. Then `check` imports the code and refuses a target that cannot be called as needed.
In between, `bsweep resume` sees which run ids a recorded command leads to, before anything that it
names is imported.

`save` writes the code into the run's folder, and every worker calls `load_saved` to import it from
there. Other hosts see that folder, and later edits do not affect the run: workers refuse code of
another fingerprint. A file comes with the files beside it that its import statements lead to. For
an installed distribution the version is the fingerprint, and nothing is copied.
"""

from __future__ import annotations

import inspect
import itertools
import json
import operator
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator

from bsweep.config import user_files
from bsweep.config.card import Card, Schema
from bsweep.config.user_files import Source
from bsweep.config.values import ConfigError, PathName, did_you_mean, shortened, show
from bsweep.core.words import excerpt

_Config = TypeVar("_Config", bound=Schema)


class Keywords(dict[str, Any]):
    """A dictionary of keyword arguments that is hashed by its content, so that a card that holds it
    can be a key of a cache.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))


def _keywords(given: dict[str, Any]) -> Keywords:
    try:
        json.dumps(given, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"{show(given)} has a value that is not finite: write a word such as nan in quotes, "
            "\"'nan'\""
        ) from error
    return Keywords(given)


# A file of a user's may say null.
Options = Annotated[
    dict[str, Any], BeforeValidator(lambda given: given or {}), AfterValidator(_keywords)
]


class UserCode(Card):
    """The base class of the cards of all variants that run the user's own code. `target` is called
    with the arguments that `takes` names, and with the options.
    """

    target: PathName
    options: Options = field(default_factory=Keywords)
    """its keyword arguments: GROUP.options.NAME=VALUE, or 'GROUP.options={NAME: VALUE}'"""
    fingerprint: str | None = None  # identifies the code; `with_fingerprints` sets it

    internal: ClassVar[tuple[str, ...]] = ("fingerprint",)
    takes: ClassVar[tuple[str, ...]] = ()  # positional arguments, in this order

    @property
    def title(self) -> str:
        """Return the name of the user's callable, without its file or module."""
        return self.target.rpartition(":")[2]

    @property
    def module(self) -> str:
        """Return the file or the module that holds the user's callable."""
        return self.target.rpartition(":")[0]


def cards(config: object) -> dict[str, UserCode]:
    """Return those cards of a run's configuration that name the user's own code, by their group,
    such as `model`.
    """
    return {group: card for group, card in vars(config).items() if isinstance(card, UserCode)}


def with_fingerprints(config: _Config) -> _Config:
    """Return a configuration in which each card that names the user's own code also records the
    code's fingerprint, a hash or a version. No code is imported. If a target names a file, the
    file's folder is removed from the target.

    Raises:
        ConfigError: If the code of a target cannot be found or saved with a run, or if the code of
            two targets clashes.
    """
    known: dict[str, Any] = {}
    problems: list[str] = []
    for group, card in cards(config).items():
        try:
            known[group] = _with_fingerprint(card)
        except ValueError as error:
            problems.append(f"{group}.target={card.target}: {error}")
    for (group, card), (other_group, other) in itertools.combinations(known.items(), 2):
        if name := _source(card).clash(_source(other)):
            problems.append(
                f"{group}.target={card.target} and {other_group}.target={other.target} import "
                f"different files as the module {name}: give one of the files another name."
            )
    if problems:
        raise ConfigError(*problems)
    return replace(config, **known) if known else config


def _with_fingerprint(card: UserCode) -> UserCode:
    is_file = user_files.is_file(card.module)
    names = card.title if is_file else f"{card.module}.{card.title}"
    if not all(name.isidentifier() for name in names.split(".")):
        raise ValueError("not of the form path/file.py:name or package.module:name.")
    path = Path(card.module).expanduser().absolute()
    source = (
        user_files.of_file(path)
        if is_file
        else user_files.of_package(user_files.name_of(card.module), Path.cwd())
    )
    _SOURCES[source.name, source.fingerprint] = source
    target = f"{path.name}:{card.title}" if is_file else card.target
    return replace(card, target=target, fingerprint=source.fingerprint)


def check(config: object) -> None:
    """Import the user's own code that a configuration names, and check that bsweep can call it.
    `with_fingerprints` comes before.

    Raises:
        ConfigError: If a target cannot be imported or called, or does not take its options.
    """
    problems: list[str] = []
    for group, card in cards(config).items():
        try:
            with blamed(group, card, "importing it failed"):
                _source(card).load(card.module)
            if problem := _why_not_called(card):
                problems.append(f"{group}.target={card.target}: {problem}")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _why_not_called(card: UserCode) -> str:
    """Return the reason why bsweep cannot call the function or class that an imported target
    names, with the remedy; an empty text if it can. Compiled functions may have no signature to
    check.
    """
    try:
        function = load_target(card)
    except AttributeError as error:
        return f"there is no '{error.name}' in it.{did_you_mean(str(error.name), dir(error.obj))}"
    if not callable(function):
        return f"{card.title} is not a function or class, but {type(function).__name__}."
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*card.takes, **card.options)
    except TypeError as error:
        given = ", ".join([*card.takes, *(f"{k}={show(v)}" for k, v in card.options.items())])
        return (
            f"bsweep cannot call {card.title}({given}): {error}. It is "
            f"{card.title}{shortened(str(signature), 300)}: change it, or its options."
        )
    return ""


def load_target(card: UserCode) -> Callable[..., Any]:
    """Import the user's own code that a card names, and return its function or class. The card
    comes from `with_fingerprints`. Workers must call `load_saved` first.
    """
    function: Callable[..., Any] = operator.attrgetter(card.title)(_source(card).load(card.module))
    return function


def call(card: UserCode, *arguments: object) -> Any:
    """Call the user's callable with `arguments` and the configured options, and return its result.
    Errors of the callable pass through.
    """
    return load_target(card)(*arguments, **card.options)


def make(group: str, card: UserCode, kind: type[Any], *arguments: object) -> Any:
    """Call the user's callable and return its result, which must be an instance of `kind`.

    Raises:
        ConfigError: If the result is not of this kind, or the callable raises an error.
    """
    with blamed(group, card, "it raised an error"):
        result = call(card, *arguments)
    if not isinstance(result, kind):
        wanted_type = f"{kind.__module__}.{kind.__name__}"
        raise ConfigError(
            f"{group}.target={card.target}: it returned {type(result).__name__}, not a "
            f"{wanted_type}."
        )
    return result


@contextmanager
def blamed(group: str, card: UserCode, failure: str) -> Iterator[None]:
    """Turn an exception that is raised inside the `with` block, even a SystemExit, into a
    ConfigError that names the target of the user's own code.

    The message has the traceback from the first line of that code on; without such a line, the
    error alone. For an ImportError, it has one sentence with the remedy instead.
    """
    try:
        yield
    except ConfigError:
        raise
    except ImportError as error:
        message = _not_imported(group, card, error)
        raise ConfigError(f"{group}.target={card.target}: {message}") from error
    except (Exception, SystemExit) as error:
        trace = traceback_of(error) or "".join(traceback.format_exception_only(error))
        lines = excerpt(trace.rstrip(), "the code's own error", 1_500)
        raise ConfigError(f"{group}.target={card.target}: {failure}:\n{lines}") from error


def _not_imported(group: str, card: UserCode, error: ImportError) -> str:
    """Return a sentence or two that say what the user's code could not import, and the remedy."""
    source = _source(card)
    failure = f"{line_of(error) or source.name}: {str(error).replace(f'{source.top}.', '.')}"
    if not user_files.is_file(source.name):
        return f"{failure}. Install the package that has it, or correct the import."
    return (
        f"{failure}. Install the package, or import a file of yours by a statement at the top of "
        f"{source.name}. A file that imports the folder around it must be named as a module: "
        f"PYTHONPATH=PARENT {group}.target=FOLDER.{source.path.stem}:{card.title}"
    )


def line_of(error: BaseException) -> str:
    """Return the file and the line of the user's own code that an error passed last; an empty text
    if it passed none.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}, line {f.lineno}" for f in frames if _is_users(f.filename)]
    return lines[-1] if lines else ""


def traceback_of(error: BaseException) -> str | None:
    """Return the traceback of an error as a text that starts at the first line of the user's own
    code. Return None if the error did not pass through the user's code.
    """
    frame = error.__traceback__
    while frame and not _is_users(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    if frame is None:
        return None
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


def _is_users(filename: str) -> bool:
    """Return True if a file belongs to the user's own code. If a target names an object of torch,
    torch's files do not count, because they are in most tracebacks.
    """
    path = Path(filename)
    return any(
        source.path in (path, *path.parents)
        or any(path == source.path.parent / name for name in source.files)
        for source in _SOURCES.values()
        if source.name != "torch"
    )


def save(config: object, folder: Path) -> None:
    """Save the user's own code in a folder of a run, from which the run's workers load it by
    `load_saved`. The saved code is the one that `with_fingerprints` read, even if its files have
    changed since then. Anything else in that folder is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for card in cards(config).values():
        _source(card).save(folder)


def load_saved(config: object, folder: Path) -> None:
    """Load the user's own code that `save` saved for a run, so that this process can import it.

    Args:
        config: The settings of the run.
        folder: The folder to which `save` saved the code.

    Raises:
        ConfigError: If the code there does not have the fingerprint in the configuration.
    """
    for group, card in cards(config).items():
        assert card.fingerprint, "call user_code.with_fingerprints(config) first"
        key = name, fingerprint = user_files.name_of(card.module), card.fingerprint
        if key not in _SOURCES:  # the process that starts the workers may train, too
            try:
                _SOURCES[key] = user_files.saved(name, fingerprint, folder)
            except (ValueError, OSError) as error:
                raise ConfigError(f"{group}.target={card.target}: {error}") from None
        _SOURCES[key].offer()


def forget() -> None:
    """Unload the user's own modules that bsweep keeps a copy of from this process, so that the next
    run does not see the variables of this run.
    """
    for source in _SOURCES.values():
        source.unload()
    _SOURCES.clear()


_SOURCES: dict[tuple[str, str], Source] = {}  # the code of this process, by name and fingerprint


def _source(card: UserCode) -> Source:
    assert card.fingerprint, "call user_code.with_fingerprints(config) first"
    return _SOURCES[user_files.name_of(card.module), card.fingerprint]
