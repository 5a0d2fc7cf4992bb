"""The user's own code: how a callable that the user names is found, checked, saved with a run and
imported by the workers.

A target is `path/file.py:name` or `package.module:name`. The parent process calls `resolve`, which
finds the code and records its fingerprint, so that changed code gives another run id. Then
`check` imports the code and refuses a target that cannot be called as needed. In between, `bsweep
resume` sees which run ids a recorded command leads to, before anything that it names is imported.

`keep` writes the code into the run's folder, and every worker calls `read_kept` to import it from
there. Other hosts see that folder, and later edits do not affect the run: workers refuse code of
another fingerprint. A file comes with the files beside it that its import statements lead to. For
an installed distribution the version is the fingerprint, and nothing is copied.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import operator
import shutil
import traceback
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator

from bsweep.config import own_code
from bsweep.config.card import Card, Schema
from bsweep.config.own_code import Source
from bsweep.config.values import ConfigError, PathName, did_you_mean, show
from bsweep.core.words import excerpt

_Config = TypeVar("_Config", bound=Schema)


class _Keywords(dict[str, Any]):
    """A dictionary of keyword arguments that is hashed by its content, so that a card that holds it
    can be a key of a cache.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))


def _keywords(given: dict[str, Any]) -> _Keywords:
    try:
        json.dumps(given, allow_nan=False)
    except ValueError as error:
        raise ValueError(
            f"{show(given)} has a value that is not finite: write a word such as nan in quotes, "
            "\"'nan'\""
        ) from error
    return _Keywords(given)


# Without options the YAML says null: Hydra cannot add a key to an existing mapping.
Options = Annotated[
    dict[str, Any], BeforeValidator(lambda given: given or {}), AfterValidator(_keywords)
]


@dataclass(frozen=True, kw_only=True)
class Own(Card):
    """The base class of the cards of all variants that run the user's own code. `target` is called
    with the arguments that `takes` names, and with the options.
    """

    target: PathName
    options: Options
    fingerprint: str | None = None  # identifies the code; `resolve` sets it

    takes: ClassVar[tuple[str, ...]] = ()  # positional arguments, in this order

    @property
    def title(self) -> str:
        """Return the name of the user's callable, without its file or module."""
        return self.target.rpartition(":")[2]


def cards(config: object) -> dict[str, Own]:
    """Return those cards of a run's configuration that name the user's own code, by their group,
    such as `model`.
    """
    schema: type = type(config)
    found = ((group, getattr(config, group)) for group in _groups(schema))
    return {group: card for group, card in found if isinstance(card, Own)}


@functools.cache
def _groups(schema: type) -> tuple[str, ...]:
    """Return the groups of a configuration class, such as `model`, in which a card may name the
    user's own code.
    """
    hints = {
        key: typing.get_args(hint) or (hint,) for key, hint in typing.get_type_hints(schema).items()
    }
    return tuple(
        key
        for key, kinds in hints.items()
        if any(isinstance(k, type) and issubclass(k, Own) for k in kinds)
    )


def resolve(config: _Config) -> _Config:
    """Return a configuration in which each card that names the user's own code also records the
    code's fingerprint, a hash or a version. No code is imported. If a target names a file, the
    file's folder is removed from the target.

    Raises:
        ConfigError: If the code of a target cannot be found or saved with a run, or if the code of
            two targets clashes.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    for group, card in cards(config).items():
        try:
            found[group] = _resolved(group, card)
        except ConfigError as error:
            problems += error.problems
    problems += _clashes(found)
    if problems:
        raise ConfigError(*problems)
    return replace(config, **found) if found else config


def _clashes(found: Mapping[str, Own]) -> Iterator[str]:
    """Yield an error message for each pair of resolved cards of a run whose code has modules of the
    same name but different contents.
    """
    for (group, card), (other_group, other) in itertools.combinations(found.items(), 2):
        if name := _source(card).clash(_source(other)):
            yield (
                f"{group}.target={card.target} and {other_group}.target={other.target} import "
                f"different files as the module {name}: give one of the files another name."
            )


def check(config: object) -> None:
    """Import the user's own code that a configuration names, and check that bsweep can call it.
    `resolve` comes before.

    Raises:
        ConfigError: If a target cannot be imported or called, or does not take its options.
    """
    problems: list[str] = []
    for group, card in cards(config).items():
        try:
            with blamed(group, card, "importing it failed"):
                module = _load(card)
            _check_call(group, card, _named(group, card, module))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def load_target(card: Own) -> Callable[..., Any]:
    """Import the user's own code that a card names, and return its function or class. The card
    comes from `resolve`. Workers must call `read_kept` first.
    """
    found: Callable[..., Any] = operator.attrgetter(card.title)(_load(card))
    return found


def call(card: Own, *arguments: object) -> Any:
    """Call the user's callable with `arguments` and the configured options, and return its result.
    Errors of the callable pass through.
    """
    return load_target(card)(*arguments, **card.options)


def made(group: str, card: Own, kind: type[Any], *arguments: object) -> Any:
    """Call the user's callable and return its result, which must be an instance of `kind`.

    Raises:
        ConfigError: If the result is not of this kind, or the callable raises an error.
    """
    with blamed(group, card, "it raised an error"):
        found = call(card, *arguments)
    if not isinstance(found, kind):
        wanted_type = f"{kind.__module__}.{kind.__name__}"
        raise ConfigError(
            f"{group}.target={card.target}: it returned {type(found).__name__}, not a "
            f"{wanted_type}."
        )
    return found


@contextmanager
def blamed(group: str, card: Own, failure: str) -> Iterator[None]:
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
        asked = f"{group}.target={card.target}"
        raise ConfigError(f"{asked}: {_not_imported(group, card, error)}") from error
    except (Exception, SystemExit) as error:
        trace = traced(error) or "".join(traceback.format_exception_only(error))
        said = excerpt(trace.rstrip(), "the code's own error", 1_500)
        raise ConfigError(f"{group}.target={card.target}: {failure}:\n{said}") from error


def _not_imported(group: str, card: Own, error: ImportError) -> str:
    """Return a sentence that says what the user's code could not import, and the remedy."""
    source = _source(card)
    at = f"{found}," if (found := place(error)) else "it"
    top, *below = (error.name or "").split(".")
    is_file = own_code.is_file(source.name)
    folder = source.path.parent
    package = next((one for one in source.path.parents if top and one.name == top), None)
    if is_file and (package or "relative import" in error.msg):
        package = package or folder
        dotted = ".".join(source.path.with_suffix("").relative_to(package.parent).parts)
        return (
            f"{at} imports from {package}, a package around the file ({error.msg}). Name the "
            f"module instead: PYTHONPATH={package.parent} {group}.target={dotted}:{card.title}"
        )
    if is_file and source.is_own_module(top) and below:
        file = folder.joinpath(*below).with_suffix(".py")
        return f"{at} imports .{'.'.join(below)}, but there is no {file}: correct the import."
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return f"{at} {error.msg}: correct the import."
    file = folder.joinpath(top, *below)
    if is_file and (file.is_dir() or file.with_suffix(".py").is_file()):
        is_module = not file.is_dir() or (file / "__init__.py").is_file()
        return (
            f"{at} imports {error.name}, which is beside {source.name}, but bsweep keeps only "
            f"files that import statements name: write `import {error.name}"
            f"{'' if is_module else '.MODULE'}` at the top of {source.name}."
        )
    beside = f", put {top}.py beside {source.name}" if is_file else ""
    return (
        f"{at} imports {error.name}, which is not installed: install the package that has it, "
        f"perhaps by `pip install {top}`{beside}, or leave the import out."
    )


def place(error: BaseException) -> str:
    """Return the file and the line of the user's own code that an error passed last; an empty text
    if it passed none.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_theirs(Path(frame.filename))
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def traced(error: BaseException) -> str | None:
    """Return the traceback of an error as a text that starts at the first line of the user's own
    code. Return None if the error did not pass through the user's code.
    """
    frame = error.__traceback__
    while frame and not _is_theirs(Path(frame.tb_frame.f_code.co_filename)):
        frame = frame.tb_next
    return (
        "".join(traceback.format_exception(type(error), error, frame, chain=False))
        if frame
        else None
    )


def keep(config: object, folder: Path) -> None:
    """Save the user's own code in a folder of a run, from which the run's workers read it by
    `read_kept`. The saved code is the one that `resolve` read, even if its files have changed since
    then. Anything else in that folder is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for card in cards(config).values():
        _source(card).keep(folder)


def read_kept(config: object, folder: Path, groups: Collection[str] | None = None) -> None:
    """Load the user's own code that `keep` saved for a run, so that this process can import it.

    Args:
        config: The settings of the run.
        folder: The folder to which `keep` saved the code.
        groups: The groups whose code to load, such as `model`; None for all.

    Raises:
        ConfigError: If the code there does not have the fingerprint in the configuration.
    """
    for group, card in cards(config).items():
        if groups is not None and group not in groups:
            continue
        assert card.fingerprint, "call own.resolve(config) first"
        key = name, fingerprint = own_code.name_of(_where(card)), card.fingerprint
        if key not in _SOURCES:  # the process that starts the workers may train, too
            try:
                _SOURCES[key] = own_code.kept(name, fingerprint, folder)
            except (ValueError, OSError) as error:
                raise ConfigError(f"{group}.target={card.target}: {error}") from None


def forget() -> None:
    """Unload the user's own modules that bsweep keeps a copy of from this process, so that the next
    run does not see the variables of this run.
    """
    for source in _SOURCES.values():
        source.unload()
    _SOURCES.clear()


_SOURCES: dict[tuple[str, str], Source] = {}  # the code of this process, by name and fingerprint


def _source(card: Own) -> Source:
    assert card.fingerprint, "call own.resolve(config) first"
    return _SOURCES[own_code.name_of(_where(card)), card.fingerprint]


def _load(card: Own) -> ModuleType:
    return _source(card).load(_where(card))


def _where(card: Own) -> str:
    """Return the part of a target before the colon: a file or a module."""
    return card.target.rpartition(":")[0]


def _is_theirs(path: Path) -> bool:
    """Return True if a file belongs to the user's own code. If a target names an object of torch,
    torch's files do not count, because they are in most tracebacks.
    """
    theirs = {
        file
        for source in _SOURCES.values()
        if source.name != "torch"
        for file in (source.path, *(source.path.parent / name for name in source.files))
    }
    return not theirs.isdisjoint((path, *path.parents))


def _resolved(group: str, card: Own) -> Own:
    where = _where(card)
    is_file = own_code.is_file(where)
    names = card.title if is_file else f"{where}.{card.title}"
    if not all(name.isidentifier() for name in names.split(".")):
        raise ConfigError(
            f"{group}.target={card.target}: not of the form path/file.py:name or "
            "package.module:name."
        )
    path = Path(where).expanduser().absolute()
    try:
        source = (
            own_code.of_file(path)
            if is_file
            else own_code.of_package(own_code.name_of(where), Path.cwd())
        )
    except ValueError as error:
        raise ConfigError(f"{group}.target={card.target}: {error}") from None
    _SOURCES[source.name, source.fingerprint] = source
    target = f"{path.name}:{card.title}" if is_file else card.target
    return replace(card, target=target, fingerprint=source.fingerprint)


def _named(group: str, card: Own, module: ModuleType) -> Callable[..., Any]:
    """Return the function or class of the user's own code that the key `target` names, such as the
    function `build` for `target=file.py:build`.
    """
    asked = f"{group}.target={card.target}"
    found: Any = module
    for name in card.title.split("."):
        if not hasattr(found, name):
            known = [
                key
                for key, value in vars(found).items()
                if callable(value) and not key.startswith("_")
            ]
            near = did_you_mean(name, known) or (
                f" It has {', '.join(sorted(known)[:10])}." if known else ""
            )
            raise ConfigError(f"{asked}: there is no '{name}' in it.{near}")
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(
            f"{asked}: {card.title} is not a function or class, but {type(found).__name__}."
        )
    return found  # type: ignore[no-any-return]


def _check_call(group: str, card: Own, function: Callable[..., Any]) -> None:
    """Raise ConfigError if the signature of the user's function does not fit the arguments and
    options with which bsweep would call it. A function without a signature is not checked.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # compiled functions may have no signature
    kinds = [p.kind for p in parameters]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(card.takes) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(
            f"{group}.target={card.target}: it takes too few positional arguments. The first ones "
            f"must be for {', '.join(card.takes)}."
        )
    given = [p.name for p in positional[: len(card.takes)]]
    known = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    options = {name: parameter for name, parameter in known.items() if name not in given}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    unknown = [
        key for key in card.options if key not in options and (key in given or not takes_any)
    ]
    missing = [
        name for name, p in options.items() if p.default is p.empty and name not in card.options
    ]
    problems = [_unknown_option(group, card, key, list(options)) for key in unknown]
    problems += [
        f"{group}.options: {card.title} needs {name}: give {group}.options.{name}=..."
        for name in missing
    ]
    if problems:
        raise ConfigError(*problems)


def _unknown_option(group: str, card: Own, key: str, known: Sequence[str]) -> str:
    takes = did_you_mean(key, known) or f" It takes {', '.join(known) or 'none'}."
    return (
        f"{group}.options.{key}={show(card.options[key])}: {card.title} takes no such "
        f"option.{takes}"
    )
