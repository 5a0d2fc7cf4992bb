"""The words of the page, and the sentences that Python composes on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import bsweep
from bsweep import analysis, report
from bsweep.analysis.naming import words
from bsweep.report.document import document
from bsweep.report.interactive import html_of
from bsweep.serve import app
from tests.report.browser import drawn, opened
from tests.support.synthetic_study import META, write_run
from tests.support.synthetic_targets import Truth, write_target_run

PACKAGE = Path(report.__file__).parents[1]
STATIC = Path(report.__file__).parent / "static"


def test_each_text_that_the_page_asks_for_is_there() -> None:
    known = {*re.findall(r'(\w+): "', (STATIC / "texts.js").read_text(encoding="utf-8"))}
    served = "".join(path.read_text() for path in sorted((PACKAGE / "serve").glob("*.js")))
    page = (STATIC / "page.js").read_text() + (STATIC / "reader.js").read_text() + served
    asked = {*re.findall(r'words\("(\w+)"[,)]', page)}
    for name in ("report/interactive.py", "serve/app.py"):
        asked |= {*re.findall(r'data-words="(\w+)"', (PACKAGE / name).read_text())}
    asked |= {*app._COLUMNS}
    assert len(asked) > 60
    assert asked <= known


def test_variants_have_names_in_words() -> None:
    assert words("seed", 3) == "seed 3"
    assert words("variant", "local_sgd sync_every 4") == "local SGD, synchronised every 4"
    assert words("variant", "allreduce native") == "native all-reduce"
    assert words("variant", "pipedream vertical_sync") == "PipeDream, vertical sync"
    assert words("variant", "deepspeed stage 3") == "DeepSpeed, ZeRO stage 3"
    assert words("variant", "horovod every_steps 1") == "Horovod, every 1 step"
    assert words("variant", "own {x}, {n:worker}") == "own {x}, {n:worker}"


def test_a_page_shows_the_sentences_of_the_analysis(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "spoken"
    for batch in (64, 256):
        for workers in (1, 4):
            write_target_run(folder, Truth(), batch=batch, workers=workers, seed=0)
    meta = {**META, "commit": "f" * 40}
    lost = "out.safetensors was not written: OSError: no space"
    write_run(folder, local_batch=8, status=None, num_epochs_done=1, meta=meta, events=(lost,))
    study = bsweep.load(folder)
    path = tmp_path / "report.html"
    path.write_text(html_of(document(study)), encoding="utf-8")
    lines = """[
        ...[...document.querySelectorAll("#warnings details:has(> summary > span)")].map((one) =>
            [...one.querySelectorAll("span, p")].map((p) => p.textContent).join(" ").trim()),
        ...[...document.querySelectorAll("#why-lines p")].map((p) => p.textContent),
    ]"""
    shown = [*analysis.doubts(study), *analysis.caveats(study), *study.warnings]
    shown += [*analysis.recommendations(study), *analysis.headlines(study)]
    shown += analysis.what_is_missing(study)
    assert len(shown) > 5
    with opened(browser, path) as page:
        assert page.evaluate(lines) == shown
        page.evaluate("update({ ...study })")  # as a page of `bsweep watch` does
        drawn(page)
        assert page.evaluate(lines) == shown
