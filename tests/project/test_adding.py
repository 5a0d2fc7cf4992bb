"""What CONTRIBUTING says is to be touched for something new is all that is to be touched: a copy of
the package gets a strategy, a figure and a field, and runs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT, TINY, captured

pytestmark = pytest.mark.full

# By what is added: for each file its whole text, or pairs of a line that is there and what follows
# it from now on.
Edits = dict[str, str | list[tuple[str, str]]]
ADDITIONS: dict[str, Edits] = {
    "strategy": {
        "src/bsweep/strategies/scaled.py": """
from bsweep.strategies.groups import TorchStrategy


class Scaled(TorchStrategy):
    def step(self):
        gradients = self._vector.gradients
        with self.meter.exchange(gradients):
            self.all_reduce(gradients)
        gradients.mul_(self.card.scale)
        self._optimizer.step()
""",
        "src/bsweep/config/strategies.py": [
            (
                "",
                '''
class ScaledConfig(StrategyConfig):
    """The sum of the gradients times a factor."""

    name: Literal["scaled"]
    scale: Positive = 1.0
    """the factor"""

    builds: ClassVar[str] = "bsweep.strategies.scaled:Scaled"
    kind_can: ClassVar[Capabilities] = Capabilities(launchers=("torchrun",))


''',
            ),
            ("AnyStrategy = Annotated[", "ScaledConfig | "),
        ],
    },
    "figure": {
        "src/bsweep/plots/loss_gap.py": """
from matplotlib.figure import Figure

from bsweep.plots.drawing import captioned


def gaps(study):
    return study.epochs.assign(gap=study.epochs["test_loss"] - study.epochs["train_loss"])


def loss_gap(study, gaps):
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot(gaps["epoch"], gaps["gap"], "o")
    return captioned(figure, "How much larger the test loss is.")
""",
        "src/bsweep/plots/__init__.py": [
            ("_FIGURES = (\n", '    StudyFigure("loss_gap", loss_gap.gaps, loss_gap.loss_gap),\n'),
            (
                "from bsweep.analysis.study.naming import length_of, words\n",
                "from bsweep.plots import loss_gap\n",
            ),
        ],
    },
    "field of an epoch": {
        "src/bsweep/runlog/records.py": [
            (
                "    evaluation_peak_memory_bytes: Natural | None = None\n",
                "    num_tensors: int | None = None\n",
            )
        ],
        "src/bsweep/train/loop.py": [
            ("    return Epoch(\n", "        num_tensors=len(job.vector.tensors),\n")
        ],
        "src/bsweep/analysis/study/columns.csv": [
            ("epochs,run_id,same,,,,,,\n", "epochs,num_tensors,count_or_null,other,rare,,,,\n")
        ],
    },
}


def files_by_addition() -> dict[str, set[str]]:
    """What CONTRIBUTING's table says is to be touched."""
    rows = re.findall(
        r"^\| an? ([\w ]+?) *\| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    return {what: set(re.findall(r"`(src/[\w/.]+)`", files)) for what, files in rows}


@pytest.mark.parametrize("what", ADDITIONS)
def test_contributing_names_the_files_to_touch(what: str) -> None:
    name = {"strategy": "scaled", "figure": "loss_gap"}.get(what, "NAME")
    touched = {path.replace(name, "NAME") for path in ADDITIONS[what]}
    assert files_by_addition()[what] == touched


def test_what_is_added_so_runs_and_reports(tmp_path: Path) -> None:
    for part in ("src", "conf", "results/published", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    for edits in ADDITIONS.values():
        for name, edit in edits.items():
            apply(tmp_path / name, edit)
    point = ("strategy=scaled", "num_workers=2", "local_batch=8", "epochs=1", "study=s")
    run = [sys.executable, "-m", "bsweep", "run", "--report", *TINY, "model=tiny_cnn", *point]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    captured(run, 0, cwd=tmp_path, env=env)
    report = tmp_path / "results/s/report"
    assert (report / "loss_gap.png").exists()
    assert "num_tensors" in (report / "epochs.csv").read_text().partition("\n")[0]
    (tmp_path / "runs.csv").write_text("run,local_batch,epoch,train_seconds\na,8,1,2.5\n")
    imports = ["import", "runs.csv", "--study", "imported", "--set", "num_train=100"]
    words = [sys.executable, "-m", "bsweep", *imports]  # by which no field is measured
    captured(words, 0, cwd=tmp_path, env=env)


def apply(path: Path, edit: str | list[tuple[str, str]]) -> None:
    if isinstance(edit, str):
        assert not path.exists(), path
        path.write_text(edit.lstrip("\n"))
        return
    text = path.read_text()
    for anchor, following in edit:
        at = anchor or re.search(r"^Any\w+ = ", text, re.MULTILINE)[0]  # type: ignore[index] # cards stand before it
        assert text.count(at) >= 1, f"{path}: {at}"
        text = text.replace(at, anchor + following + ("" if anchor else at), 1)
    path.write_text(text)
