"""Code of one's own: found, checked, hashed, kept, and found again where it was kept."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import TypeAdapter

from bsweep.config import user_code, user_files
from bsweep.config.card import Card
from bsweep.config.user_code import UserCode
from bsweep.config.values import ConfigError
from tests.support.refusing import refused


class _OwnModel(UserCode):
    name: Literal["own"] = "own"
    takes: ClassVar[tuple[str, ...]] = ("num_classes", "shape")


class _Config(Card):
    model: _OwnModel
    epochs: int = 1


FILE = """\
LIMIT = 3

def build(num_classes, shape, width=8, *, depth=1):
    return num_classes, shape, width, depth

def needs(num_classes, shape, root):
    return root

def anything(num_classes, shape, **options):
    return options

def too_few(num_classes):
    return num_classes

class Net:
    def __init__(self, num_classes, shape):
        raise RuntimeError("no such net")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to start in, and a process that has found nothing yet."""
    (tmp_path / "mymodel.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    user_code.forget()


def forget() -> None:
    """Forget what was found, as a new process would not know it."""
    user_code.forget()
    for cache in (user_files.of_file, user_files.of_package):
        cache.cache_clear()


def config(target: str, **options: Any) -> _Config:
    given = {"model": {"target": target, "options": options}}
    return TypeAdapter(_Config).validate_python(given)


class _Two(_Config):
    data: _OwnModel


def two(model: str, data: str) -> _Two:
    return _Two(model=config(model).model, data=config(data).model)


def resolved(target: str, **options: Any) -> _OwnModel:
    found = user_code.with_fingerprints(config(target, **options))
    user_code.check(found)
    return found.model


def test_a_file_is_called_with_what_its_card_takes_and_the_options(folder: Path) -> None:
    card = resolved("mymodel.py:build", width=32)
    assert user_code.call(card, 10, (3, 8, 8)) == (10, (3, 8, 8), 32, 1)
    assert card.fingerprint
    assert len(card.fingerprint) == 64
    assert user_code.cards(config("mymodel.py:build")).keys() == {"model"}
    assert resolved("mymodel.py:anything", width=1, depth=2)
    assert user_code.with_fingerprints(user_code.with_fingerprints(config("mymodel.py:build")))


def test_cards_say_which_code_it_is_and_not_where_it_lay(folder: Path) -> None:
    (folder / "copy").mkdir()
    (folder / "copy/mymodel.py").write_text(FILE)
    assert (
        resolved("mymodel.py:build")
        == resolved("copy/mymodel.py:build")
        == resolved(f"{folder}/mymodel.py:build")
    )
    assert hash(resolved("mymodel.py:build", width=1)) == hash(
        resolved("mymodel.py:build", width=1)
    )


def test_changed_code_is_other_code_but_a_sweep_keeps_what_it_began_with(folder: Path) -> None:
    before = resolved("mymodel.py:build")
    (folder / "mymodel.py").write_text(FILE.replace("width=8", "width=9"))
    assert resolved("mymodel.py:build") == before
    assert user_code.call(before, 1, ())[2] == 8
    forget()
    after = resolved("mymodel.py:build")
    assert after.fingerprint != before.fingerprint
    assert user_code.call(after, 1, ())[2] == 9


def write_package(folder: Path) -> None:
    for name in ("__pycache__", "plain"):
        (folder / "mypackage" / name).mkdir(parents=True)
    (folder / "mypackage/__init__.py").write_text("")
    (folder / "mypackage/layers.py").write_text("WIDTH = 5\n")
    (folder / "mypackage/plain/part.py").write_text("from ..layers import WIDTH\n")
    (folder / "mypackage/nets.py").write_text(
        "def build(num_classes, shape):\n"
        "    from mypackage.plain.part import WIDTH\n"
        "    return WIDTH\n"
    )
    (folder / "mypackage/__pycache__/x.pyc").write_text("")


def test_of_a_package_all_files_count_and_are_kept(folder: Path) -> None:
    write_package(folder)
    card = resolved("mypackage.nets:build")
    assert user_code.call(card, 1, ()) == 5
    run = folder / "run/own"
    user_code.save(_Config(model=card), run)
    kept = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    names = ("__init__", "layers", "nets", "plain/part")
    assert kept == [f"mypackage_{str(card.fingerprint)[:8]}/mypackage/{name}.py" for name in names]
    (folder / "mypackage/layers.py").write_text("WIDTH = 6\n")
    forget()
    assert resolved("mypackage.nets:build").fingerprint != card.fingerprint


def test_of_an_installed_package_the_version_counts_and_nothing_is_kept(folder: Path) -> None:
    import yaml

    card = resolved("yaml:dump")
    assert card.fingerprint == f"PyYAML=={yaml.__version__}"
    assert user_code.load_target(card) is yaml.dump
    user_code.save(_Config(model=card), folder / "run/own")
    assert not (folder / "run/own").exists()
    user_code.forget()
    other = _Config(model=replace(card, fingerprint="PyYAML==0.1"))
    with pytest.raises(
        ConfigError, match=r"began with PyYAML==0\.1, but .*yaml has another version"
    ):
        user_code.load_saved(other, folder / "run/own")


@pytest.mark.parametrize("target", ["mymodel.py:build", "mypackage.nets:build"])
def test_a_worker_finds_what_was_kept_wherever_it_starts(folder: Path, target: str) -> None:
    write_package(folder)
    card = resolved(target)
    worker(card, folder / "run/own")
    module = sys.modules[user_code.load_target(card).__module__]
    assert Path(str(module.__file__)).is_relative_to(folder / "run/own")
    assert user_code.call(card, 1, ())
    assert str(folder / "run/own") not in sys.path


def worker(card: _OwnModel, run: Path, *, kept: bool = False) -> None:
    """Be a process that knows of a card's code what the run has kept; keep it first by default."""
    if not kept:
        user_code.save(_Config(model=card), run)
    forget()
    user_code.load_saved(_Config(model=card), run)


def test_code_is_read_before_it_is_checked_and_not_run(folder: Path) -> None:
    (folder / "mymodel.py").write_text("open('ran', 'w').close()\n" + FILE)
    found = user_code.with_fingerprints(config("mymodel.py:build"))
    assert found.model.fingerprint
    assert not (folder / "ran").exists()
    user_code.check(found)
    assert (folder / "ran").exists()


@pytest.mark.parametrize(
    ("target", "path", "text"),
    [
        ("mymodel.py:build", "mymodel.py", "def build(num_classes, shape): return 'another'\n"),
        ("mymodel.py:build", "more.py", ""),
        ("mypackage.nets:build", "mypackage/layers.py", "WIDTH = 6\n"),
        ("mypackage.nets:build", "mypackage/more.py", ""),
    ],
)
def test_a_worker_refuses_kept_code_that_was_changed(
    folder: Path, target: str, path: str, text: str
) -> None:
    write_package(folder)
    card = resolved(target)
    worker(card, folder / "own")
    (kept,) = (folder / "own").iterdir()
    (kept / path).write_text(text)
    with pytest.raises(ConfigError, match=f"model.target={target}: {kept} was changed"):
        worker(card, folder / "own", kept=True)
    user_code.save(_Config(model=resolved(target)), folder / "own")
    worker(card, folder / "own", kept=True)


def write_neighbours(folder: Path) -> None:
    (folder / "thesis/layers").mkdir(parents=True)
    (folder / "thesis/model.py").write_text(
        "import layers.wide, statistics\n"
        "from helper import DEPTH\n"
        "from .helper import DEPTH as SAME\n"
        "def build(num_classes, shape):\n"
        "    from layers import narrow\n"
        "    return layers.wide.WIDTH, narrow.WIDTH, DEPTH, SAME, statistics.mean([1, 3])\n"
    )
    (folder / "thesis/helper.py").write_text("from layers.wide import WIDTH\nDEPTH = WIDTH + 1\n")
    (folder / "thesis/layers/wide.py").write_text("from .narrow import WIDTH as W\nWIDTH = 8 * W\n")
    (folder / "thesis/layers/narrow.py").write_text("WIDTH = 1\n")
    for unused in ("notes.py", "statistics.py", "layers/more.py"):
        (folder / "thesis" / unused).write_text("raise RuntimeError('nobody imports it')\n")


def test_a_file_imports_its_neighbours_and_only_those_are_kept(folder: Path) -> None:
    write_neighbours(folder)
    card = resolved("thesis/model.py:build")
    assert user_code.call(card, 1, ()) == (8, 1, 9, 9, 2)
    worker(card, folder / "own")
    assert user_code.call(card, 1, ()) == (8, 1, 9, 9, 2)
    (kept,) = (folder / "own").iterdir()
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*.py"))
    assert files == ["helper.py", "layers/narrow.py", "layers/wide.py", "model.py"]
    assert not any(str(folder) in path for path in sys.path)
    (folder / "thesis/layers/narrow.py").write_text("WIDTH = 2\n")
    forget()
    assert resolved("thesis/model.py:build").fingerprint != card.fingerprint
    (kept / "layers/narrow.py").write_text("WIDTH = 2\n")
    with pytest.raises(ConfigError, match="was changed"):
        worker(card, folder / "own", kept=True)


def test_neighbours_of_one_name_do_not_hide_each_other(folder: Path) -> None:
    for number, name in enumerate(("a", "b")):
        (folder / name).mkdir()
        (folder / name / "helper.py").write_text(f"NUMBER = {number}\n")
        (folder / name / f"{name}.py").write_text(
            "import helper\ndef build(num_classes, shape): return helper.NUMBER\n"
        )
    assert user_code.call(resolved("a/a.py:build"), 1, ()) == 0
    assert user_code.call(resolved("b/b.py:build"), 1, ()) == 1
    with pytest.raises(ConfigError, match="import different files as the module helper"):
        user_code.with_fingerprints(two("a/a.py:build", "b/b.py:build"))
    (folder / "b/helper.py").write_text("NUMBER = 0\n")
    forget()
    both = user_code.with_fingerprints(two("a/a.py:build", "b/b.py:build"))
    assert user_code.call(both.model, 1, ()) == user_code.call(both.data, 1, ()) == 0


@pytest.mark.parametrize("is_namespace", [False, True])
def test_files_of_one_folder_may_import_different_parts_of_a_package(
    folder: Path, is_namespace: bool
) -> None:
    (folder / "layers").mkdir()
    if not is_namespace:
        (folder / "layers/__init__.py").touch()
    for number, name in enumerate(("net", "set")):
        (folder / f"layers/{name}s.py").write_text(f"NUMBER = {number}\n")
        (folder / f"my_{name}.py").write_text(
            f"from layers.{name}s import NUMBER\ndef build(num_classes, shape): return NUMBER\n"
        )
    both = user_code.with_fingerprints(two("my_net.py:build", "my_set.py:build"))
    user_code.check(both)
    user_code.save(both, folder / "own")
    forget()
    user_code.load_saved(both, folder / "own")
    assert (user_code.call(both.model, 1, ()), user_code.call(both.data, 1, ())) == (0, 1)


IMPORT = "import importlib\nimportlib.import_module"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import nosuch.part\n", "model.py, line 1: .*'nosuch'. Install the package"),
        (f"{IMPORT}('notes')\n", "'notes'.* a statement at the top of model.py"),
        ("from helper import x\n", "model.py, line 1: cannot import name 'x' from 'helper'"),
        ("import yaml\n", "yaml.py beside it and an installed package, too: give yaml.py"),
        ("from ..mymodel import LIMIT\n", "PYTHONPATH=PARENT model.target=FOLDER.model:build"),
    ],
)
def test_what_cannot_be_imported_is_said_in_a_sentence(
    folder: Path, code: str, expected: str
) -> None:
    write_neighbours(folder)
    (folder / "thesis/yaml.py").touch()
    (folder / "thesis/model.py").write_text(code)
    with pytest.raises(ConfigError, match=expected) as caught:
        resolved("thesis/model.py:build")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("mymodel.py", {}, ["model.target=mymodel.py", "path/file.py:name"]),
        ("mymodle.py:build", {}, ["mymodle.py cannot be read", "Did you mean 'mymodel.py'?"]),
        ("nowhere.net:build", {}, ["there is no module nowhere", "path/file.py:name"]),
        ("mymodel.py:biuld", {}, ["there is no 'biuld'", "Did you mean 'build'?"]),
        ("mymodel.py:LIMIT", {}, ["LIMIT is not a function or class, but int"]),
        ("mymodel.py:build", {"widht": 3}, ["widht=3): got an unexpected", "shape, width=8"]),
        ("mymodel.py:build", {"shape": 3}, ["shape=3): multiple values for argument 'shape'"]),
        ("mymodel.py:needs", {}, ["missing a required argument: 'root'. It is needs("]),
        ("mymodel.py:too_few", {}, ["too_few(num_classes, shape): too many positional arguments"]),
    ],
)
def test_what_cannot_be_called_is_refused_with_a_remedy(
    folder: Path, target: str, options: dict[str, Any], expected: list[str]
) -> None:
    with refused(*expected):
        resolved(target, **options)


@pytest.mark.parametrize(
    ("code", "first", "last"),
    [
        ("def f():\n    1 / 0\nf()\n", 'broken.py", line 3', "ZeroDivisionError"),
        ("def f(:\n", 'broken.py", line 1', "SyntaxError"),
        ("import sys\nsys.exit('no GPU')\n", 'broken.py", line 2', "SystemExit: no GPU"),
    ],
)
def test_an_error_on_import_shows_their_traceback_from_their_line_on(
    folder: Path, code: str, first: str, last: str
) -> None:
    (folder / "broken.py").write_text(code)
    with pytest.raises(ConfigError) as caught:
        resolved("broken.py:build")
    lines = str(caught.value).splitlines()
    assert "importing it failed" in lines[0]
    assert first in next(line for line in lines if line.startswith("  File"))
    assert last in lines[-1]
    assert "own.py" not in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_an_error_that_passed_no_line_of_theirs_is_not_blamed_on_them(folder: Path) -> None:
    card = resolved("mymodel.py:Net")
    with pytest.raises(RuntimeError) as theirs:
        user_code.call(card, 1, ())
    trace = user_code.traceback_of(theirs.value) or ""
    assert 'mymodel.py", line' in trace
    assert "RuntimeError: no such net" in trace
    assert "test_own" not in trace
    with pytest.raises(ZeroDivisionError) as ours:
        _ = 1 / 0
    assert user_code.traceback_of(ours.value) is None


def test_a_package_with_data_in_it_is_not_copied_into_every_run(folder: Path) -> None:
    write_package(folder)
    (folder / "mypackage/data.bin").write_bytes(bytes(1 + 2**24))
    with pytest.raises(ConfigError, match="every run folder gets a copy"):
        resolved("mypackage.nets:build")


def test_all_targets_are_checked_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        user_code.check(user_code.with_fingerprints(two("mymodel.py:biuld", "mymodel.py:LIMIT")))
    assert [problem.partition(".")[0] for problem in caught.value.problems] == ["model", "data"]


def test_only_kept_code_runs_of_all_that_lies_beside_it(folder: Path) -> None:
    """Neither a file for another import, nor a compiled file that claims to be of the kept one."""
    card = resolved("mymodel.py:build")
    worker(card, folder / "own")
    (kept,) = (folder / "own").glob("*/mymodel.py")
    for planted in (folder / "own/wave.py", kept.with_name("wave.py")):
        planted.touch()
        wave = importlib.util.find_spec("wave")
        assert wave
        assert not str(wave.origin).startswith(str(folder))
    kept.with_name("wave.py").unlink()
    other = folder / "other.py"
    other.write_text("def build(num_classes, shape): return 'another'\n".ljust(len(FILE)))
    os.utime(other, ns=(kept.stat().st_atime_ns, kept.stat().st_mtime_ns))
    compiled = importlib.util.cache_from_source(str(kept))
    py_compile.compile(str(other), compiled, dfile=str(kept), doraise=True)
    with pytest.raises(ConfigError, match="was changed"):
        worker(card, folder / "own", kept=True)
    worker(resolved("mymodel.py:build"), folder / "own")
    assert user_code.call(card, 1, ()) == (1, (), 8, 1)
    worker(card, folder / "own", kept=True)
