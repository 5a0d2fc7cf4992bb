"""What a person who mistypes a command is told."""

from __future__ import annotations

import signal
import sys

import pytest

from bsweep.cli import main
from bsweep.core import terminal
from bsweep.core.terminal import BAD_CONFIG, INTERRUPTED


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["rn", "local_batch=8"], "unknown command 'rn'. Did you mean 'run'?"),
        (["setup_horovod"], "Did you mean 'setup-horovod'?"),
        (["local_batch=8", "seed=0,1"], "type `bsweep run local_batch=8 seed=0,1`"),
        (["-m", "local_batch=8,16"], "type `bsweep run -m local_batch=8,16`"),
        (["report", "nowhere"], "nowhere"),
        (["bake"], "unknown command 'bake'. `bsweep --help` lists the commands"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(typed) == BAD_CONFIG
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "bsweep: interrupted; the same command trains the points that have no result yet"),
        ("retry", "bsweep: interrupted; `bsweep resume` trains the points that have no result yet"),
        ("report", "bsweep: interrupted"),
    ],
)
def test_an_interrupted_command_says_how_to_train_the_rest(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run", interrupted)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(terminal, "set_up_logging", lambda: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(sys, "argv", ["bsweep", command, "results/s"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == INTERRUPTED
    assert [record.getMessage() for record in caplog.records] == [said]
