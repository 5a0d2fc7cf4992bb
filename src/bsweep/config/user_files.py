"""The files of the user's own code: their contents, their fingerprint, and the import of these
files alone.

On `sys.path`, a folder of the user's would hide other modules. So a `Source` is a finder of
`importlib`, which finds the modules of its files and no others.

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
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePath
from types import ModuleType

from bsweep.config.values import unreadable
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

    @property
    def top(self) -> str:
        """The name under which this code is imported. The name of a file contains a part of its
        fingerprint, so that no file hides another.
        """
        return _marked(self.name, self.fingerprint) if is_file(self.name) else self.name

    def offer(self) -> None:
        """Let this process import this code, and no longer other code that clashes with it."""
        if self.files and self not in sys.meta_path:
            for other in _offered():
                if other.top == self.top or self.clash(other):
                    other.unload()
            sys.meta_path.insert(0, self)
            importlib.invalidate_caches()
            sys.dont_write_bytecode = True  # `saved` refuses compiled files

    def load(self, module: str) -> ModuleType:
        """Import and return a module.

        Args:
            module: The file's name, or the dotted name of a module of the package.
        """
        self.offer()
        return importlib.import_module(self.top if is_file(self.name) else module)

    def unload(self) -> None:
        """Remove the modules that were imported from this code, so that it can be loaded anew."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            for name in [*sys.modules]:
                if name.partition(".")[0] in {self.top, *self._shared_tops}:
                    del sys.modules[name]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import specification of a module of this code that lies in no package, for
        Python's import system; None for other modules.
        """
        if name == self.top and is_file(self.name):
            return importlib.util.spec_from_file_location(
                name, self.path, submodule_search_locations=[str(self.path.parent)]
            )
        if name not in self._shared_tops:
            return None
        # Other code may come with other files of the same package. And of a package without
        # `__init__.py`, Python would look for the folders on sys.path again.
        folders = [str(code.path.parent) for code in _offered() if name in code._shared_tops]
        spec = PathFinder.find_spec(name, folders)
        if spec and spec.submodule_search_locations is not None:
            spec.submodule_search_locations = [f"{folder}/{name}" for folder in folders]
        return spec

    def clash(self, other: Source) -> str | None:
        """Return the name of a module whose content differs between this code and other own code.
        A process can import only one of such modules. Return None if there is no such module.
        """
        shared = self._shared.keys() & other._shared.keys()
        return min((m for m in shared if self._shared[m] != other._shared[m]), default=None)

    @functools.cached_property
    def _shared(self) -> Mapping[str, bytes]:
        """The contents of the modules that any code imports by the same name, by that name. A file
        without neighbours has none: its name has its fingerprint.
        """
        if self.files.keys() == {self.name}:
            return {}
        return {
            path.partition(".")[0].removesuffix("/__init__").replace("/", "."): content
            for path, content in self.files.items()
        }

    @functools.cached_property
    def _shared_tops(self) -> frozenset[str]:
        """The first parts of these names; none that Python or an installed package has."""
        if not is_file(self.name):
            return frozenset({self.name})
        tops = {name.partition(".")[0] for name in self._shared}
        return frozenset(top for top in tops if not _is_of_python(top) and not _is_installed(top))

    def save(self, folder: Path) -> None:
        """Write the files of this code into a run's folder, from which the function `saved` reads
        them.
        """
        for path, content in self.files.items():
            file = folder / _marked(self.name, self.fingerprint) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)


def _offered() -> list[Source]:
    """Return the code that this process can import by its finders."""
    return [finder for finder in sys.meta_path if isinstance(finder, Source)]


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
            raise ValueError(unreadable(path.parent / name, error)) from None
        for module, is_absolute in _imported(files[name], PurePath(name).parent.parts):
            neighbours = [*_files_of(module, path.parent)]
            if neighbours and is_absolute and _is_installed(module[0]):
                raise ValueError(
                    f"{path.parent / name} imports {module[0]}, which is {neighbours[0]} beside it "
                    f"and an installed package, too: give {neighbours[0]} another name."
                )
            pending += neighbours
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
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return  # the import says what is wrong
    for node in ast.walk(tree):
        level = 0
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package) + 1:
            level = node.level
            base = package[: len(package) + 1 - level] if level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        else:
            continue
        yield from ((name, not level) for name in names if level or not _is_of_python(name[0]))


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
    spec = PathFinder.find_spec(name, _installation_folders())
    return spec is not None and spec.origin is not None


def _installation_folders() -> list[str]:
    return [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]


def saved(name: str, fingerprint: str, folder: Path) -> Source:
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
    root = folder / _marked(name, fingerprint)
    files = _contents(root, root)
    if _digest(name, files) != fingerprint or any(root.rglob("*.pyc")):
        raise ValueError(
            f"{root} was changed: it no longer holds the code with which the run began. If the run "
            "is not completed, start the same sweep again, which writes that code anew."
        )
    path = root / (name if is_file(name) or (root / name).is_dir() else f"{name}.py")
    return Source(name, path, fingerprint, files)


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
    if str(path.parent) not in _installation_folders():
        return None
    import importlib.metadata  # imported here because it is slow

    names = importlib.metadata.packages_distributions().get(name, [])
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in sorted(set(names))]
    return ", ".join(versions) or None


def _contents(path: Path, root: Path) -> dict[str, bytes]:
    """Return the contents of a file, or of the files below a folder, by path relative to `root`.
    Hidden files and compiled Python files are left out.
    """
    below = sorted(path.rglob("*")) if path.is_dir() else [path]
    relative = {str(file.relative_to(root)): file for file in below if file.is_file()}
    files = {name: file for name, file in relative.items() if not _HIDDEN.search(name)}
    if sum(file.stat().st_size for file in files.values()) > _MOST_BYTES:
        raise ValueError(
            f"{path} holds more than {_MOST_BYTES / 2**20:.0f} MiB, and every run folder gets a "
            "copy. Move data files out of that folder, or install the package by pip without -e: "
            "bsweep does not copy a package that is installed so."
        )
    return {name: file.read_bytes() for name, file in files.items()}
