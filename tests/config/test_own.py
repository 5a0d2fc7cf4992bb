"""Code of one's own: found, checked, hashed, kept, and found again where it was kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from bsweep.config import own
from bsweep.config.card import Card
from bsweep.config.own import Own
from bsweep.config.values import ConfigError


@dataclass(frozen=True, kw_only=True)
class _OwnModel(Own):
    name: Literal["own"] = "own"
    takes: ClassVar[tuple[str, ...]] = ("num_classes", "shape")


@dataclass(frozen=True, kw_only=True)
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
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget()
    yield tmp_path
    unload()


def unload() -> None:
    for name in [name for name in sys.modules if name.startswith(("mymodel", "mypackage"))]:
        del sys.modules[name]


def forget() -> None:
    for cache in (own._of_file, own._of_module):
        cache.cache_clear()


def config(target: str, **options: Any) -> _Config:
    return _Config(model=_OwnModel(target=target, options=own._Keywords(options)))


def resolved(target: str, **options: Any) -> _OwnModel:
    return own.resolve(config(target, **options)).model


def test_a_file_is_called_with_what_its_card_takes_and_the_options(folder: Path) -> None:
    card = resolved("mymodel.py:build", width=32)
    assert own.call(card, 10, (3, 8, 8)) == (10, (3, 8, 8), 32, 1)
    assert card.fingerprint
    assert len(card.fingerprint) == 64
    assert own.cards(config("mymodel.py:build")).keys() == {"model"}
    assert resolved("mymodel.py:anything", width=1, depth=2)
    assert own.resolve(own.resolve(config("mymodel.py:build")))


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
    forget()
    after = resolved("mymodel.py:build")
    assert after.fingerprint != before.fingerprint
    assert own.call(before, 1, ())[2] == 8
    assert own.call(after, 1, ())[2] == 9


def write_package(folder: Path) -> None:
    (folder / "mypackage/__pycache__").mkdir(parents=True)
    (folder / "mypackage/__init__.py").write_text("")
    (folder / "mypackage/layers.py").write_text("WIDTH = 5\n")
    (folder / "mypackage/nets.py").write_text(
        "from mypackage.layers import WIDTH\ndef build(num_classes, shape): return WIDTH\n"
    )
    (folder / "mypackage/__pycache__/x.pyc").write_text("")


def test_of_a_package_all_files_count_and_are_kept(folder: Path) -> None:
    write_package(folder)
    card = resolved("mypackage.nets:build")
    assert own.call(card, 1, ()) == 5
    own.keep(_Config(model=card), folder / "run/own")
    kept = sorted(
        str(p.relative_to(folder / "run/own"))
        for p in (folder / "run/own").rglob("*")
        if p.is_file()
    )
    assert kept == ["mypackage/__init__.py", "mypackage/layers.py", "mypackage/nets.py"]
    (folder / "mypackage/layers.py").write_text("WIDTH = 6\n")
    forget()
    assert resolved("mypackage.nets:build").fingerprint != card.fingerprint


def test_of_an_installed_package_the_version_counts_and_nothing_is_kept(folder: Path) -> None:
    import yaml

    card = resolved("yaml:dump")
    assert card.fingerprint == f"PyYAML=={yaml.__version__}"
    assert own.load_target(card) is yaml.dump
    own.keep(_Config(model=card), folder / "run/own")
    assert not (folder / "run/own").exists()


@pytest.mark.parametrize("target", ["mymodel.py:build", "mypackage.nets:build"])
def test_a_worker_finds_what_was_kept_wherever_it_starts(folder: Path, target: str) -> None:
    write_package(folder)
    card = resolved(target)
    own.keep(_Config(model=card), folder / "run/own")
    unload()
    sys.path.remove(str(folder)) if str(folder) in sys.path else None
    own.search(folder / "run/own")
    module = sys.modules[own.load_target(card).__module__]
    assert Path(str(module.__file__)).is_relative_to(folder / "run/own")


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("mymodel.py", {}, ["model.target=mymodel.py", "path/file.py:name"]),
        ("mymodel:", {}, ["path/file.py:name"]),
        ("mymodle.py:build", {}, ["mymodle.py cannot be read", "Did you mean 'mymodel.py'?"]),
        ("nowhere.net:build", {}, ["there is no module nowhere", "path/file.py:name"]),
        ("mymodel.py:biuld", {}, ["there is no 'biuld'", "Did you mean 'build'?"]),
        ("mymodel.py:zzz", {}, ["there is no 'zzz'", "It has Net, anything, build"]),
        ("mymodel.py:LIMIT", {}, ["LIMIT is not a function or class, but int"]),
        ("mymodel.py:build", {"widht": 3}, ["model.options.widht=3", "Did you mean 'width'?"]),
        ("mymodel.py:build", {"shape": 3}, ["model.options.shape=3", "It takes width, depth."]),
        ("mymodel.py:anything", {"shape": 3}, ["model.options.shape=3"]),
        ("mymodel.py:Net", {"x": 3}, ["model.options.x=3", "It takes none."]),
        ("mymodel.py:needs", {}, ["needs root", "give model.options.root=..."]),
        ("mymodel.py:too_few", {}, ["first positional arguments must be num_classes, shape"]),
    ],
)
def test_what_cannot_be_called_is_refused_with_a_remedy(
    folder: Path, target: str, options: dict[str, Any], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(target, **options)
    for words in expected:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("code", "first", "last"),
    [
        ("import nosuchmodule\n", 'broken.py", line 1', "No module named 'nosuchmodule'"),
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
        own.call(card, 1, ())
    trace = own.traced(theirs.value) or ""
    assert 'mymodel.py", line' in trace
    assert "RuntimeError: no such net" in trace
    assert "test_own" not in trace
    with pytest.raises(ZeroDivisionError) as ours:
        _ = 1 / 0
    assert own.traced(ours.value) is None


def test_a_package_with_data_in_it_is_not_copied_into_every_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(folder)
    monkeypatch.setattr(own, "_MOST_BYTES", 20)
    with pytest.raises(ConfigError, match="every run folder gets a copy"):
        resolved("mypackage.nets:build")


def test_all_targets_are_checked_at_once(folder: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Two(_Config):
        data: _OwnModel

    bad = config("nowhere.py:build").model
    with pytest.raises(ConfigError) as caught:
        own.resolve(Two(model=bad, data=replace(bad, target="mymodel.py:biuld")))
    assert [problem.partition(".")[0] for problem in caught.value.problems] == ["model", "data"]
