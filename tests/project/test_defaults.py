"""What somebody types first learns, with the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bsweep.cli import run_help
from tests.support.running import ran_ok, summaries


def first_example() -> list[str]:
    """The words of the first example of `bsweep run --help`."""
    (words, *_) = re.findall(r"^ +bsweep run (.*)$", run_help.text([]), re.MULTILINE)
    return str(words).split()


@pytest.mark.full
@pytest.mark.parametrize("words", [[], ["data=digits", "local_batch=32"]])
def test_what_is_typed_first_learns_the_digits(words: list[str], tmp_path: Path) -> None:
    ran_ok("run", *(words or first_example()), cwd=tmp_path, timeout=900)
    (summary,) = summaries(tmp_path, "default").values()
    assert summary["test_accuracy"] >= 0.9
