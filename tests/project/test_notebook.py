"""The notebooks of `results/` run from top to bottom, and what one types beside them shows
itself.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import bsweep
from bsweep.report import exploring, interactive
from tests.support.synthetic_study import write_run, write_study

pytestmark = pytest.mark.full

RESULTS = Path(__file__).parents[2] / "results"


def pictures_and_text(folder: Path) -> tuple[int, str]:
    """Run the notebook in a folder: how many pictures it shows, and what it prints."""
    notebook = nbformat.read(RESULTS / "figures.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return pictures, "".join(output.get("text", "") for output in outputs)


def test_it_shows_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Jupyter does, in the notebook's folder, while the study is named from the checkout's
    root.
    """
    folder = tmp_path / "results"
    write_study(folder / "mine", local_batches=(8, 64, 256))
    write_run(folder / "mine", local_batch=512, status="diverged", num_epochs_done=1)
    monkeypatch.setenv("BSWEEP_STUDY", "results/mine")
    pictures, text = pictures_and_text(folder)
    assert pictures == 8
    assert "mine\nFastest to a test accuracy of 0.8: global batch 512 on 2 workers" in text
    assert "Fastest within 0.01 of the best test accuracy: local batch 64 on 2 workers" in text


def test_without_any_study_it_shows_the_published_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BSWEEP_STUDY", raising=False)
    pictures, text = pictures_and_text(tmp_path)
    assert pictures == 4, "it has no epochs to draw"
    assert (
        "published\nFastest within 0.01 of the best training accuracy: local batch 128 on 4 workers"
        in text
    )


def test_github_shows_the_pictures_of_a_tour_that_was_run() -> None:
    """`python scripts/tour.py` keeps them. GitHub runs no scripts, and no large files."""
    path = RESULTS / "figures.ipynb"
    assert path.stat().st_size < 1_500_000
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    shown = {
        name: sum("image/png" in one.get("data", {}) for one in of) for name, of in outputs.items()
    }
    assert shown["explore"] == 1
    assert sum(shown.values()) >= 7
    assert all(outputs.values())
    text = path.read_text()
    assert "iframe" not in text
    assert '"output_type": "error"' not in text
    assert str(Path.home()) not in text


def texts(notebook: Any) -> list[str]:
    """Return what the cells of a notebook print and show, as plain text."""
    return [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]


def test_the_papers_beside_our_measurements_are_as_kept() -> None:
    path = RESULTS / "published" / "papers.ipynb"
    notebook, kept = (nbformat.read(path, as_version=4) for _ in range(2))  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    assert texts(notebook) == texts(kept)
    assert str(Path.home()) not in path.read_text()


def test_a_study_shows_itself_in_five_lines(tmp_path: Path) -> None:
    write_study(tmp_path / "a<b", local_batches=(8, 64), seeds=2)
    write_run(tmp_path / "a<b", local_batch=512, status="out_of_memory", num_epochs_done=0)
    study = bsweep.load(tmp_path / "a<b")
    assert repr(study).splitlines() == [
        "study: a<b",
        "runs: 9 (8 completed, 1 out of memory)",
        "grid: local batch 8, 64, 512 on 1, 2 workers; horovod",
        "seeds: 0, 1",
        "training time: 16,728 s in all, 573 to 4,394 s a run; Test CPU, 2 cores",
    ]
    assert study._repr_html_().count("<tr>") == 5
    assert "<th>study</th><td>a&lt;b</td>" in study._repr_html_()


@pytest.mark.parametrize("more_bytes", [0, pytest.param(3_000_000, marks=pytest.mark.full)])
def test_a_study_is_explored_and_asked_for_its_best_cell(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch, more_bytes: int
) -> None:
    """Chromium shows nothing of a frame whose address has more than about 2 MB."""
    study = bsweep.load(write_study(tmp_path / "a<b", local_batches=(8, 64, 256)))
    assert study.best(0.8).choice.place == bsweep.predict(study, 0.8).choice.place
    large = functools.partial(interactive.html_of, below=f"<!--{'-' * more_bytes}-->")
    monkeypatch.setattr(exploring, "html_of", large)
    shown = bsweep.explore(study)._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{shown}</body>")
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "cell.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("body[data-drawn]")
    assert frame.inner_text("h1") == "a<b"
    frame.select_option("#x", "epochs")  # which the address of the frame keeps
    assert page.locator("img").count() == 0
    frame.locator("td a").first.click()  # the page of a run
    frame.wait_for_selector("#run:not([hidden])")
    assert frame.inner_text("h1") == "a<b"
    page.close()
    assert said == []


def test_a_notebook_shows_a_study_and_its_best_cell_as_pages(tmp_path: Path, browser: Any) -> None:
    write_study(tmp_path / "s", local_batches=(8, 64, 256))
    lines = ("import bsweep", f"study = bsweep.load({str(tmp_path / 's')!r})")
    sources = ("\n".join([*lines, "study"]), "study.best(0.7, objective='cheapest')")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    of_study, of_best = (cell.outputs[-1].data["text/html"] for cell in notebook.cells)
    assert "<th>study</th><td>s</td>" in of_study
    assert "<iframe" in of_study
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{of_best}</body>")
    page = browser.new_page()
    page.goto((tmp_path / "cell.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("body[data-drawn]")
    assert float(frame.input_value("#target")) == 0.7
    assert frame.input_value("#objective") == "worker_seconds"
    frame.select_option("#objective", "seconds")  # a choice of the reader's own
    frame.wait_for_selector("body[data-drawn]")
    assert float(frame.input_value("#target")) == 0.7
    page.close()


def test_without_scripts_a_picture_shows_a_study(tmp_path: Path, browser: Any) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 64, 256), num_workers=(1,))
    explored = bsweep.explore(study)
    shown = explored._repr_html_()
    assert (explored._repr_png_() or b"").startswith(b"\x89PNG"), "for what shows no HTML"
    told = re.sub(r"<iframe.*</iframe>", "", shown, flags=re.DOTALL)  # as GitHub does
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{told}</body>")
    page = browser.new_page(java_script_enabled=False)
    page.goto((tmp_path / "cell.html").as_uri())
    assert page.locator("img").bounding_box()["width"] == 700
    page.close()


def test_the_package_shows_its_api_alone_and_imports_little() -> None:
    assert all(getattr(bsweep, name) for name in bsweep.__all__)
    assert bsweep.__version__ == importlib.metadata.version("bsweep")
    program = (
        "import sys, bsweep; bsweep.__version__; sys.exit(any(map(sys.modules.get, ('torch', "
        "'pandas', 'matplotlib'))))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
