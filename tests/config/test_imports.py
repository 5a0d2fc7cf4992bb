"""The modules of the schema lie in an order: none imports another in a circle, not even lazily or
for the type checker.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import bsweep.config

ROOM = "bsweep.config"


def imported(source: str, modules: set[str]) -> set[str]:
    """The modules of the room that a source imports, wherever in it; `__init__` for the room."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names if f"{name}.".startswith(f"{ROOM}.")]
        found |= {part[2] if part[2:] and part[2] in modules else "__init__" for part in parts}
    return found


def test_no_circle_within_the_schema() -> None:
    paths = sorted(Path(bsweep.config.__file__).parent.glob("*.py"))
    modules = {path.stem for path in paths}
    TopologicalSorter({p.stem: imported(p.read_text(), modules) for p in paths}).prepare()
