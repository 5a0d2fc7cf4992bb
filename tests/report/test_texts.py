"""The words of the page in English and Korean: each text has both, and each sentence that Python
composes is shown in the reader's language.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bsweep
from bsweep import analysis, report
from bsweep.analysis import columns, comparison, naming, predicted
from bsweep.analysis.numbers import plain
from bsweep.core.sentences import Sentence, first_said, joined, listed_said, said
from bsweep.report.comparison import CAPTIONS
from bsweep.report.document import document
from bsweep.report.interactive import html_of
from bsweep.serve import app
from tests.report.browser import drawn, go, opened
from tests.support.synthetic_study import META, write_run
from tests.support.synthetic_targets import Truth, write_target_run

PACKAGE = Path(report.__file__).parents[1]
STATIC = Path(report.__file__).parent / "static"
TEXTS = (STATIC / "texts.js").read_text(encoding="utf-8")
FIELD = re.compile(r"\{(\w+)(?::[a-z -]+)?\}")
HANGUL = re.compile("[가-힣]")
WORDLESS = {  # in Korean: names, numbers and other sentences alone
    "target_words", "of_chart", "a {score} of {value}", "{where}: {line}", "{runs}: {warning}",
    "{where}:", " for {length}", "{result} and {score} {accuracy}", "{cell}, with {accuracy}",
    "torch", "torch {value}", "{heading} {value}", "{items} and {last}", "{cell} ({more})",
}  # fmt: skip
NAMES = {  # parts of the names of variants that are names in each language
    "Horovod", "DDP", "DiLoCo", "Adasum", "FedNova", "fp16", "bf16", "top-k", "DGC", "QSGD",
    "TernGrad", "signSGD", "PowerSGD", "fp32", "ZeRO-2", "ZeRO-3", "GPipe", "1F1B", "ZBV",
    "DualPipeV", "PipeDream", "DeepSpeed",
}  # fmt: skip


def texts(language: str) -> dict[str, str]:
    """Return the page's own texts in a language by their keys."""
    begin = TEXTS.index(f"  {language}: {{\n")
    block = TEXTS[begin : TEXTS.index("\n  },\n", begin)]
    pairs = re.findall(r'(\w+): ("(?:[^"\\]|\\.)*")', block)
    return {key: json.loads(text.replace("\\'", "'")) for key, text in pairs}


def sentences() -> dict[str, str]:
    """Return the Korean of what Python says, by its English template."""
    begin = TEXTS.index("const SENTENCES")
    lines = TEXTS[begin : TEXTS.index("\n};\n", begin)].splitlines()
    pairs = (
        json.loads(f"{{{line.strip().removesuffix(',')}}}") for line in lines if '": "' in line
    )
    return {key: text for pair in pairs for key, text in pair.items()}


def templates() -> Iterator[str]:
    """Yield the templates in the source, which must stand there as they are."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "from bsweep.core.sentences import" in text or path.name == "sentences.py":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "said":
                    first = node.args[0]
                    assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: no plain text"
                    yield str(first.value)


def test_each_text_of_the_page_is_there_in_korean() -> None:
    english, korean = texts("en"), texts("ko")
    assert english.keys() == korean.keys()
    assert len(english) > 100
    assert {key for key, text in korean.items() if not HANGUL.search(text)} <= WORDLESS
    for key, text in english.items():
        assert set(FIELD.findall(korean[key])) == set(FIELD.findall(text)), key


def test_each_text_that_the_page_asks_for_is_there() -> None:
    known = texts("en")
    served = "".join(path.read_text() for path in sorted((PACKAGE / "serve").glob("*.js")))
    page = (STATIC / "page.js").read_text() + (STATIC / "reader.js").read_text() + served
    asked = {*re.findall(r'words\("(\w+)"[,)]', page)}
    for name in ("report/interactive.py", "serve/app.py"):
        asked |= {*re.findall(r'data-words="(\w+)"', (PACKAGE / name).read_text())}
    asked |= {*app._COLUMNS}
    assert len(asked) > 60
    assert asked <= known.keys()


def test_each_sentence_of_python_is_there_in_korean() -> None:
    korean = sentences()
    headings = {columns.heading(column.name) for column in columns.RUNS}
    problems = {"out of memory", "diverged", predicted.NOT_REACHED}
    legends = {column.said for column in columns.RUNS} - {"", "{value}"} | {columns.WITH_HEADING}
    phrases = naming.PHRASES - NAMES
    of_comparisons = {
        *comparison.SENTENCES.values(), *comparison.VERDICTS, *comparison.KINDS,
        *comparison.MEASURES.values(), *CAPTIONS.values(),
    }  # fmt: skip
    known = {*templates()} | headings | problems | legends | phrases | of_comparisons
    assert known == korean.keys()
    assert {key for key, text in korean.items() if not HANGUL.search(text)} <= WORDLESS
    for key, text in korean.items():
        assert set(FIELD.findall(text)) == set(FIELD.findall(key)), key


def test_a_sentence_knows_what_it_is_made_of() -> None:
    one = said("{n:run} on {place}", n=1, place=said("two nodes"))
    assert one == "1 run on two nodes"
    assert said("{n:run}", n=2) == "2 runs"
    told = plain([joined([one, "", "plain"])])
    assert json.loads(json.dumps(told)) == [
        {
            "parts": [
                {
                    "template": "{n:run} on {place}",
                    "values": {"n": "1", "place": {"template": "two nodes", "values": {}}},
                },
                "plain",
            ],
            "between": " ",
        }
    ]
    assert plain({"said": one}, in_english=True) == {"said": "1 run on two nodes"}
    assert not isinstance(plain(one, in_english=True), Sentence)
    assert first_said(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert listed_said(["a", "b", "c"], "; ") == "a; b and c"
    assert listed_said(["a", "b", "c", "d"]) == "a, b, c and 1 more"


def test_settings_in_a_sentence_are_sentences() -> None:
    assert plain(naming.words("num_workers", 4))["template"] == "{value:worker}"
    seed = naming.words("seed", 3)
    assert seed == "seed 3"
    assert plain(seed)["values"]["heading"] == {"template": "seed", "values": {}}
    variant = naming.words("variant", "local_sgd sync_every 4")
    assert variant == "local SGD, synchronised every 4"
    assert [one["parts"][0]["template"] for one in plain(variant)["parts"]] == [
        "local SGD",
        "synchronised every",
    ]
    native = naming.words("variant", "allreduce native")
    assert plain(native)["parts"][0]["parts"] == [{"template": "native all-reduce", "values": {}}]
    assert naming.words("variant", "pipedream vertical_sync") == "PipeDream, vertical sync"
    assert naming.words("variant", "deepspeed stage 3") == "DeepSpeed, ZeRO stage 3"
    assert naming.words("variant", "own {x}, {n:worker}") == "own {x}, {n:worker}"
    assert columns.heading("optimizer.{x}") == "{x}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> analysis.Study:
    folder = tmp_path_factory.mktemp("studies") / "spoken"
    for batch in (64, 256):
        for workers in (1, 4):
            write_target_run(folder, Truth(), batch=batch, workers=workers, seed=0)
    meta = {**META, "commit": "f" * 40}
    lost = "out.safetensors was not written: OSError: no space"
    write_run(folder, local_batch=8, status=None, num_epochs_done=1, meta=meta, events=(lost,))
    reached = "reached a test accuracy of 0.9: evaluation 8, after 40000 examples (1252 steps), "
    write_run(folder, local_batch=16, num_epochs_done=2, message=f"{reached}confirms it")
    return bsweep.load(folder)


def test_a_reader_chooses_the_language_of_all_sentences(
    browser: Any, study: analysis.Study, tmp_path: Path
) -> None:
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
        go(page, lang="ko")
        korean = page.evaluate(lines)
        assert [line for line in korean if not HANGUL.search(line)] == []
        assert not any("{" in line or "object" in line for line in korean)
        english = r"(local|global) batch \d|\d (worker|run|seed)s?\b|was not written|precision on"
        assert [line for line in korean if re.search(english, line)] == []
        assert any("쓰지 못했습니다" in line for line in korean)
        assert "워커당 배치" in page.inner_text("#table thead")
        go(page, part="all")
        assert "테스트 정확도 0.9에 도달: 예제 40000개(1252스텝)" in page.inner_text("#table tbody")
        go(page, part="")
        go(page, lang="en")
        assert page.evaluate(lines) == shown
        page.evaluate("update({ ...study })")  # as a page of `bsweep watch` does
        drawn(page)
        go(page, lang="ko")
        assert page.evaluate(lines) == korean
