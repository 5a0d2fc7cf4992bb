"""The text of `bsweep run --help`: examples, the options of each group, and the keys of the chosen
options with their values and meanings.

The meanings are the comments of the YAML files in `conf/`, where the defaults stand too.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

from bsweep.compose import hydra_grid
from bsweep.compose.words import Words
from bsweep.config.parsing import conf_dir

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
_KEY = re.compile(r"( *)(\w+):(?:\s+([^#]*?))?\s*(?:#\s*(.*))?$")


def text(words: Words) -> str:
    """Return the help for a command line.

    Args:
        words: The typed arguments, such as `strategy=diloco`: the help shows the keys of the
            options that they choose, with the values that they give.

    Raises:
        ConfigError: If an override is wrong.
    """
    point, chosen, options = hydra_grid.described(words)
    columns = min(max(shutil.get_terminal_size().columns, _FEWEST_COLUMNS), _MOST_COLUMNS)
    lines = [_HEAD, "Groups (group=option; `bsweep run --help strategy=ddp` shows its keys):", ""]
    for group, names in options.items():
        lines += _entry(group, ", ".join(names), columns)
    lines += ["", "Keys with their values (key=value sets another):", ""]
    shared = dict(_comments(conf_dir() / "config.yaml", ""))
    for group, keys in itertools.groupby(point, lambda key: key.partition(".")[0]):
        meanings: dict[str, str] = {}
        if option := chosen.get(group):
            path = conf_dir() / group / f"{option}.yaml"
            meanings = dict(_comments(path, f"{group}."))
            lines += ["", *_entry(f"{group}={option}", _purpose(path), columns)]
        for key in sorted(keys, key=lambda key: key not in meanings):
            if key != f"{group}.name":  # the line of the group says it
                meaning = meanings.get(key) or shared.get(key, "")
                lines += _entry(f"{key}={_typed(point[key])}", meaning, columns)
    return "\n".join([*lines, "", _FLAGS])


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


def _purpose(path: Path) -> str:
    """Return the first sentence of the comment that begins an option's file; empty if there is no
    such comment, or if the option is the user's own.
    """
    match = re.search(r"(^# .+\n)+", path.read_text() if path.exists() else "", re.MULTILINE)
    lines = match[0].splitlines() if match else []
    sentences = " ".join(line[2:] for line in lines if not line.startswith("# @"))
    return re.split(r"(?<=[^.]\.)\s", sentences)[0]


def _comments(path: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a YAML file that have a comment, with the comment, after those of
    the files that it inherits from.
    """
    if not path.exists():  # an option of the user's own, from --config-dir
        return
    written = path.read_text()
    for parent in (yaml.safe_load(written) or {}).get("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            yield from _comments(path.parent / f"{parent}.yaml", prefix)
    if "@package _global_" in written:
        prefix = ""
    above: list[str] = []
    for line in written.splitlines():
        if match := _KEY.match(line):
            indent, key, _, comment = match.groups()
            above = [*above[: len(indent) // 2], key]
            if comment:
                yield prefix + ".".join(above), comment
