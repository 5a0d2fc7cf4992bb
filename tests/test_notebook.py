"""`results/figures.ipynb` runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.synthetic_study import write_run, write_study

RESULTS = Path(__file__).parents[1] / "results"


def pictures_and_text(folder: Path) -> tuple[int, str]:
    """Run the notebook in a folder: how many pictures it shows, and what it prints."""
    notebook = nbformat.read(RESULTS / "figures.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return pictures, "".join(output.get("text", "") for output in outputs)


@pytest.mark.slow
def test_it_shows_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path / "mine", local_batches=(8, 64, 256))
    write_run(tmp_path / "mine", local_batch=512, status="diverged", num_epochs_done=1)
    monkeypatch.setenv("BSWEEP_STUDY", str(tmp_path / "mine"))
    pictures, text = pictures_and_text(RESULTS)
    assert pictures == 5
    assert "mine\nFastest: local batch 256 on 2 workers" in text


@pytest.mark.slow
def test_without_any_study_it_shows_the_published_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BSWEEP_STUDY", raising=False)
    pictures, text = pictures_and_text(tmp_path)
    assert pictures == 5
    assert "published\nFastest: local batch 256 on 4 workers" in text
