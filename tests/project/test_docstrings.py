"""The docstrings of the package's exports and of its extension points have their sections."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import bsweep
from bsweep import analysis, plots, report
from bsweep.analysis import loaded
from bsweep.batching import base as batching
from bsweep.compression import base as compression
from bsweep.config import card, groups
from bsweep.launch import launcher
from bsweep.strategies import base as strategies

EXPORTS = (bsweep, analysis, plots, report)
SEAMS = (strategies, batching, compression, launcher, loaded, card, groups)


def test_exports_and_seams_have_the_sections_that_apply() -> None:
    missing = [
        f"{name}: {section}"
        for name, function in sorted(_documented().items())
        for section in _wanted(function)
        if f"\n{section}:\n" not in (inspect.getdoc(function) or "")
    ]

    assert missing == []


def test_the_functions_that_are_checked_include_a_method_of_each_seam() -> None:
    names = _documented()

    for name in ("load", "predict", "write", "NoiseScale.step", "figures", "Strategy.gather"):
        assert name in names
    for name in ("Policy.shares", "Codec.exchange", "Launcher.launch", "CodecConfig.warnings"):
        assert name in names


def _documented() -> dict[str, Callable[..., Any]]:
    """Return the public functions and methods of exports and seams by qualified name."""
    members: list[object] = [getattr(room, name) for room in EXPORTS for name in room.__all__]
    members += [
        member
        for seam in SEAMS
        for name, member in vars(seam).items()
        if getattr(member, "__module__", None) == seam.__name__ and not name.startswith("_")
    ]
    found = {}
    for member in members:
        if isinstance(member, type):
            found.update({method.__qualname__: method for method in _methods(member)})
        elif callable(member) and inspect.isfunction(function := inspect.unwrap(member)):
            found[function.__qualname__] = function
    return found


def _methods(cls: type) -> Iterator[Callable[..., Any]]:
    """Yield the public methods that the class defines with a docstring of their own.

    A method without one overrides a method of a base class, and has that method's docstring.
    """
    for name, value in vars(cls).items():
        method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and inspect.isfunction(method) and method.__doc__:
            yield inspect.unwrap(method)


def _wanted(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the sections that the docstring of a function must have."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    result = ast.unparse(definition.returns) if definition.returns else "None"
    if [name for name in inspect.signature(function).parameters if name != "self"]:
        yield "Args"
    if result not in ("None", "Iterator[None]"):  # the second is a context without a value
        yield "Yields" if result.startswith("Iterator") else "Returns"
    if any(isinstance(node, ast.Raise) for node in _own_nodes(definition)):
        yield "Raises"


def _own_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions inside it."""
    for node in ast.iter_child_nodes(definition):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)
