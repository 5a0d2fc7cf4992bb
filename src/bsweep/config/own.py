"""The user's own code: how a callable that the user names is found, checked, saved with a run and
imported by the workers.

A target is `path/file.py:name` or `package.module:name`. The parent process calls `resolve`, which
imports the code and refuses a target that cannot be called as needed. It also records a fingerprint
of the code, so that a changed model gives another run id. `keep` writes the code into the run's
folder, and every worker calls `search` to import it from there. Other hosts see that folder, and
later edits do not affect the run. A file must stand alone: code that imports modules beside it must
be a package. For an installed distribution the version is the fingerprint, and nothing is copied.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import operator
import re
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator

from bsweep.config.card import Card, Schema
from bsweep.config.values import ConfigError, PathName, did_you_mean, plain_file, show
from bsweep.core.whole_files import write_whole

_Config = TypeVar("_Config", bound=Schema)
_MOST_BYTES = 2**24  # largest package that is copied into each run's folder


class _Keywords(dict[str, Any]):
    """A dictionary of keyword arguments that is hashed by its content, so that a card that holds it
    can be a key of a cache.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))


# Without options the YAML says null: Hydra cannot add a key to an existing mapping.
Options = Annotated[
    dict[str, Any], BeforeValidator(lambda given: given or {}), AfterValidator(_Keywords)
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
    """Return a configuration in which each card that names the user's own code also holds the
    code's fingerprint, a hash or a version. If a target names a file, the file's folder is removed
    from the target.

    Raises:
        ConfigError: If a target does not exist, cannot be imported or called, or does not take its
            options.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    for group, card in cards(config).items():
        try:
            found[group] = _resolved(group, card)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return replace(config, **found) if found else config


def load_target(card: Own) -> Callable[..., Any]:
    """Import and return the user's function or class that a card names, and that `resolve` has
    already checked. Workers must call `search` with the run's folder first.
    """
    assert card.fingerprint, "call own.resolve(config) first"
    module = importlib.import_module(_module_name(card.target.rpartition(":")[0], card.fingerprint))
    top = sys.modules[module.__name__.partition(".")[0]]
    for path in getattr(top, "__path__", [module.__file__]):
        _note(Path(path))
    found: Callable[..., Any] = operator.attrgetter(card.title)(module)
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
    """Turn any error that the user's code raises inside the `with` block into a ConfigError. The
    error's message has the traceback from the first line of the user's code on.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        trace = traced(error) or "".join(traceback.format_exception_only(error))
        raise ConfigError(f"{group}.target={card.target}: {failure}:\n{trace.rstrip()}") from error


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
    """Save the user's own code, as it was when `resolve` imported it, in a folder from which the
    workers of a run import it.
    """
    for card in cards(config).values():
        assert card.fingerprint, "call own.resolve(config) first"
        for path, content in _SOURCES[card.fingerprint].files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / path, content)


def search(folder: Path) -> None:
    """Add a folder that holds the user's saved code to this process's import path."""
    if folder.is_dir() and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
        _THEIRS.add(folder.resolve())
        importlib.invalidate_caches()


def forget(folder: Path) -> None:
    """Remove a folder of the user's saved code from this process's import path, and the modules in
    it from `sys.modules`. The next run then does not see the variables of this one.
    """
    folder = folder.resolve()
    if str(folder) not in sys.path:
        return
    sys.path.remove(str(folder))
    _THEIRS.discard(folder)
    for name, module in list(sys.modules.items()):
        if folder in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


@dataclass(frozen=True)
class _Source:
    """The file or package in which the user's own code was found, and the contents that are saved
    with a run.
    """

    path: Path  # a file, or a package's folder
    fingerprint: str
    # Contents by path relative to the search folder; empty for an installed distribution.
    files: Mapping[str, bytes]


_SOURCES: dict[str, _Source] = {}  # what this process has resolved, by fingerprint
_THEIRS: set[Path] = set()  # files and package folders of the user's own code


def _note(path: Path) -> None:
    if path.name != "torch":  # its lines are in the traceback of every model
        _THEIRS.add(path)


def _is_theirs(path: Path) -> bool:
    return not _THEIRS.isdisjoint((path, *path.parents))


def _resolved(group: str, card: Own) -> Own:
    where = card.target.rpartition(":")[0]
    names = card.title if _is_file(where) else f"{where}.{card.title}"
    if not all(name.isidentifier() for name in names.split(".")):
        raise ConfigError(
            f"{group}.target={card.target}: not of the form path/file.py:name or "
            "package.module:name."
        )
    path = Path(where).expanduser().absolute()
    try:
        source = _of_file(path) if _is_file(where) else _of_module(where, Path.cwd())
    except ValueError as error:
        raise ConfigError(f"{group}.target={card.target}: {error}") from None
    _SOURCES[source.fingerprint] = source
    _note(source.path)
    name = _module_name(where, source.fingerprint)
    with blamed(group, card, "importing it failed"):
        module = _import_file(name, path) if _is_file(where) else importlib.import_module(name)
    _check_call(group, card, _named(group, card, module))
    target = f"{path.name}:{card.title}" if _is_file(where) else card.target
    return replace(card, target=target, fingerprint=source.fingerprint)


def _is_file(where: str) -> bool:
    return where.endswith(".py")


def _module_name(where: str, fingerprint: str) -> str:
    """Return the module name under which the user's own code is imported. A file's name holds a
    part of its fingerprint, so that no file hides another.
    """
    if not _is_file(where):
        return where
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', Path(where).stem)}_{fingerprint[:8]}"


@functools.cache  # a sweep trains the code that was there when it began
def _of_file(path: Path) -> _Source:
    try:
        content = plain_file(path).read_bytes()
    except OSError as error:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")])
        raise ValueError(f"{path} cannot be read ({error.strerror}).{near}") from None
    fingerprint = hashlib.sha256(content).hexdigest()
    return _Source(path, fingerprint, {f"{_module_name(path.name, fingerprint)}.py": content})


@functools.cache
def _of_module(name: str, folder: Path) -> _Source:
    top, here = name.partition(".")[0], str(folder)
    spec = PathFinder.find_spec(top, [here])
    if spec and here not in sys.path:
        sys.path.insert(0, here)
    spec = spec or importlib.util.find_spec(top)
    path = Path(
        next(iter(spec.submodule_search_locations or ()), spec.origin or "") if spec else ""
    )
    if not path.is_absolute():
        raise ValueError(
            f"there is no module {top}, neither in {here} nor installed. Name a file as "
            "path/file.py:name."
        )
    if version := _installed_version(top, path):
        return _Source(path, version, {})
    files = _files(path)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return _Source(path, hashlib.sha256(json.dumps(digests).encode()).hexdigest(), files)


def _installed_version(top: str, path: Path) -> str | None:
    """Return the names and versions of the distributions that installed a Python package, such as
    `timm==1.0`. Return None if no distribution did, or if the package lies in a folder where it is
    being developed.
    """
    if path.parent not in (
        Path(sysconfig.get_path("purelib")),
        Path(sysconfig.get_path("platlib")),
    ):
        return None
    import importlib.metadata  # imported here because it is slow

    names = importlib.metadata.packages_distributions().get(top, [])
    return (
        ", ".join(f"{name}=={importlib.metadata.version(name)}" for name in sorted(set(names)))
        or None
    )


def _files(path: Path) -> dict[str, bytes]:
    """Return the content of each file of a Python module or package, by the file's path relative to
    the folder that holds the module or package.
    """
    below = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    kept = [file for file in below if not _HIDDEN.search(str(file.relative_to(path.parent)))]
    if (size := sum(file.stat().st_size for file in kept)) > _MOST_BYTES:
        raise ValueError(
            f"{path} holds {size / 2**20:.0f} MiB, but code of your own may hold at most "
            f"{_MOST_BYTES / 2**20:.0f} MiB, because every run folder gets a copy. Move data files "
            "out of that folder, or install the package by pip: bsweep copies no installed package."
        )
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in kept}


_HIDDEN = re.compile(r"(^|/)(\.|__pycache__)|\.pyc$")


def _import_file(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, path
    assert spec.loader, path
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
    """Raise ConfigError if the user's function does not accept the arguments and options with which
    bsweep would call it.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # compiled functions may have no signature
    kinds = [p.kind for p in parameters]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(card.takes) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(
            f"{group}.target={card.target}: its first positional arguments must be "
            f"{', '.join(card.takes)}."
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
