"""How the package is laid out: rooms in one order, modules without circles, and few imports.

The contracts of the imports are in pyproject.toml.
"""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import bsweep
from tests.support.running import ROOT

PACKAGE = ROOT / "src/bsweep"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def eager(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (is_for_types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield child
            yield from eager(child)


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the modules of this package that these nodes import, `from room import module` too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in TREES)
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name if name in TREES else str(node.module) for name in whole)


def test_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


def test_modules_that_are_imported_import_each_other_in_no_circle() -> None:
    graph = {name: {*imported(eager(tree))} - {name} for name, tree in TREES.items()}
    TopologicalSorter(graph).prepare()  # names a circle


def test_the_package_has_all_that_it_names() -> None:
    assert all(getattr(bsweep, name) for name in bsweep.__all__)
    assert bsweep.__version__ == importlib.metadata.version("bsweep")
