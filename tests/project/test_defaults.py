"""What somebody types first learns, with the defaults, and leads to a recommendation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bsweep.cli import run_help
from bsweep.compose.words import read
from tests.project.test_docs import commands
from tests.support.running import ROOT, ran_ok, summaries

pytestmark = pytest.mark.full


def first_example() -> list[str]:
    """The words of the first example of `bsweep run --help`."""
    (words, *_) = re.findall(r"^ +bsweep run (.*)$", run_help.text(read([])), re.MULTILINE)
    return str(words).split()


# The quickstart makes twelve steps at its largest global batch. In one process, for two would take
# seconds to start.
QUICKSTART = (
    "experiment=quickstart", "local_batch=512", "num_workers=1", "launch=inline", "strategy=single",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "accuracy"),
    [([], 0.85), (["data=digits", "local_batch=32"], 0.85), ([*QUICKSTART], 0.7)],
)
def test_what_is_typed_first_learns_the_digits(
    words: list[str], accuracy: float, tmp_path: Path
) -> None:
    ran_ok("run", *(words or first_example()), "study=s", cwd=tmp_path, timeout=900)
    (summary,) = summaries(tmp_path).values()
    assert summary["test_accuracy"] >= accuracy


def test_the_tutorial_leads_to_a_recommended_cell(tmp_path: Path) -> None:
    """Its sweep as it stands, of a few of its points."""
    lines = [shlex.split(line) for line in commands(ROOT / "docs/tutorial.md")]
    (sweep,) = (words for words in lines if words[:2] == ["bsweep", "run"])
    (predict,) = (words for words in lines if words[:2] == ["bsweep", "predict"])
    fewer = {"local_batch=16,64,256": "local_batch=64,256", "seed=0,1,2": "seed=0,1"}
    fewer["num_workers=1,2"] = "num_workers=1"
    assert fewer.keys() <= set(sweep)
    ran_ok(*(fewer.get(word, word) for word in sweep[1:]), cwd=tmp_path, timeout=600)
    assert ran_ok(*predict[1:], cwd=tmp_path).stdout.startswith("Fastest to a test accuracy")
