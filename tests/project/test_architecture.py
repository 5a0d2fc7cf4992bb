"""How the package is laid out: rooms in one order, and short functions.

The contracts of the imports are in pyproject.toml, the map of the rooms is in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.api import read_configuration
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/bsweep"
MOST_LINES = 45  # of a function, beside its docstring
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/*.py")}


def layers() -> list[str]:
    """The rooms in the order of the contract: each imports only those after it."""
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    (rooms,) = (contract for contract in contracts if contract["id"] == "rooms")
    return [name for layer in rooms["layers"] for name in re.split(r"\W+", layer)]


# Imports


def eager(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (is_for_types or isinstance(child, Function)):
            yield child
            yield from eager(child)


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the modules of this package that these nodes import, `from room import module` too."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{ast.unparse(node)}: name the whole path"
            whole = {name: f"{node.module}.{name}" for name in (one.name for one in node.names)}
            names = [name if name in PATHS else str(node.module) for name in whole.values()]
        yield from (name for name in names if name.split(".")[0] == "bsweep")


def refuse_circles(imports: Mapping[str, set[str]]) -> None:
    """Raise graphlib.CycleError, which names a circle."""
    graph = {name: others - {name} for name, others in imports.items()}
    TopologicalSorter(graph).prepare()


def test_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


def test_no_circle_of_imports_between_rooms_not_even_lazy_ones() -> None:
    rooms: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        if name in ("bsweep", "bsweep.__main__"):
            continue  # what users import first, and what they start
        others = {other.split(".")[1] for other in imported(ast.walk(tree)) if other != "bsweep"}
        rooms.setdefault(name.split(".")[1], set()).update(others)
    assert rooms.keys() == ROOMS
    refuse_circles(rooms)


def test_modules_that_are_imported_import_each_other_in_no_circle() -> None:
    refuse_circles({name: {*imported(eager(tree))} for name, tree in TREES.items()})


@pytest.mark.full
def test_the_analysis_never_loads_torch() -> None:
    program = "import sys, bsweep.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Rooms


def test_every_module_lives_in_a_room() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}
    assert [name for name in sorted(ROOMS) if f"bsweep.{name}" not in PATHS] == []


def test_the_map_in_contributing_lists_the_rooms_in_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (rows,) = re.findall(r"^\| room \|.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    on_map = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert on_map == [name for name in layers() if name != "__main__"]
    assert set(on_map) == ROOMS


# Functions


def functions(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[tuple[str, Function]]:
    """Yield all functions below a node with their qualified names."""
    for child in ast.iter_child_nodes(node):
        names = (*within, child.name) if isinstance(child, Function | ast.ClassDef) else within
        if isinstance(child, Function):
            yield ".".join(names), child
        yield from functions(child, names)


def too_long(source: str) -> dict[str, int]:
    """Return the lines of functions that have more than `MOST_LINES` beside their docstring."""
    lengths = {
        name: _num_lines(function)
        - (_num_lines(function.body[0]) if has_docstring(function) else 0)
        for name, function in functions(ast.parse(source))
    }
    return {name: length for name, length in lengths.items() if length > MOST_LINES}


def has_docstring(function: Function) -> bool:
    return ast.get_docstring(function) is not None


def _num_lines(node: Function | ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


@pytest.mark.full
def test_functions_fit_a_screen() -> None:
    source = ROOT / "src"
    paths = sorted(source.rglob("*.py"))
    assert {
        f"{path.relative_to(source)}:{name}": length
        for path in paths
        for name, length in too_long(path.read_text()).items()
    } == {}
