"""README and docs, typed from an empty folder as they stand: with the defaults, whole, in order.

`test_docs.py` types the same commands shrunk to seconds. These tests take an hour.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bsweep.core.torchvision_shim import import_torchvision
from tests.data.test_data import write_image
from tests.project.test_docs import PAGES, ROOT
from tests.support.running import write_runs, write_text

pytestmark = pytest.mark.full

README, *TASKS = (page for page in PAGES if page.stem not in ("tutorial", "glossary", "reference"))
BLOCKS = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
NOT_HERE = re.compile(r"scripts/|\. \.venv|.*node1")  # set-up and hosts have tests of their own
LEARNS = 0.9
"""Test accuracy that the best run of a command reaches on the digits."""


def typed(page: Path) -> Iterator[tuple[list[str], str]]:
    """Yield each `sh` block of a page: its commands, and the output that the page shows after it.

    Blocks of other kinds, such as `bash`, are not typed.
    """
    commands: list[str] = []
    shown = ""
    for kind, text in [*BLOCKS.findall(page.read_text()), ("", "")]:
        if kind == "text":
            shown += text
            continue
        if commands:
            yield commands, shown
        commands = text.replace("\\\n", " ").splitlines() if kind == "sh" else []
        shown = ""


def promised(shown: str) -> list[str]:
    """Return the lines of an output that another machine prints as well.

    These are the names of points, headers of tables, and the beginnings of answers. What follows
    the name of a point may be "skipped", if another page has typed the command before.
    """
    points = re.findall(r"^\[\d+/\d+\] \S+:", shown, re.MULTILINE)
    headers = re.findall(r"^[^\d\s][^\d\n]*?\S {2,}\S[^\d\n]*$", shown, re.MULTILINE)
    headers = [" ".join(line.removesuffix("...").split()) for line in headers]
    answers = re.findall(r"^(?:Fastest|Budget)\D*(?= \d|$)", shown, re.MULTILINE)
    return [*points, *headers, *answers]


def learned(output: str, desk: Path) -> float:
    """Return the best test accuracy of the runs that an output names."""
    runs = re.findall(r"^\[\d+/\d+\] (\S+?):? ", output, re.MULTILINE)
    summaries = [json.loads((desk / run / "summary.json").read_text()) for run in runs]
    assert {summary["status"] for summary in summaries} == {"completed"}
    return max(float(summary["test_accuracy"]) for summary in summaries)


def type_page(page: Path, desk: Path) -> None:
    """Type the commands of a page, and hold what they print against what the page shows."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for commands, shown in typed(page):
        outputs = []
        for line in commands:
            if not line.strip() or NOT_HERE.match(line.strip()):
                continue
            result = subprocess.run(
                ["bash", "-c", line], cwd=desk, env=environment, capture_output=True, text=True
            )
            outputs.append(result.stdout + result.stderr)
            assert result.returncode == 0, f"{line}\n{outputs[-1]}"
            words = shlex.split(line, comments=True)
            if words[:2] == ["bsweep", "run"] and "data=" not in line:
                assert learned(outputs[-1], desk) >= LEARNS, line
        printed = [" ".join(line.split()) for line in "".join(outputs).splitlines()]
        for wanted in promised(shown) if outputs else []:
            assert any(line.startswith(wanted) for line in printed), f"{commands}: {wanted}"


def furnished(desk: Path) -> Path:
    """Return the folder, with the data of one's own that the pages name."""
    write_text(desk / "book.txt", 50_000)
    write_runs(desk / "runs.csv")
    for part, number in (("train", 128), ("test", 32)):
        for grey, name in ((60, "dark"), (180, "light")):
            (desk / "photos" / part / name).mkdir(parents=True)
            for image in range(number):
                write_image(desk / "photos" / part / name / f"{image}.png", grey + image % 60)
    (desk / "scripts").symlink_to(ROOT / "scripts")
    (desk / "results").mkdir()
    (desk / "results/measured").symlink_to(ROOT / "results/measured")
    torch.save(import_torchvision().models.resnet18().state_dict(), desk / "resnet18.pth")
    (build,) = re.findall(
        r"^def build\(number.*?^```", (ROOT / "docs/own.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (desk / "mydata.py").write_text("import torch\n\n\n" + build.removesuffix("```"))
    return desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the README were typed."""
    folder = furnished(tmp_path_factory.mktemp("desk"))
    type_page(README, folder)
    return folder


@pytest.mark.timeout(7200)
def test_the_tutorial_holds_what_it_promises(tmp_path: Path) -> None:
    type_page(ROOT / "docs/tutorial.md", tmp_path)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_a_page_holds_what_it_promises(page: Path, desk: Path) -> None:
    type_page(page, desk)
