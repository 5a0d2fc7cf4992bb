"""Studies with known differences, compared: what differs, which cells are slower, and what the
command answers.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bsweep
from bsweep.analysis.cell_tables.statistics import compare_means, holm
from bsweep.core.terminal import BAD_CONFIG
from bsweep.runlog.files import RunPaths
from tests.support.running import exit_code
from tests.support.synthetic_study import META, write_run, write_study


def write(
    study: Path,
    times: float = 1.0,
    *,
    seeds: int = 3,
    batches: tuple[int, ...] = (16, 64),
    meta: Mapping[str, Any] = META,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write runs of two batch sizes, all of whose times are as many times as long as usual."""
    for batch in batches:
        for seed in range(seeds):
            run = write_run(study, local_batch=batch, seed=seed, meta=meta, settings=settings)
            metrics = RunPaths(run).metrics
            records = [json.loads(line) for line in metrics.read_text().splitlines()]
            for record in records:
                for name in ("train_seconds", "step_seconds_p50", "step_seconds_p95"):
                    record |= {name: times * record[name]} if name in record else {}
            metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return study


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    write(folder / "before")
    write(folder / "same", meta={**META, "commit": "f" * 40})
    write(folder / "slow", 1.1, settings={"optimizer.lr": 0.2})
    write(folder / "once", 1.1, seeds=1)
    write(folder / "partly_slow", 1.1, batches=(16,))
    write(folder / "partly_slow", 1.1, batches=(64,), seeds=2)
    write(folder / "moved", 1.1, meta={**META, "cpu": "Other CPU"})
    write(folder / "apart", batches=(8, 128))
    write(folder / "fewer", batches=(64,))
    target = {"target_accuracy": 0.8}
    write(folder / "reached", settings=target)
    for name, missed in (("lost", (0, 1, 2)), ("rarer", (2,))):
        write(folder / name, batches=(64,), settings=target)
        for seed in range(3):
            accuracy = 0.5 if seed in missed else None
            write_run(folder / name, local_batch=16, seed=seed, accuracy=accuracy, settings=target)
    return folder


def typed(line: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command as the program does, in this process, and return its exit code."""
    monkeypatch.chdir(desk)
    return exit_code("compare", *shlex.split(line))


def of(found: bsweep.analysis.Comparison, measure: str) -> pd.DataFrame:
    """The cells of one measure."""
    return found.cells[found.cells["measure"] == measure]


def test_a_slow_down_of_ten_percent_is_found_in_every_cell(desk: Path) -> None:
    found = bsweep.compare(desk / "before", desk / "slow")
    for measure in ("step_seconds", "seconds_to_target"):
        cells = of(found, measure)
        assert cells["local_batch"].tolist() == [16, 64]
        assert cells["change"].tolist() == pytest.approx([1.1, 1.1])
        assert set(cells["verdict"]) == {"slower"}
    steps, accuracies = of(found, "step_seconds"), of(found, "accuracy")
    assert (steps["low"] > 1.05).all()
    assert (steps["high"] < 1.15).all()
    assert accuracies["change"].tolist() == [0, 0]
    assert set(accuracies["verdict"]) == {"no difference told"}
    assert set(found.slower(0.05)["measure"]) == {"step_seconds", "seconds_to_target"}
    assert found.slower(0.1).empty
    assert found.differences.values.tolist() == [["configuration", "lr", "0.1", "0.2"]]


def test_equal_studies_differ_in_nothing_but_the_commit(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study may have the name of a column."""
    shutil.copytree(desk / "same", tmp_path / "kind")
    monkeypatch.chdir(tmp_path)
    found = bsweep.compare(desk / "before", "kind")
    assert found.studies[1] == str(tmp_path / "kind")
    assert found.differences[["kind", "key"]].values.tolist() == [["code", "commit"]]
    assert set(found.cells["verdict"]) == {"no difference told"}
    assert (found.cells["p_holm"] == 1).all()
    assert found.slower(0).empty


@pytest.mark.full
def test_every_study_is_compared_with_the_first(desk: Path) -> None:
    found = bsweep.compare(*(bsweep.load(desk / name) for name in ("slow", "before", "same")))
    assert found.studies == ("slow", "before", "same")
    steps = of(found, "step_seconds")
    assert steps["study"].tolist() == ["before", "before", "same", "same"]
    assert set(steps["verdict"]) == {"faster"}
    assert list(found.differences.columns) == ["kind", "key", "slow", "before", "same"]
    assert len(found.brief()) == 3


@pytest.mark.full
def test_settings_of_a_whole_study_do_not_tell_its_cells_apart(tmp_path: Path) -> None:
    """A strategy that one study varies does; one in which whole studies differ does not."""
    ddp = {"strategy.name": "ddp"}
    write(tmp_path / "one", seeds=1)
    write(tmp_path / "other", seeds=1, settings=ddp)
    write(tmp_path / "two", seeds=1)
    write(tmp_path / "two", seeds=1, settings=ddp)
    found = bsweep.compare(tmp_path / "one", tmp_path / "other")
    assert len(of(found, "accuracy")) == 2
    assert ["configuration", "strategy", "horovod", "ddp"] in found.differences.values.tolist()
    varied = bsweep.compare(tmp_path / "two", tmp_path / "other")
    assert set(varied.cells["variant"]) == {"ddp"}
    assert varied.differences.set_index("key")["two"]["strategy"] == "varies: ddp, horovod"


@pytest.mark.full
def test_times_across_hardware_are_refused_and_accuracies_are_not(desk: Path) -> None:
    refused = bsweep.compare(desk / "before", desk / "moved")
    assert refused.cells["is_across_hardware"].all()
    is_tested = refused.cells["p_holm"].notna()
    assert is_tested.equals(refused.cells["measure"] == "accuracy")
    assert refused.cells["change"].notna().equals(is_tested)
    assert "(cpu Test CPU / Other CPU)" in refused.brief()[0]
    allowed = bsweep.compare(desk / "before", desk / "moved", across_hardware=True)
    assert set(of(allowed, "step_seconds")["verdict"]) == {"slower"}


def test_holms_method_corrects_as_by_hand() -> None:
    p = pd.Series([0.01, 0.04, np.nan, 0.03, 0.6])
    assert holm(p).tolist() == pytest.approx([0.04, 0.09, np.nan, 0.09, 0.6], nan_ok=True)


def test_a_corrected_interval_excludes_what_holms_method_rejects() -> None:
    base = np.array([-1.0, 0.0, 1.0])
    ones = pd.Series([base] * 4 + [base[:2]])
    others = pd.Series([base + 30, base + 4.5, base + 4.5, base, base])
    found = compare_means(ones, others, 0.0)
    plain = [stats.ttest_ind(base, base + by, equal_var=False).pvalue for by in (30, 4.5)]
    assert found["p_holm"].tolist()[:2] == pytest.approx([4 * plain[0], 3 * plain[1]])
    assert found["difference"].tolist() == pytest.approx([30, 4.5, 4.5, 0, 0.5])
    excludes = (found["low"] > 0) | (found["high"] < 0)
    assert excludes.tolist() == (found["p_holm"] <= 0.05).tolist()
    half = stats.t.ppf(1 - 0.05 / 4 / 2, 4) * math.sqrt(2 / 3)
    assert found["high"][0] - found["difference"][0] == pytest.approx(half)
    assert found.loc[4, ["low", "high", "p_holm"]].isna().all()
    assert compare_means(ones, others, 30.0)["p_holm"][0] == 1


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("before same", 0, ""),
        ("before slow --fail-if-slower 5%", 1, "slower by more than 5 %: slow, "),
        ("before once --fail-if-slower 5%", BAD_CONFIG, "cannot tell for 2 cells (once, Horovod"),
        ("before partly_slow --fail-if-slower 5%", 1, "cannot tell for 1 cell (partly_slow, "),
        ("before moved --fail-if-slower 5%", BAD_CONFIG, "--across-hardware"),
        ("before moved --fail-if-slower 5% --across-hardware", 1, "slower by more than 5 %"),
        ("before fewer --fail-if-slower 5%", BAD_CONFIG, "local batch 16): no run completed."),
        ("fewer before --fail-if-slower 5%", 0, ""),
        ("reached lost --fail-if-slower 5%", 1, "lost, Horovod, 1 worker, local batch 16: "),
        ("reached rarer --fail-if-slower 5%", BAD_CONFIG, "fewer runs reach the target."),
        ("before", BAD_CONFIG, "give two studies or more"),
        ("before apart", BAD_CONFIG, "before and apart have no common cell"),
        ("before slow --fail-if-slower 5", BAD_CONFIG, "'5' is no percentage"),
    ],
)
def test_the_command_exits_with(
    line: str,
    code: int,
    said: str,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert typed(line, desk, monkeypatch) == code
    output = capsys.readouterr()
    assert said in output.err + caplog.text
    assert len(output.out.splitlines()) <= 5
    is_compared = any(study in line for study in ("moved", "fewer", "rarer", "once", "partly"))
    assert bool(output.out) == (code != BAD_CONFIG or is_compared)


@pytest.mark.full
def test_the_command_prints_an_answer_tables_and_json(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("before slow --verbose", desk, monkeypatch)
    answer = capsys.readouterr().out
    assert answer.startswith("A step of slow takes 1.100 times as long as one of before")
    assert "configuration   lr     0.1   0.2" in answer
    assert "Horovod, 1 worker, local batch 16   3, 3" in answer
    typed("before slow --json", desk, monkeypatch)
    told = json.loads(capsys.readouterr().out)
    assert told["studies"] == ["before", "slow"]
    assert told["differences"][0]["slow"] == "0.2"
    assert told["cells"][0]["measure"] == "step_seconds"
    assert told["cells"][0]["verdict"] == "slower"
    assert len(told["cells"][0]["points"]) == 3


def test_a_page_shows_hostile_names_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "<img src=x onerror=alert(1)>&"
    write_study(tmp_path / hostile, local_batches=(8,), num_workers=(1,))
    write_run(tmp_path / "b", local_batch=8, meta={**META, "commit": "<script>alert(2)</script>"})
    write_run(tmp_path / "b", local_batch=16, status="failed")
    line = shlex.join([hostile, "b", "--page", "new/page.html"])
    assert typed(line, tmp_path, monkeypatch) == 0
    page = (tmp_path / "new/page.html").read_text()
    assert "<img" not in page
    assert page.count("<script") == 1
    assert ">b compared with &lt;img src=x onerror=alert(1)&gt;&amp;</h1>" in page
    assert "b: 1 of 2 runs did not complete" in page
