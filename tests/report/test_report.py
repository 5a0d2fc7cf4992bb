"""The report's files are all there, say the right things, and need no network."""

from __future__ import annotations

import html
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import bsweep
from bsweep import analysis, plots, report
from bsweep.analysis.study.numbers import number, spread
from bsweep.core.words import counted
from bsweep.report import formats, images
from bsweep.report.document import document
from bsweep.report.page import TEMPLATES, html_from
from tests.support.synthetic_study import META, diloco, server, write_run, write_study


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The page of the one report that has all figures, and what was told as it was written."""
    told: list[str] = []
    study = tmp_path_factory.mktemp("studies") / "a_study_50%"
    write_study(study, seeds=2)
    message = "<b>CUDA</b> & memory\nline 2"
    write_run(study, local_batch=512, status="out_of_memory", num_epochs_done=0, message=message)
    events = ("2 workers share 1 core",)
    write_run(study, local_batch=4, status="diverged", num_epochs_done=1, events=events)
    return report.write(study, command="bsweep report a_<b>study", tell=told.append), told


@pytest.fixture(scope="module")
def page(written: tuple[Path, list[str]]) -> Path:
    return written[0]


def test_the_page_offers_each_runs_own_path(tmp_path: Path) -> None:
    meta = META | {"command": "bsweep run study=s data.root=/a/one,/b/two epochs=3"}
    roots = ("/a/one", "/b/two")
    for seed, root in enumerate(roots):
        run = write_run(tmp_path / "s", local_batch=8, seed=seed, meta=meta)
        for path in (run / "config.yaml", run / "metrics.jsonl"):
            path.write_text(path.read_text().replace('"images"', f'"{root}"'))
    data = document(bsweep.load(tmp_path / "s"))
    commands = [data["commands"]["words"][place] for place in data["commands"]["of_run"]]
    assert sorted(commands) == [["epochs=3", f"data.root='{root}'"] for root in roots]
    assert [one["word"] for one in data["columns"] if one["name"] == "data.root"] == [""]


@pytest.mark.full
@pytest.mark.usefixtures("one_figure")
def test_a_copy_of_a_report_offers_no_command_without_its_path(tmp_path: Path) -> None:
    """Its runs have no configuration, in which the path of each would stand."""
    words = "data.root=/a/one,/b/two epochs=3"
    for seed in range(2):
        meta = META | {"command": f"bsweep run study=s {words}"}
        write_run(tmp_path / "s", local_batch=8, seed=seed, meta=meta)
    study = bsweep.load(report.write(tmp_path / "s").parent)
    assert document(study)["commands"] == {"words": [], "of_run": [None, None]}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="one process draws all")
def test_a_report_whose_drawing_fails_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path / "s", local_batches=(8, 64), num_workers=(1,))
    names = list(plots.figures(bsweep.load(study)))[:2]
    monkeypatch.setattr(plots, "figures", lambda _: {name: plots.FIGURES[name] for name in names})
    monkeypatch.setattr(report, "num_cores", lambda: 2)
    folder = report.write(study).parent
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    def broken(*_: object) -> None:
        raise OSError(f"no room, as process {os.getpid()} found")

    monkeypatch.setattr(plots, "save", broken)
    with pytest.raises(OSError, match="no room") as error:
        report.write(study, folder)
    assert str(os.getpid()) not in str(error.value), "another process drew"
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert after == before


TABLES = [
    "results", "predicted", "batch-ratios", "speed-ups", "fits", "steps",
]  # fmt: skip
"""The names of the tables of `page`."""


@pytest.mark.full
def test_all_files_are_written(page: Path) -> None:
    drawn = plots.figures(bsweep.load(page.parent.parent))
    suffixes = ("csv", "png", "svg", "pdf")
    figures = {f"{name}.{suffix}" for name in drawn for suffix in suffixes}
    tables = {f"{name}.csv" for name in ("runs", "epochs", "evaluations", "events", "provenance")}
    data = tables | {"table.md", "table.tex", "report.html"}
    latex = {f"table_{name}.tex" for name in TABLES}
    assert {path.name for path in page.parent.iterdir()} == figures | data | latex
    assert page.parent.name == "report"
    assert all(path.stat().st_size > 60 for path in page.parent.iterdir())


@pytest.mark.full
def test_it_opens_with_the_recommended_cell_and_its_interval(
    written: tuple[Path, list[str]],
) -> None:
    page, (fastest, sure, *_) = written
    study = bsweep.load(page.parents[1])
    best = analysis.surface(study).query("is_recommended").iloc[0]
    named = f"global batch {best['global_batch']} on {counted(best['num_workers'], 'worker')}"
    assert fastest.startswith("Fastest to a test accuracy of ")
    assert named in fastest
    assert f"{best['probability_best']:.2f}" in sure
    text = page.read_text()
    first = html.unescape(text[text.index("<p class=headline>") :].partition("</p>")[0])
    assert analysis.recommendations(study)[0] in first
    assert named in first
    for name in ("time_surface", "pareto_front"):
        assert f'<figure id="{name}">' in text
    assert "nan" not in page.with_name("table.md").read_text()


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page: Path) -> None:
    own = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    for tag in ("div", "section", "details", "figure", "table", "tr", "td", "p", "span", "dl"):
        assert len(re.findall(rf"<{tag}[ >]", own)) == own.count(f"</{tag}>"), tag
    assert len(re.findall('<img alt="[^"]', own)) == len(list(page.parent.glob("*.svg")))
    links = re.findall(r' (?:src|href)="([^"]*)"', own)
    files = [link for link in links if not link.startswith("data:image/svg+xml;base64,")]
    assert files
    assert all((page.parent / link).is_file() for link in files)
    assert not re.search(r"https?:|url\(|@import|<link|<iframe|<script[^>]* src=", own)
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', own)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_figures_in_svg_refer_to_nothing_outside(page: Path) -> None:
    for path in page.parent.glob("*.svg"):
        text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", path.read_text())
        text = re.sub(r"<!DOCTYPE[^>]*>", "", text)
        assert "<dc:date>" not in text
        assert "<text" not in text
        assert not re.findall(r'(?:href|src)="(?!#)[^"]*"', text)


def test_the_page_answers_in_words(page: Path) -> None:
    text = page.read_text()
    lines = analysis.headlines(bsweep.load(page.parents[1]))
    assert all(line in html.unescape(text) for line in lines)
    for said in (
        "1.87 times as many", "26 runs: ", "1 out of memory", "1 diverged",
        "bsweep report a_&lt;b&gt;study", "0123456789abcdef", "Test CPU",
        "b4_w1_horovod_s0: 2 workers share 1 core",
        "&lt;b&gt;CUDA&lt;/b&gt; &amp; memory\nline 2", "epochs: 3 (published: 50)", "Crosses on",
    ):  # fmt: skip
        assert said in text
    assert "<b>CUDA" not in text


def test_tables_hold_what_was_measured_and_are_escaped(page: Path) -> None:
    cells = analysis.cells(bsweep.load(page.parent.parent).runs)
    first, second = cells.xs(("horovod", 2, 64))["train_seconds_points"]
    markdown, latex = (page.with_name(name).read_text() for name in ("table.md", "table.tex"))
    assert f"| 2 | 64 | 128 | 0.2 | {first:.1f}, {second:.1f} |" in markdown, (
        "below three seeds there is no interval"
    )
    assert "±" not in markdown.partition("The seconds of an epoch against")[0]
    assert f"2 & 64 & 128 & 0.2 & {first:.1f}, {second:.1f} &" in latex
    assert r"\caption{a\_study\_50\%: Results of each cell. Test accuracy and loss" in latex
    assert latex.count(r"\hline") == 3 * latex.count(r"\end{table}")
    assert re.findall(r"\\label\{tab:a-study-50-(.*)\}", latex) == TABLES
    assert r"\shortstack[r]{sent by a \\ worker \\ (MB)}" in latex
    assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")
    assert "2 seeds each." in markdown
    assert "| 64 | 0.4907 | 0.4318 | 0.0491 | 0.00981 | 44.00 |" in markdown
    assert "| 64 | 260.6 | 1 | 1.866 | 0.9330 |" in markdown
    assert "out of memory" in markdown
    for line in latex.splitlines():
        assert not re.search(r"(?<!\\)%(?!$)", line) or line.startswith("%")


def test_latex_keeps_the_columns_that_were_chosen() -> None:
    cells = pd.DataFrame({"workers": ["1"], "time (s)": ["2.5"], "n": ["3"]})
    tables = [formats.Table("Results.", cells)]
    (text,) = formats.as_latex("s", tables, ["time (s)", "workers"]).values()
    assert r"\begin{tabular}{rr}" in text
    assert r"2.5 & 1 \\" in text
    with pytest.raises(ValueError, match=r"--columns worker: .* Did you mean 'workers'"):
        formats.as_latex("s", tables, ["worker"])
    cells = pd.DataFrame({"name": ["[a]", "*b"], "n": ["1", "2"]})  # no arguments of a line break
    (text,) = formats.as_latex("s", [formats.Table("c", cells, "t")]).values()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [row.partition(" &")[0] for row in rows[-2:]] == ["{}[a]", "{}*b"]


def test_numbers_have_as_many_digits_as_are_known() -> None:
    numbers = (0.0, 0.6472, 1.31312, 40.3133, 113.9632, 9.99999, 14892.4, 0.08951, 0.0000158, 100.0)
    assert [number(value) for value in numbers] == [
        "0", "0.6472", "1.313", "40.31", "114.0", "10.00", "14892", "0.0895", "1.58e-05", "100.0",
    ]  # fmt: skip
    assert number(math.nan) == "-"
    assert spread(2.0796, 0.0247, (2.07, 2.08, 2.09)) == "2.080 ± 0.025"
    assert spread(1648.2, 0.5) == "1648.2 ± 0.5"
    assert spread(257.31, 10.2) == "257 ± 10"
    assert spread(0.6472, 0.0, (0.6472,) * 3) == "0.6472 ± 0"
    assert spread(193.7, math.nan, (186.1, 201.3)) == "186.1, 201.3"
    assert spread(193.7, math.nan, (193.7,)) == "193.7"


@pytest.mark.full
@pytest.mark.usefixtures("one_figure")
def test_a_page_of_a_large_study_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path / "s")
    monkeypatch.setattr(images, "_MAX_SVG_BYTES", 1000)
    monkeypatch.setattr(report, "_MAX_RUN_IDS", 2)
    small = TEMPLATES.overlay()  # a template keeps the values with which it was loaded
    small.globals = {**TEMPLATES.globals, "max_rows": 3}
    monkeypatch.setattr(sys.modules[html_from.__module__], "TEMPLATES", small)
    page = report.write(tmp_path / "s").read_text()
    assert "data:image/png;base64," in page
    assert "data:image/svg" not in page
    assert "b16_w1_horovod_s0, b32_w1" not in page
    assert " and 10 more in runs.csv" in page
    means = page[page.index("Results of each cell.") :].partition("</table>")[0]
    assert "The first 3 of 12 rows. The files beside this page have all rows." in means
    assert means.count("<tr>") == 4
    assert (tmp_path / "s" / "report" / "table.md").read_text().count("| 256 |") > 2


NOT_LEARNED = "local batch 64 on 1 worker and local batch 256 on 1 worker."
SECONDS = "717.2 s (local batch 256 on 1 worker) to 4350 s (local batch 8 on 1 worker)"


@pytest.mark.parametrize(
    ("accuracies", "begins", "says"),
    [
        # Chance is 0.1; of 10,000 test images 0.11 is more than that, 0.105 is not.
        ({8: (0.9,), 16: (0.11,), 64: (0.1,), 256: (0.105,)}, "2 of 4 cells did", NOT_LEARNED),
        ({8: (0.9,), 16: (0.11,), 64: (0.1,), 256: (0.105,)}, "Fastest", "local batch 8 on 1"),
        ({8: (0.9,), 16: (0.11,), 64: (0.1,), 256: (0.105,)}, "", "16), with 0.1100 in"),
        ({8: (0.0,), 256: (0.0,)}, "None of 2 cells has learned", ""),
        ({8: (0.0,), 256: (0.0,)}, "", SECONDS),
        ({8: (0.8, 0.9, 0.85), 64: (0.75, 0.85, 0.8)}, "Fastest", "known only to ± 0.12"),
    ],
)
def test_only_what_has_learned_is_recommended_and_as_surely_as_seeds_tell(
    accuracies: dict[int, tuple[float, ...]], begins: str, says: str, tmp_path: Path
) -> None:
    for batch, of_seeds in accuracies.items():
        for seed, accuracy in enumerate(of_seeds):
            write_run(tmp_path / "s", local_batch=batch, seed=seed, accuracy=accuracy)
    lines = analysis.headlines(bsweep.load(tmp_path / "s"))
    assert any(line.startswith(begins) and says in line for line in lines), lines


def test_different_data_have_their_own_best(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    write_study(
        tmp_path / "s", local_batches=(8, 16), num_workers=(1,), settings={"data.name": "digits"}
    )
    lines = analysis.headlines(bsweep.load(tmp_path / "s"))
    assert [line.split(": ")[0] for line in lines[:2]] == ["digits", "imagefolder"]


@pytest.mark.full
@pytest.mark.usefixtures("one_figure")
def test_a_sharding_study_has_the_loads_of_its_servers(tmp_path: Path) -> None:
    warning = "compression=qsgd saves no traffic with 8 workers"
    for name in ("layer", "memory"):
        for workers in (1, 4, 8):
            of: dict[str, Any] = {"settings": server(name), "events": (warning,)}
            write_run(tmp_path / "s", local_batch=50, num_workers=workers, **of)
    page = report.write(tmp_path / "s")
    text, markdown = page.read_text(), page.with_name("table.md").read_text()
    assert text.count(warning) == 1
    assert (
        f"| {plots.words('variant', 'memory')} | 8 | 4 | 0.2500 | 0.1667 | 0.0625 | 0 |" in markdown
    )
    copy = bsweep.load(page.parent)
    assert_frame_equal(
        analysis.server_loads(copy),
        analysis.server_loads(bsweep.load(tmp_path / "s")),
        check_dtype=False,
    )
    assert len(copy.waits) == 2 * (1 + 4 + 8)


def test_runs_that_end_in_rounds_are_compared_after_equal_time(tmp_path: Path) -> None:
    for name in ("uniform", "steps_by_flops"):
        settings = diloco(name, max_rounds=10)
        rounds: dict[str, Any] = {"epochs": 1, "num_rounds": 10, "settings": settings}
        for seed in range(3):
            write_run(tmp_path / "s", local_batch=4, num_workers=4, seed=seed, **rounds)
    study = bsweep.load(tmp_path / "s")
    assert plots.length_of(study) == "10 rounds"
    (line,) = analysis.headlines(study)
    assert line.startswith("Lowest training loss after 33.73 s of training in each cell: ")
    assert f"{plots.words('variant', 'steps_by_flops')} (local batch 4 on 4 workers" in line
    assert "3.895 ± 0.064 (mean of 3 seeds" in line
    assert line.endswith("overlaps that of uniform.")


@pytest.mark.full
def test_a_report_that_is_written_again_keeps_nothing_of_the_earlier(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    gone = {"rounds.csv", "noise_scales.csv", "table_idle.tex"}
    stale = gone | {f"{name}.png" for name in plots.FIGURES}  # this study has few of them
    for name in (*stale, "mine.csv", "mine.png"):
        (folder / name).write_text("run_id\n")
    write_run(tmp_path / "s", local_batch=8)
    report.write(tmp_path / "s", folder)
    left = {path.name: path for path in folder.iterdir()}
    assert not [name for name in stale if name in left and left[name].read_bytes() == b"run_id\n"]
    assert left.keys().isdisjoint(gone)
    assert {"mine.csv", "mine.png", "runs.csv", "report.html"} <= left.keys()


@pytest.mark.full
def test_texts_of_a_reports_tables_are_read_back_as_texts(tmp_path: Path) -> None:
    meta = {**META, "versions": {"torch": "2.10.1"}}
    settings = {"model.weights": "a.pth", "model.weights_sha256": "12345678" * 8}
    write_run(tmp_path / "s", local_batch=8, meta=meta, settings=settings)
    study = bsweep.load(report.write(tmp_path / "s").parent)
    assert study.runs["torch"].tolist() == ["2.10"]
    assert study.runs["model.weights_sha256"].tolist() == ["12345678"]
