"""The notebooks of `results/` run from top to bottom, and what one types beside them shows
itself.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import bsweep
from bsweep.report import exploring, interactive
from tests.report.browser import opened
from tests.support.synthetic_study import write_run, write_study

pytestmark = pytest.mark.full

RESULTS = Path(__file__).parents[2] / "results"


def executed(notebook: Any, folder: Path) -> Any:
    """Run a notebook, or the one at a path, in a folder, and return it with its outputs."""
    if isinstance(notebook, Path):
        notebook = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return notebook


def test_it_shows_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Jupyter does, in the notebook's folder, while the study is named from the checkout's
    root.
    """
    folder = tmp_path / "results"
    write_study(folder / "mine", local_batches=(8, 64, 256))
    write_run(folder / "mine", local_batch=512, status="diverged", num_epochs_done=1)
    monkeypatch.setenv("BSWEEP_STUDY", "results/mine")
    tour = executed(RESULTS / "figures.ipynb", folder)
    outputs = [output for cell in tour.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 8
    text = "".join(texts(tour))
    assert "mine\nFastest to a test accuracy of 0.8: global batch 512 on 2 workers" in text
    assert "Fastest within 0.01 of the best test accuracy: local batch 64 on 2 workers" in text


def texts(notebook: Any) -> list[str]:
    """Return what the cells of a notebook print and show, as plain text."""
    return [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]


def test_the_papers_beside_our_measurements_are_as_kept() -> None:
    path = RESULTS / "published" / "papers.ipynb"
    kept = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert texts(executed(path, path.parent)) == texts(kept)


def test_a_study_shows_itself(tmp_path: Path) -> None:
    write_study(tmp_path / "a<b", local_batches=(8, 64), seeds=2)
    write_run(tmp_path / "a<b", local_batch=512, status="out_of_memory", num_epochs_done=0)
    study = bsweep.load(tmp_path / "a<b")
    name, runs, grid, *_ = repr(study).splitlines()
    assert (name, runs) == ("study: a<b", "runs: 9 (8 completed, 1 out of memory)")
    assert "8, 64, 512" in grid
    assert "<th>study</th><td>a&lt;b</td>" in study._repr_html_()


def page_with(shown: str, folder: Path) -> Path:
    """Write a page that has the HTML of a notebook's cell."""
    (folder / "cell.html").write_text(f"<!doctype html><body>{shown}</body>")
    return folder / "cell.html"


def test_a_study_is_explored_and_asked_for_its_best_cell(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chromium shows nothing of a frame whose address has more than about 2 MB."""
    study = bsweep.load(write_study(tmp_path / "a<b", local_batches=(8, 64, 256)))
    large = functools.partial(interactive.html_of, below=f"<!--{'-' * 3_000_000}-->")
    monkeypatch.setattr(exploring, "html_of", large)
    explored = bsweep.explore(study)
    with opened(browser, page_with(explored._repr_html_(), tmp_path), awaits="iframe") as page:
        frame = page.frames[1]
        frame.wait_for_selector("body[data-drawn]")
        assert frame.inner_text("h1") == "a<b"
        frame.select_option("#x", "epochs")  # which the address of the frame keeps
        assert page.locator("img").count() == 0, "the frame is there"
        frame.locator("td a").first.click()  # the page of a run
        frame.wait_for_selector("#run:not([hidden])")
        assert frame.inner_text("h1") == "a<b"
    assert (explored._repr_png_() or b"").startswith(b"\x89PNG"), "for what shows no HTML"
    told = re.sub(r"<iframe.*</iframe>", "", explored._repr_html_(), flags=re.DOTALL)
    as_on_github: dict[str, Any] = {"awaits": "img", "java_script_enabled": False}
    with opened(browser, page_with(told, tmp_path), **as_on_github) as page:
        assert page.locator("img").bounding_box()["width"] == 700


def test_a_notebook_shows_a_study_and_its_best_cell_as_pages(tmp_path: Path, browser: Any) -> None:
    write_study(tmp_path / "s", local_batches=(8, 64, 256))
    lines = ("import bsweep", f"study = bsweep.load({str(tmp_path / 's')!r})")
    sources = ("\n".join([*lines, "study"]), "bsweep.predict(study, 0.7, objective='cheapest')")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    cells = executed(notebook, tmp_path).cells
    of_study, of_best = (cell.outputs[-1].data["text/html"] for cell in cells)
    assert "<th>study</th><td>s</td>" in of_study
    assert "<iframe" in of_study
    with opened(browser, page_with(of_best, tmp_path), awaits="iframe") as page:
        frame = page.frames[1]
        frame.wait_for_selector("body[data-drawn]")
        assert float(frame.input_value("#target")) == 0.7
        assert frame.input_value("#objective") == "worker_seconds"
        frame.select_option("#objective", "seconds")  # a choice of the reader's own
        frame.wait_for_selector("body[data-drawn]")
        assert float(frame.input_value("#target")) == 0.7
