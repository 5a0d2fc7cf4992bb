"""The code of a user's file or package: its contents, their fingerprint, and the import of exactly
these contents.

Python's own import needs the code's folder on `sys.path`, where it hides other modules, and reads
the files again: another file may be there by then, or a compiled one in `__pycache__`. So a
`Source` is a finder of `importlib` itself. It finds no modules but its own, and runs the contents
that it was made of.

A file may import its neighbours, which are the Python files of its folder and of folders below it.
A `Source` holds the neighbours that the file's import statements lead to. A neighbour is imported
as `helper` or, relative to the file, as `.helper`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import json
import math
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path, PurePath
from types import CodeType, ModuleType

from bsweep.config.values import did_you_mean
from bsweep.core.whole_files import write_whole

_MOST_BYTES = 2**24  # largest package that is copied into each run's folder
_HIDDEN = re.compile(r"(^|/)(\.|__pycache__)|\.pyc$")


@dataclass(frozen=True, eq=False)
class Source:
    """The file or the package in which the user's own code was found."""

    name: str
    """The name of the file, such as `mine.py`, or of the package."""

    path: Path
    """The file, or the package's folder."""

    fingerprint: str
    """A hash of the files, or the distributions of an installed package with their versions."""

    files: Mapping[str, bytes]
    """The contents by path, relative to the folder of `path`; empty for an installed package. A
    file comes with the neighbours that its import statements lead to.
    """

    def load(self, where: str) -> ModuleType:
        """Import and return a module.

        Args:
            where: The file's name, or the dotted name of a module of the package.
        """
        if self.files and self not in sys.meta_path:
            for other in sys.meta_path[:]:
                if isinstance(other, Source) and (other._top == self._top or self.clash(other)):
                    other.unload()
            sys.meta_path.insert(0, self)
        return importlib.import_module(self._top if is_file(self.name) else where)

    def unload(self) -> None:
        """Remove the modules that were imported from this code, so that it can be loaded anew."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in self._modules:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(spec, "loader_state", None) is self:
                del sys.modules[name]

    def clash(self, other: Source) -> str | None:
        """Return the name of a module whose content differs between this code and other own code.
        A process can import only one of such modules. Return None if there is no such module.
        """
        both = self._modules.keys() & other._modules.keys()
        return min(
            (name for name in both if self._content(name) != other._content(name)), default=None
        )

    def _content(self, module: str) -> bytes | None:
        return self.files.get(self._modules[module])

    def keep(self, folder: Path) -> None:
        """Write the files of this code into a run's folder, from which the function `kept` reads
        them.
        """
        for path, content in self.files.items():
            file = _kept_in(folder, self.name, self.fingerprint) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import specification of a module of this code, for Python's import system;
        None for other modules.

        Raises:
            ModuleNotFoundError: If a package of this code has no such module. Python would look for
                it in the package's folder, which may hold files that are not part of `files`.
        """
        if name not in self._modules:
            if name.partition(".")[0] not in self._modules or any(
                isinstance(other, Source) and name in other._modules for other in sys.meta_path
            ):
                return None
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        relative = self._modules[name]
        file, spec = self.path.parent / relative, None
        if relative not in self.files:  # a folder without __init__.py
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(file)]
        elif file.suffix == ".py":
            is_package = file.name == "__init__.py" or (name == self._top and is_file(self.name))
            below = [str(file.parent)] if is_package else None
            loader = _Loader(name, str(file), self.files[relative])
            spec = importlib.util.spec_from_file_location(
                name, file, loader=loader, submodule_search_locations=below
            )
        else:
            spec = importlib.util.spec_from_file_location(
                name, file, loader=ExtensionFileLoader(name, str(file))
            )
        assert spec
        spec.loader_state = self
        return spec

    def is_own_module(self, name: str) -> bool:
        """Return True if the given name is the top-level name under which this code is imported."""
        return name == self._top

    @property
    def _top(self) -> str:
        """Return the top-level name under which this code is imported. The name of a file contains
        a part of its fingerprint, so that no file hides another.
        """
        return _marked(self.name, self.fingerprint) if is_file(self.name) else self.name

    @functools.cached_property
    def _modules(self) -> Mapping[str, str]:
        """Return the file of each module by the module's name; for a folder without `__init__.py`,
        the folder. The neighbours of a file have two names, an absolute and a relative one.
        """
        if not is_file(self.name):
            return self._dotted
        if self.files.keys() == {self.name}:
            return {self._top: self.name}
        relative = {f"{self._top}.{name}": path for name, path in self._dotted.items()}
        stem = PurePath(self.name).stem
        hides = _is_of_python(stem) or _is_installed(stem)  # as a file named after a library would
        absolute = {k: v for k, v in self._dotted.items() if k != stem or not hides}
        return {self._top: self.name, **absolute, **relative}

    @functools.cached_property
    def _dotted(self) -> Mapping[str, str]:
        """Return the file or the folder of each module by the path of the module with dots."""
        found: dict[str, str] = {}
        for suffix in ("/__init__.py", *EXTENSION_SUFFIXES, ".py"):  # in Python's order
            for path in self.files:
                if path.endswith(suffix):
                    found.setdefault(path.removesuffix(suffix).replace("/", "."), path)
        for path in self.files:
            for folder in PurePath(path).parents[:-1]:
                found.setdefault(str(folder).replace("/", "."), str(folder))
        return found


class _Loader(SourceFileLoader):
    """A module loader that executes the given content of a file, whatever the file now contains."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)


def is_file(where: str) -> bool:
    """Return True if the part of a target before the colon names a file, False for a module."""
    return where.endswith(".py")


def name_of(where: str) -> str:
    """Return the name of the file, or of the package, that contains the module of a target.

    Args:
        where: The part of the target before the colon.
    """
    return PurePath(where).name if is_file(where) else where.partition(".")[0]


@functools.cache  # a sweep trains the code that was there when it began
def of_file(path: Path) -> Source:
    """Return the code of a user's file and of the neighbours that its import statements lead to.

    Raises:
        ValueError: If the file or a neighbour cannot be read, or if an imported neighbour has the
            name of an installed package.
    """
    files: dict[str, bytes] = {}
    pending = [path.name]
    while pending:
        name = pending.pop()
        if name in files:
            continue
        try:
            files[name] = (path.parent / name).read_bytes()
        except OSError as error:
            near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")])
            raise ValueError(
                f"{path.parent / name} cannot be read ({error.strerror}).{near} Name a file that "
                "can be read."
            ) from None
        for module, is_absolute in _imported(files[name], PurePath(name).parent.parts):
            found = [*_files_of(module, path.parent)]
            if found and is_absolute and _is_installed(module[0]):
                raise ValueError(
                    f"{path.parent / name} imports {module[0]}, which is {found[0]} beside it and "
                    f"an installed package, too: give {found[0]} another name."
                )
            pending += found
    files = {name: files[name] for name in sorted(files, key=PurePath)}  # as `_contents` sorts them
    return Source(path.name, path, _digest(path.name, files), files)


def _imported(content: bytes, package: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each module that a file's import statements may name, relative to the
    folder of the user's file, and True if the statement is an absolute import. The last part of a
    path may also be a name in the module before it. Absolute imports of modules of Python or bsweep
    are left out.

    Args:
        content: The content of the file.
        package: The path of the file's own folder.
    """
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError):
        return  # the import says what is wrong
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package) + 1:
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        else:
            continue
        is_absolute = isinstance(node, ast.Import) or not node.level
        yield from (
            (name, is_absolute) for name in names if not (is_absolute and _is_of_python(name[0]))
        )


def _files_of(module: tuple[str, ...], folder: Path) -> Iterator[str]:
    """Yield the files below a folder, relative to it, that the import of a module runs: the file of
    the module, if there is one, and those of the packages around it.
    """
    for end in range(1, len(module) + 1):
        inner = PurePath(*module[:end])
        for file in (inner / "__init__.py", inner.with_suffix(".py")):
            if (folder / file).is_file():
                yield str(file)
                break


@functools.cache
def of_package(name: str, folder: Path) -> Source:
    """Find a package, or a module that is in no package, and return its code without importing it.

    Args:
        name: The name of the package.
        folder: The folder in which to look first, before the folders of installed packages.

    Raises:
        ValueError: If there is no such package, or it is too large to be copied.
    """
    if name in sys.stdlib_module_names:
        raise ValueError(
            f"{name} is a module of Python itself. Give your module or package another name."
        )
    spec = PathFinder.find_spec(name, [str(folder)]) or importlib.util.find_spec(name)
    path = Path(
        next(iter(spec.submodule_search_locations or ()), spec.origin or "") if spec else ""
    )
    if not path.is_absolute():
        raise ValueError(
            f"there is no module {name}, neither in {folder} nor installed. Name a file as "
            "path/file.py:name."
        )
    if version := _installed_version(name, path):
        return Source(name, path, version, {})
    files = _contents(path, path.parent)
    return Source(name, path, _digest(name, files), files)


def _is_of_python(name: str) -> bool:
    """Return True if this is the name of bsweep or of a module of Python itself. An absolute import
    of such a name is never an import of a neighbour.
    """
    return name in sys.stdlib_module_names or name == "bsweep"


def _is_installed(name: str) -> bool:
    """Return True if an installed package, or an installed module that lies in no package, has this
    name.
    """
    spec = PathFinder.find_spec(name, [sysconfig.get_path(kind) for kind in ("purelib", "platlib")])
    return spec is not None and spec.origin is not None


def kept(name: str, fingerprint: str, folder: Path) -> Source:
    """Return the user's own code that was saved for a run, after a check that it is unchanged. Of
    an installed package nothing is saved: it is returned if its version is that of the run.

    Args:
        name: The name of the file or the package.
        fingerprint: The fingerprint of the code, from the run's configuration.
        folder: The run's folder of own code.

    Raises:
        ValueError: If the code there has another fingerprint.
    """
    if "==" in fingerprint:  # nothing is kept of an installed package
        source = of_package(name, Path.cwd())
        if source.fingerprint != fingerprint:
            raise ValueError(
                f"the run began with {fingerprint}, but {source.path} has another version. Install "
                f"{fingerprint} on all hosts."
            )
        return source
    root = _kept_in(folder, name, fingerprint)
    files = _contents(root, root)
    if _digest(name, files) != fingerprint:
        raise ValueError(
            f"{root} was changed: it no longer holds the code with which the run began. If the run "
            "is not completed, start the same sweep again, which writes that code anew."
        )
    path = root / (name if is_file(name) or (root / name).is_dir() else f"{name}.py")
    return Source(name, path, fingerprint, files)


def _kept_in(folder: Path, name: str, fingerprint: str) -> Path:
    """Return the folder in which a run keeps one file or package of the user's own code; it is a
    folder of the run's folder `own`.
    """
    return folder / _marked(name, fingerprint)


def _marked(name: str, fingerprint: str) -> str:
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', PurePath(name).stem)}_{fingerprint[:8]}"


def _digest(name: str, files: Mapping[str, bytes]) -> str:
    """Return the fingerprint of the user's file or package: a hash of the contents of its files."""
    if is_file(name) and files.keys() == {name}:
        return hashlib.sha256(files[name]).hexdigest()
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _installed_version(name: str, path: Path) -> str | None:
    """Return the names and versions of the distributions that installed a Python package, such as
    `timm==1.0`. Return None if no distribution did, or if the package lies outside the folders into
    which pip installs, for example where it is being developed.
    """
    if path.parent not in (
        Path(sysconfig.get_path("purelib")),
        Path(sysconfig.get_path("platlib")),
    ):
        return None
    import importlib.metadata  # imported here because it is slow

    names = importlib.metadata.packages_distributions().get(name, [])
    return (
        ", ".join(f"{name}=={importlib.metadata.version(name)}" for name in sorted(set(names)))
        or None
    )


def _contents(path: Path, root: Path) -> dict[str, bytes]:
    """Return the contents of a file, or of the files below a folder, by path relative to `root`.
    Hidden files and compiled Python files are left out.
    """
    below = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    relative = {str(file.relative_to(root)): file for file in below if file.is_file()}
    kept = {name: file for name, file in relative.items() if not _HIDDEN.search(name)}
    if (size := sum(file.stat().st_size for file in kept.values())) > _MOST_BYTES:
        raise ValueError(
            f"{path} holds {math.ceil(size / 2**20)} MiB, but code of your own may hold at most "
            f"{_MOST_BYTES / 2**20:.0f} MiB, because every run folder gets a copy. Move data files "
            "out of that folder, or install the package by pip without -e: bsweep does not copy a "
            "package that is installed so."
        )
    return {name: file.read_bytes() for name, file in kept.items()}
