"""Who may import whom; the contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


def test_the_analysis_never_loads_torch() -> None:
    program = "import sys, bsweep.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_functions_fit_a_screen_and_files_a_sitting() -> None:
    paths = sorted((ROOT / "src").rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    lengths = {
        f"{path.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert [name for name, length in lengths.items() if length > 45] == []
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 20
    assert [path.name for path in paths if len(path.read_text().splitlines()) > 400] == []
