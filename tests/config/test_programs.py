"""The settings of a program of the user's own: braces, files, run ids and contradictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bsweep.config.programs import OwnProgramConfig, values_of
from bsweep.config.run import RunConfig
from tests.support.refusing import refused
from tests.support.running import compose


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, in which commands are typed."""
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "windows.sh").write_bytes(b"#!/bin/sh\r\necho 1\r\n")
    (tmp_path / "windows.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def point(*words: str, command: str = "python train.py") -> RunConfig:
    return compose("program=own", f"program.command='{command}'", "local_batch=8", *words)


def card(config: RunConfig) -> OwnProgramConfig:
    assert isinstance(config.program, OwnProgramConfig)
    return config.program


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("t.py {width} b={local_batch}/{global_batch} {lr}", ["t.py", "16", "b=8/8", "0.2"]),
        ("t.py {{width}} {seed}", ["t.py", "{width}", "0"]),
        ("t.py {epochs} {options.epochs}", ["t.py", "5", "3"]),
        ('-c "print({1: 2})"', ["-c", "print({1: 2})"]),
    ],
)
def test_words_in_braces_are_keys_of_the_point(arguments: str, words: list[str]) -> None:
    """An option never hides such a key, and other braces stay."""
    config = point(
        *("optimizer.lr=0.1", "optimizer.lr_rule=linear", "optimizer.reference_batch=4"),
        *("+program.options.width=16", "+program.options.epochs=3"),
        command=f"python {arguments}",
    )
    assert card(config).command_of(values_of(config))[1:] == words


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("program.command='python train.py {lrr}'", "{lrr} is not a key of the point. Did"),
        ("program.command='python train.py {lr}'", "{lr} has no value: give optimizer.lr=..."),
        ("program.command='pyton train.py'", "the program pyton is not found"),
        ("program.command='python trian.py'", "trian.py. Did you mean 'train.py'?"),
        ("program.command=''", "the command is empty"),
        ("program.command='python \"train.py'", "No closing quotation"),
        ("data=digits", "data=digits with program=own"),
        ("precision=bf16", "precision=bf16 with program=own"),
        ("launch.slowdown=[2]", "launch.slowdown=[2.0] with program=own"),
        ("measure.noise_scale=true", "bsweep.NoiseScale"),
        ("optimizer.lr_rule=linear", "needs a rate to scale"),
        ("optimizer.schedule=cosine", "with program=own: leave them out"),
        ("program.python=/no/python", "program.python=/no/python: the program python is not found"),
        ("program.folder=/nowhere", "program.folder=/nowhere: there is no such folder"),
        ("program.files=[model.py]", "there is no file"),
        ("+program.options.mode=nan", "not finite"),
        ("program.command='python train.py {nope}'", "write {{nope}}"),
        ("program.command=./windows.sh", "./windows.sh has Windows line ends"),
    ],
)
def test_what_a_program_cannot_do_is_refused(word: str, said: str) -> None:
    with refused(said):
        point("launch=inline", word).with_fingerprints()


def test_files_and_options_change_the_id_and_places_do_not(folder: Path) -> None:
    first = point().with_fingerprints()
    assert card(first).files == ("train.py",)
    assert point("+program.options.width=3").with_fingerprints().run_id != first.run_id
    assert point("+program.environment.A=1").with_fingerprints().run_id != first.run_id
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/train.py").write_text("print(1)\n")
    moved = point("program.folder=elsewhere").with_fingerprints()
    assert moved.run_id == first.run_id
    (folder / "train.py").write_text("print(2)\n")
    second = point().with_fingerprints().run_id
    assert second != first.run_id
    named = "program.files=[train.py, model.py]"
    (folder / "model.py").write_text("WIDTH = 1\n")
    with_model = point(named).with_fingerprints().run_id
    (folder / "model.py").write_text("WIDTH = 2\n")
    assert point(named).with_fingerprints().run_id != with_model
    assert point().with_fingerprints().run_id == second, "nobody names that file"


def test_a_timed_program_has_the_id_of_the_whole() -> None:
    config = point()
    timed = replace(config, program=replace(card(config), most_steps=10))
    assert timed.run_id == config.run_id


def test_files_of_one_name_are_all_kept_within_the_runs_folder(folder: Path) -> None:
    for name in ("../a/train.py", "../b/train.py", "a..b.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    card = point("program.files=[../a/train.py,../b/train.py,a..b.py]").with_fingerprints().program
    card.save(folder / "kept")
    texts = sorted(path.read_text() for path in (folder / "kept/program").rglob("*.py"))
    assert texts == ["../a/train.py", "../b/train.py", "a..b.py"]
