"""The report's files are all there, say the right things, and need no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

import bsweep
from bsweep import analysis, plots, report
from tests.synthetic_study import diloco, server, write_run, write_study


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = tmp_path_factory.mktemp("studies") / "a_study_50%"
    write_study(study, seeds=2)
    write_run(study, local_batch=512, status="out_of_memory", num_epochs_done=0, message="<b>CUDA</b> & memory\nline 2")
    write_run(study, local_batch=4, status="diverged", num_epochs_done=1, events=("2 workers share 1 core",))
    return report.write(study, command="bsweep report a_study")


def test_all_files_are_written(page: Path) -> None:
    drawn = plots.figures(bsweep.load(page.parent.parent))
    figures = {f"{name}.{suffix}" for name in drawn for suffix in ("png", "svg", "pdf")}
    data = {"runs.csv", "epochs.csv", "provenance.csv", "table.md", "table.tex", "report.html"}
    assert {path.name for path in page.parent.iterdir()} == figures | data
    assert page.parent.name == "report"
    assert all(path.stat().st_size > 100 for path in page.parent.iterdir())


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page: Path) -> None:
    class Links(HTMLParser):
        found: list[str]
        open_tags: list[str]
        images: int = 0

        def handle_endtag(self, tag: str) -> None:
            assert self.open_tags.pop() == tag

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.open_tags += [tag] * (tag not in ("meta", "img", "br"))
            values = dict(attrs)
            self.found += [value for name, value in attrs if name in ("src", "href") and value]
            self.images += tag == "img" and bool(values.get("alt"))
            assert tag not in ("script", "link", "iframe")

    parser = Links()
    parser.found, parser.open_tags = [], []
    parser.feed(page.read_text())
    parser.close()
    assert parser.open_tags == []
    assert parser.images == len(plots.figures(bsweep.load(page.parent.parent)))
    assert all(link.startswith("data:image/svg+xml;base64,") or (page.parent / link).is_file() for link in parser.found)
    assert not re.search(r"https?:|url\(|@import", page.read_text())


def test_figures_in_svg_refer_to_nothing_outside(page: Path) -> None:
    for path in page.parent.glob("*.svg"):
        text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", path.read_text())
        text = re.sub(r"<!DOCTYPE[^>]*>", "", text)
        assert "<dc:date>" not in text
        assert "<text" not in text
        assert not re.findall(r'(?:href|src)="(?!#)[^"]*"', text)


def test_the_page_answers_in_words(page: Path) -> None:
    text = page.read_text()
    assert "Fastest: local batch 256 on 2 workers (global batch 512), with" in text
    assert "Most accurate: local batch 64 on 1 worker (global batch 64), with test accuracy" in text
    assert "(mean of 2 runs)." in text
    assert "26 runs: " in text
    assert "1 out of memory" in text
    assert "1 diverged" in text
    assert "bsweep report a_study" in text
    assert "0123456789abcdef" in text
    assert "Test CPU" in text
    assert "b4_w1_horovod_s0: 2 workers share 1 core" in text
    assert "&lt;b&gt;CUDA&lt;/b&gt; &amp; memory\nline 2" in text
    assert "<b>CUDA" not in text
    assert "epochs: 3 (published: 50)" in text
    assert "an equal local batch is a different global batch" in text
    assert "Crosses on the lower edge are runs that did not complete." in text


def test_tables_hold_means_and_are_escaped(page: Path) -> None:
    cells = analysis.cells(bsweep.load(page.parent.parent).runs)
    row = cells.xs(("horovod", 2, 64))
    seconds = f"{row['train_seconds']:.1f}"
    markdown, latex = (page.with_name(name).read_text() for name in ("table.md", "table.tex"))
    assert f"| 2 | 64 | 128 | 2 | {seconds} |" in markdown
    assert f"2 & 64 & 128 & 2 & {seconds} &" in latex
    assert r"\caption{a\_study\_50\%: Mean" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == latex.count(r"\resizebox{\linewidth}{!}{%") == 5
    assert r"\begin{tabular}{rrrrrrrrrrl}" in latex
    assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")
    assert "time per example of one worker (s)" in markdown
    assert re.search(r"\| 2 \| 64 \| 2 \| 0.49. \| 0.43. \| 0.049\d* \| 0.0098\d* \| 44.00 \|", markdown)
    assert "out of memory" in markdown
    for line in latex.splitlines():
        assert not re.search(r"(?<!\\)%(?!$)", line) or line.startswith("%")


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw one figure only, where the test is about something else."""
    monkeypatch.setattr(plots, "FIGURES", {"loss_by_epoch": plots.loss_by_epoch})


@pytest.mark.usefixtures("one_figure")
def test_out_folder_and_one_run_a_cell(tmp_path: Path) -> None:
    write_study(tmp_path / "s", num_workers=(1,))
    page = report.write(tmp_path / "s", tmp_path / "elsewhere" / "out")
    assert page == tmp_path / "elsewhere" / "out" / "report.html"
    assert "Each cell was run once" in page.read_text()
    assert not (tmp_path / "s" / "report").exists()


@pytest.mark.usefixtures("one_figure")
def test_nothing_completed_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=8, status="failed", num_epochs_done=0, message="no luck")
    text = report.write(tmp_path / "s").read_text()
    assert "No run of 1 cell has completed" in text
    assert "no luck" in text


def test_the_headlines_of_a_study_without_repeats(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 64), num_workers=(1,), epochs=1)
    assert report.headlines(bsweep.load(tmp_path / "s")) == [
        "Fastest: local batch 64 on 1 worker (global batch 64), with 356.2 s of training for 1 epoch (1 run).",
        "Most accurate: local batch 64 on 1 worker (global batch 64), with test accuracy 0.8925 (1 run).",
        "Each cell was run once: repeat with other seeds before trusting small differences.",
    ]


def test_learning_rate_rules_are_not_pooled(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 64), num_workers=(1,))
    linear = {"optimizer.lr_rule": "linear"}
    write_study(tmp_path / "s", local_batches=(8, 64), num_workers=(1,), seeds=2, settings=linear)
    write_run(tmp_path / "s", local_batch=128, status=None, num_epochs_done=1)
    unfinished, fastest, _, caveat = report.headlines(bsweep.load(tmp_path / "s"))
    assert unfinished == "Unfinished: 1 of 7 runs may still change what follows."
    assert fastest.startswith("Fastest: local batch 64 on 1 worker, learning rate: per worker (global batch 64), with")
    assert "(1 run)" in fastest
    assert caveat.startswith("Some cells were run once")


def test_different_data_have_their_own_best(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,), settings={"data.name": "digits"})
    lines = report.headlines(bsweep.load(tmp_path / "s"))
    assert [line.split(": ")[0] for line in lines[:4]] == ["digits", "digits", "imagefolder", "imagefolder"]


@pytest.mark.usefixtures("one_figure")
def test_a_sharding_study_is_held_against_the_published_one(tmp_path: Path) -> None:
    warning = "compression=qsgd cannot win on 8 workers"
    for name in ("layer", "memory"):
        for workers in (1, 4, 8):
            settings = server(name)
            write_run(tmp_path / "s", local_batch=50, num_workers=workers, settings=settings, events=(warning,))
    page = report.write(tmp_path / "s")
    text, markdown = page.read_text(), page.with_name("table.md").read_text()
    assert text.count(warning) == 1
    assert "gives C = 4 s that do not grow with the load (computing alone was measured: " in text
    assert "and x = 1 s" in text
    assert "ResNet-18" not in text
    assert "| 8 | 50 | 0.7430 | 0.2500 | 0.6573 | 0.6600 | 0.6690 |" in markdown
    assert "| memory | 8 | 50 | 1 | 4 | 0.2500 | 0.1667 | 0.0625 | 0 |" in markdown
    copy = bsweep.load(page.parent)
    assert_frame_equal(
        analysis.server_loads(copy), analysis.server_loads(bsweep.load(tmp_path / "s")), check_dtype=False
    )
    assert len(copy.waits) == 2 * (1 + 4 + 8)


def uneven_study(folder: Path, max_rounds: int | None = None, **rounds: int) -> analysis.Study:
    """Runs on four uneven workers, with so many rounds under each allocation."""
    for name, num_rounds in rounds.items():
        for seed in range(2):
            settings = diloco(name, max_rounds=max_rounds)
            write_run(
                folder, local_batch=4, num_workers=4, seed=seed, epochs=1, settings=settings, num_rounds=num_rounds
            )
    return bsweep.load(folder)


@pytest.mark.usefixtures("one_figure")
def test_idle_times_are_told_as_table_3_of_the_paper(tmp_path: Path) -> None:
    study = uneven_study(tmp_path / "s", uniform=10, steps_by_flops=10)
    page = report.write(tmp_path / "s")
    text, markdown = page.read_text(), page.with_name("table.md").read_text()
    assert "| uniform | 4 | 4 | 1.1 | 0.0 | 14.7 | 4.9 | 20.7 | - | 10 |" in markdown
    assert "| steps_by_flops | 4 | 4 | 2.3 | 0.0 | 8.7 | 1.8 | 12.8 | -38.1 | 10 |" in markdown
    assert "| uniform | 4 | 4 | 2 | 33.73 | 15135 | 3.9656 |" in markdown
    assert "their totals change by A +96 %, B +38 %, C -39 %" in text
    assert "would leave 0.2 s of C&#x27;s 12.6 s idle with steps by measured speed (104, 100, 192, 119)." in text
    assert report.idle_text(study).splitlines()[-3:] == [
        "variant         node 1 (s)  node 2 (s)  node 3 (s)  node 4 (s)  total (s)  change (%)  examples/s",
        "uniform                1.1         0.0        14.7         4.9       20.7           -       448.8",
        "steps_by_flops         2.3         0.0         8.7         1.8       12.8       -38.1       505.5",
    ]


def test_runs_that_end_in_rounds_are_compared_after_equal_time(tmp_path: Path) -> None:
    study = uneven_study(tmp_path / "s", max_rounds=10, uniform=10, steps_by_flops=10)
    assert plots.length_of(study) == "10 rounds"
    (line,) = report.headlines(study)
    assert line == (
        "Lowest training loss after 33.7 s of each: local batch 4 on 4 workers, steps_by_flops, with 3.8817 "
        "(mean of 2 runs)."
    )


def test_idle_times_of_unlike_runs_say_that_they_are_scaled(tmp_path: Path) -> None:
    text = report.idle_text(uneven_study(tmp_path / "s", uniform=10, steps_by_flops=5))
    assert "Runs had 5 to 10 rounds: idle times are scaled" in text.replace("\n", " ")
    assert "total of a round (s)" in text
    assert "38.1" in text.splitlines()[-1]


def test_of_many_nodes_the_idlest_and_the_busiest_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.synthetic_study.NODE_STEP_SECONDS", (0.01, 0.02, 0.02) * 4)
    settings = diloco("uniform")
    write_run(tmp_path / "s", local_batch=4, num_workers=12, epochs=1, settings=settings, num_rounds=2)
    *_, head, row = report.idle_text(bsweep.load(tmp_path / "s")).splitlines()
    assert head.split("  ")[1:] == [
        "least idle node (s)",
        "median node (s)",
        "most idle node (s)",
        "total (s)",
        "examples/s",
    ]
    assert row.split()[:-1] == ["diloco", "0.00", "0.00", "2.00", "8.00"]


def test_without_rounds_there_is_nothing_to_tell(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=8)
    assert report.idle_text(bsweep.load(tmp_path / "s")) == ""


@pytest.mark.usefixtures("one_figure")
def test_a_report_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    page = report.write(tmp_path / "s")
    before = {path.name: path.stat().st_mtime_ns for path in page.parent.iterdir()}
    monkeypatch.setattr(report, "_page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report.write(tmp_path / "s")
    assert {path.name: path.stat().st_mtime_ns for path in page.parent.iterdir()} == before
