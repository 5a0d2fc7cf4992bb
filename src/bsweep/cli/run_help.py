"""The text of `bsweep run --help`: examples, the options of each group, and the keys of the chosen
options with their values and meanings.

The meanings are the docstrings of the fields in `bsweep.config`, read from its source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from bsweep.compose import hydra_grid
from bsweep.compose.words import Words
from bsweep.config.card import Schema
from bsweep.config.run import RunConfig, cards_by_name

_HEAD = """\
bsweep run trains one point, or every point of a grid. Give exactly one of local_batch and
global_batch. Values joined by commas are a sweep over them.

  bsweep run local_batch=64 num_workers=2
  bsweep run local_batch=8,16,32 num_workers=1,2 seed=0,1
  bsweep run experiment=quickstart
  bsweep run local_batch=16 data=text data.path=FILE model=llama_tiny optimizer=adamw
  horovodrun -np 2 bsweep run local_batch=8,16,32
"""
_FLAGS = """\
--report writes the report after the runs. Flags of Hydra: --cfg job shows the point and trains
nothing, --info, --config-dir DIR.
Exit code: 0 all points completed, 1 some did not complete or --report failed, 2 invalid input and
nothing was started, 130 interrupted.
"""
_KEY_COLUMNS = 34
_FEWEST_COLUMNS, _MOST_COLUMNS = 60, 120


def text(words: Words) -> str:
    """Return the help for a command line.

    Args:
        words: The typed arguments, such as `strategy=diloco`: the help shows the keys of the
            options that they choose, with the values that they give.

    Raises:
        ConfigError: If an override is wrong.
    """
    values, chosen, options = hydra_grid.described(words)
    columns = min(max(shutil.get_terminal_size().columns, _FEWEST_COLUMNS), _MOST_COLUMNS)
    lines = [_HEAD, "Groups (group=option; `bsweep run --help strategy=ddp` shows its keys):", ""]
    for group, names in options.items():
        lines += _entry(group, ", ".join(names), columns)
    lines += ["", "Keys with their values (key=value sets another):", ""]
    lines += _keys(
        "", {key: values[key] for key in values if key not in chosen}, RunConfig, columns
    )
    for group, option in chosen.items():
        name = values[group].pop("name", "")  # the line of the group says it
        card = cards_by_name(group).get(name)
        lines += ["", *_entry(f"{group}={option}", _purpose(card), columns)]
        lines += _keys(f"{group}.", values[group], card, columns)
    return "\n".join([*lines, "", _FLAGS])


def _keys(
    prefix: str, values: Mapping[str, Any], schema: type[object] | None, columns: int
) -> list[str]:
    """Return lines with keys, their values and their meanings, in the order of `_meanings`.

    Args:
        prefix: The beginning of the keys, such as `optimizer.`.
        values: The values by the rest of the key.
        schema: The class that declares the keys; None if there is none.
        columns: The width of the lines.
    """
    meanings = _meanings(schema) if schema else {}
    known = {key: values[key] for key in meanings if key in values}
    lines = []
    for key, value in {**known, **values}.items():
        if isinstance(value, dict) and value:
            kind = type(getattr(schema, key, None))
            lines += _keys(f"{prefix}{key}.", value, kind, columns)
        else:
            lines += _entry(f"{prefix}{key}={_typed(value)}", meanings.get(key, ""), columns)
    return lines


def _entry(name: str, meaning: str, columns: int) -> list[str]:
    """Return lines with a name on the left and its meaning, wrapped, on the right."""
    margin = " " * _KEY_COLUMNS
    lines = textwrap.wrap(
        meaning, columns, initial_indent=margin, subsequent_indent=margin, break_long_words=False
    )
    left = f"  {name}"
    if not lines:
        return [left]
    if len(left) + 1 >= _KEY_COLUMNS:
        return [left, *lines]
    return [left.ljust(_KEY_COLUMNS) + lines[0][_KEY_COLUMNS:], *lines[1:]]


def _typed(value: object) -> str:
    """Return a value as a user types it on the command line."""
    if isinstance(value, str):
        return "" if value == "???" else value
    return json.dumps(value, separators=(",", ":"))


def _purpose(card: type[object] | None) -> str:
    """Return the first sentence of a card's docstring; an empty text without a card."""
    text = " ".join((card.__doc__ or "").split()) if card else ""
    return re.split(r"(?<=[^.]\.)\s", text)[0]


def _meanings(schema: type[object]) -> dict[str, str]:
    """Return the meanings of a schema's keys, those that its own class declares first, then those
    of its base classes.
    """
    meanings: dict[str, str] = {}
    for base in schema.__mro__:
        if issubclass(base, Schema):
            for key, meaning in _docstrings(base.__module__)[base.__name__].items():
                meanings[key] = meanings.get(key) or meaning
    return meanings


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstring below each field of the classes of a module, by class and field; an
    empty text for a field that has none.
    """
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            fields = classes.setdefault(node.name, {})
            for statement, below in itertools.pairwise([*node.body, ast.Pass()]):
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    fields[statement.target.id] = _text(below)
    return classes


def _text(statement: ast.stmt) -> str:
    """Return the text of a statement that is a text alone, without its line ends; of others an
    empty text.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""
