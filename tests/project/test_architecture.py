"""How the package is laid out: rooms in one order, short functions, and no state that is kept in
modules.

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
MIN_SENTENCES = 2  # of what a room says of itself

KEPT_STATE = {
    "analysis/once.py:_known": "a cache: tables, until `computing_once` ends",
    "config/own.py:_SOURCES": "a cache: the user's code by name and fingerprint",
    "core/terminal.py:is_interrupted": "a signal handler's",
    "data/cache.py:_CHECKED": "a cache: versions of files whose checksum was right",
    "launch/preflight.py:_ready": "a cache: hosts that have answered",
    "launch/seats.py:own_gpus": "of a thread: the GPUs that it is pinned to",
    "launch/stop.py:_all_are_to_stop": "a signal handler's",
    "launch/stop.py:_elsewhere": "a signal handler's: signals come to the main thread alone",
    "runlog/waits.py:_MAIN": "of the process: whether its main thread waits",
    "strategies/process_group.py:_KEPT": "groups of torch's, which may hang where they end",
    "study/states.py:_RECORDED": "a cache: how far records were read",
    "train/graph_capture.py:_broken": "of the process: why it captures no CUDA graph any more",
    "trackers/live.py:_copiers": "the processes that trackers have, one of each for all points",
}
"""What modules remember from one call to the next, and why it is no argument.

What `functools.cache` keeps is not listed: it changes no answer.
"""

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


def test_the_analysis_never_loads_torch() -> None:
    program = "import sys, bsweep.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Rooms


def test_every_module_lives_in_a_room() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}
    assert [name for name in sorted(ROOMS) if f"bsweep.{name}" not in PATHS] == []


def test_each_room_says_what_it_is_for() -> None:
    says = {name: ast.get_docstring(TREES[f"bsweep.{name}"]) or "" for name in sorted(ROOMS)}
    sentences = {name: len(re.findall(r"\.(?=\s|$)", text)) for name, text in says.items()}
    assert [name for name, number in sentences.items() if number < MIN_SENTENCES] == []


def test_the_map_in_contributing_lists_the_rooms_in_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (rows,) = re.findall(r"^\| room \|.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    on_map = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert len(on_map) == len(rows.splitlines())
    assert set(on_map) == ROOMS
    order = [name for name in layers() if name != "__main__"]
    assert on_map == order
    lines = [line.split(" > ") for line in re.findall(r"^    (\w+(?: > \w+)+)", text, re.MULTILINE)]
    assert {name for line in lines for name in line} == ROOMS
    assert all(line == [name for name in order if name in line] for line in lines)


def test_the_tests_mirror_the_rooms() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    assert sorted(folders - ROOMS) == ["project", "support"]


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


def test_functions_fit_a_screen() -> None:
    source = ROOT / "src"
    paths = sorted(source.rglob("*.py"))
    assert {
        f"{path.relative_to(source)}:{name}": length
        for path in paths
        for name, length in too_long(path.read_text()).items()
    } == {}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("def f():\n", "f"),
        ("async def f():\n", "f"),
        ("if True:\n def f():\n", "f"),
        ("class C:\n def f(self):\n", "C.f"),
        ("def outer():\n def f():\n", "outer.f"),
    ],
)
def test_a_long_function_is_found_wherever_it_stands(head: str, name: str) -> None:
    assert too_long(head + "  1\n" * MOST_LINES)[name] == MOST_LINES + 1
    assert name not in too_long(head + "  1\n" * (MOST_LINES - 1))


# State

CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "reverse", "set", "setdefault", "sort", "update"),
}
"""Methods that change what they are called on, and may be called for their answer as well."""


HANDLES = ("logging.getLogger(", "terminal.logger(", "ctypes.CDLL(")
"""What names are bound to of which nothing is known but that its functions are called."""


def bound(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names of a module's own, or of another of this package, and those of modules."""
    names, modules = {"cls"}, set()
    for part in tree.body:
        if isinstance(part, Function | ast.ClassDef):
            names.add(part.name)
        elif not ast.unparse(part).split(" = ")[-1].startswith(HANDLES):
            stored = (one for one in ast.walk(part) if isinstance(one, ast.Name))
            names |= {one.id for one in stored if isinstance(one.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "bsweep":
            names |= {one.asname or one.name for one in node.names}
            paths = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            modules |= {name for name, path in paths.items() if path in PATHS}
    return names, modules


def hidden_by(function: Function | ast.Lambda) -> set[str]:
    """Return a function's own names, by which it means nothing of its module's."""
    given = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    own: list[ast.AST] = [*ast.iter_child_nodes(function)]
    shared: set[str] = set()
    for node in own:
        if isinstance(node, ast.Global):
            shared |= {*node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given.add(node.id)
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            own += ast.iter_child_nodes(node)
    return given - shared - {"cls"}


def changed_by(node: ast.AST, modules: set[str]) -> str | None:
    """Return the name of what a node changes in place, as far as its syntax tells."""
    called = node.value if isinstance(node, ast.Expr) else node
    is_change = called is not node  # what is called for nothing but what it does
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute):
        what = called.func.value
        if isinstance(what, ast.Name) and what.id in modules:
            return None  # a function
        is_change |= called.func.attr in CHANGES
    elif isinstance(node, ast.Attribute | ast.Subscript):
        what, is_change = node.value, isinstance(node.ctx, ast.Store | ast.Del)
    else:
        return None
    while isinstance(what, ast.Attribute | ast.Subscript):
        what = what.value
    return what.id if is_change and isinstance(what, ast.Name) else None


def kept_state(source: str) -> set[str]:
    """Return the names of a module that its functions bind anew, or whose values they change."""
    tree = ast.parse(source)
    names, modules = bound(tree)

    def below(node: ast.AST, hidden: set[str] | None) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.Lambda):
                yield from below(child, (hidden or set()) | hidden_by(child))
                continue
            if hidden is not None:
                yield from child.names if isinstance(child, ast.Global) else ()
                if (name := changed_by(child, modules)) in names - hidden and name:
                    yield name
            yield from below(child, hidden)

    return {*below(tree, None)}


def found_state() -> set[str]:
    return {
        f"{path.relative_to(PACKAGE)}:{name}"
        for path in PATHS.values()
        for name in kept_state(path.read_text())
    }


def test_modules_keep_no_state_but_what_has_a_reason() -> None:
    assert sorted(found_state() - KEPT_STATE.keys()) == []


def test_state_that_is_gone_is_no_longer_listed() -> None:
    assert sorted(KEPT_STATE.keys() - found_state()) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1\ndef f():\n global x\n x = 2", {"x"}),
        ("x = {}\ndef f(): x['a'] = 1", {"x"}),
        ("x = {}\ndef f(): del x['a']", {"x"}),
        ("x = [0]\ndef f(): x[0] += 1", {"x"}),
        ("x = [n for n in ()]\ndef f(): return x.pop()", {"x"}),
        ("x: set[int] = set()\ndef f():\n def g(): x.add(1)", {"x"}),
        ("x = {}\nf = lambda: x.setdefault(1, [])", {"x"}),
        ("x = {}\nasync def f(): x.setdefault(1, []).append(2)", {"x"}),
        ("x = Sweep()\ndef f(): x.begin()", {"x"}),
        ("x = Sweep()\ndef f(): x.progress.lines = 1", {"x"}),
        ("def f(): f.calls = 1", {"f"}),
        ("class C:\n def f(self): C.calls = 1", {"C"}),
        ("class C:\n @classmethod\n def f(cls): cls.calls.append(1)", {"cls"}),
        ("def f():\n from bsweep.study import sweep\n sweep.PROGRESS = 1", {"sweep"}),
        ("from bsweep.study import sweep\ndef f(): sweep.STATUSES.append(1)", {"sweep"}),
        ("from bsweep.study.x import STATUSES\ndef f(): STATUSES.append(1)", {"STATUSES"}),
        ("x = {}\nx['a'] = 1\ndef f(): return x['a'], x.get(1)", set()),
        ("x = {}\ndef f(x): x['a'] = 1", set()),
        ("x = {}\ndef f():\n x = []\n x.append(1)", set()),
        ("import sys\ndef f(): sys.path.append('')", set()),
        ("from bsweep.study import sweep\ndef f(): sweep.run()", set()),
        ("x = logging.getLogger(__name__)\ndef f(): x.info('')", set()),
    ],
)
def test_state_is_found(source: str, names: set[str]) -> None:
    assert kept_state(source) == names


def test_names_of_tests_are_short() -> None:
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = [name for source in sources for name in re.findall(r"def (test_\w+)", source)]
    assert len(names) > 1000
    assert [name for name in names if len(name) >= 70] == []
