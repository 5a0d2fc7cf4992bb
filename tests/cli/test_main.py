"""What a person who mistypes a command is told."""

from __future__ import annotations

import pytest

from bsweep.cli import main
from bsweep.core.terminal import BAD_CONFIG


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
