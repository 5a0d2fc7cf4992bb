"""Damages files in many ways, which are the same in each run of the tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

AT_ONCE = 25  # for hypothesis takes longer over an example than readers over a mutation

# What stands for a value of JSON text.
ODD = st.sampled_from(
    ["null", "true", "-1", "0", "1.5", "-0.5", "1e400", "-1e400", "1e308", "NaN", "Infinity",
    "9" * 30, "9" * 5000, "2147483647", "9007199254740991",
     '""', '"x"', '"5"', '"NaN"', '"\\u0000"', '"\\ud800"', "[]", "{}", "[1, 2]", '["a"]', ('{"a": '
     '1}'), '{"name": 5}',
     '[[1], "a"]', "[" * 300 + "]" * 300, '{"a":' * 150 + "1" + "}" * 150, "\x00",
     "oops", "1" * 400]
)  # fmt: skip
RAW = st.sampled_from(
    [b"", b"5", b"[1,2]", b"null", b"\xff\xfe", b"\x00" * 99, b'"a"', b"{}", b"[]", b"{", b"\n\n"]
)
KEYS = st.sampled_from(
    [
        "run_id",
        "status",
        "local_batch",
        "learning_rate",
        "threads",
        "schema",
        "type",
        "a.b",
        "",
        "é",
    ]
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a tree are, inner nodes included."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def with_odd(text: str, draw: st.DrawFn) -> str:
    """JSON text with one value in it replaced, taken away, or added under another name."""
    tree = {"": json.loads(text)}
    place: tuple[Any, ...] = ("", *draw(st.sampled_from(places(tree[""]))))
    *parents, key = place
    inner: Any = tree
    for parent in parents:
        inner = inner[parent]
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if how == "remove" and key != "":
        del inner[key]
    elif how == "add" and isinstance(inner, dict) and key != "":
        inner[draw(KEYS)] = "ODD"
    else:
        inner[key] = "ODD"
    return json.dumps(tree[""]).replace('"ODD"', draw(ODD))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, is_json: bool = True) -> bytes:
    """A file with something wrong in it; half of the time in a value of its JSON lines, or of its
    one JSON value in one line.
    """
    values = ["value"] * 4 * is_json
    how = draw(st.sampled_from([*values, "bytes", "cut", "lines", "raw"]))
    lines = whole.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    if how == "value":
        lines[number] = with_odd(lines[number].decode(), draw).encode(errors="replace") + b"\n"
    elif how == "bytes":
        at = draw(st.integers(0, len(whole)))
        return whole[:at] + draw(st.binary(max_size=8)) + whole[at + draw(st.integers(0, 8)) :]
    elif how == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    elif how == "lines":
        lines[number : number + draw(st.integers(0, 2))] = [draw(RAW) + b"\n"] * draw(
            st.integers(0, 2)
        )
    else:
        return draw(RAW)
    return b"".join(lines)


def fuzz(
    reader: str,
    read: Callable[[bytes], bool],
    num_mutations: int,
    *contents: st.SearchStrategy[bytes],
) -> Counter[bool]:
    """Have many contents of a file read, the same ones in each run of the tests, and print how many
    were.

    `read` returns True if the reader took the content, and False if it said what is wrong.
    """
    taken: Counter[bool] = Counter()
    size = min(AT_ONCE, num_mutations)
    rule = settings(
        max_examples=num_mutations // size, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @rule
    @given(st.lists(st.one_of(contents), min_size=size, max_size=size))
    def read_some(mutations: list[bytes]) -> None:
        taken.update(map(read, mutations))

    read_some()
    print(f"{reader}: {taken.total()} mutations, {taken[True]} read, {taken[False]} named")
    assert taken.total() >= num_mutations
    return taken
