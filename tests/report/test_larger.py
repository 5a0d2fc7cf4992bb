"""Larger clusters in predictions, reports and pages: simulated cells are marked as simulated
everywhere, and networks are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

import bsweep
from bsweep import analysis, plots, report
from bsweep.analysis.conclusions.networks import OWN_LINKS, wall
from bsweep.analysis.prediction import fitting
from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.rows import knee
from bsweep.cli import main, predict
from bsweep.core.terminal import BAD_CONFIG
from bsweep.report.recommended import recommended
from tests.analysis.test_ways import write as write_ways
from tests.report.browser import go, opened, page_of, rows
from tests.support.synthetic_study import write_study
from tests.support.synthetic_targets import TARGET

GROUPNORM = Path(__file__).parents[2] / "results/measured/groupnorm"
NETWORKS = ["25gbit,10us", "100mbit,1ms"]
WORKERS = [1, 2, 4, 8, 16, 32, 64]


@pytest.fixture(scope="module")
def study() -> analysis.Study:
    """A measured study on one and two workers, with two networks."""
    return analysis.with_networks(
        bsweep.load(GROUPNORM), NETWORKS, WORKERS, price_per_worker_hour=2.0
    )


@pytest.mark.full
def test_networks_are_compared(study: analysis.Study) -> None:
    (answer,) = analysis.answers(study)
    prediction = answer.prediction
    assert prediction is not None
    curves = prediction.curves
    assert [*dict.fromkeys(curves["network"])] == [OWN_LINKS, *NETWORKS]
    timed = curves[curves["network"] == OWN_LINKS]
    assert timed["num_workers"].max() == 2
    assert not timed["is_simulated"].any()
    for network in NETWORKS:
        of = curves[curves["network"] == network]
        assert of.loc[of["is_simulated"], "num_workers"].tolist() == [4, 8, 16, 32, 64]
        assert (of["seconds_low"] < of["seconds"]).all()
        assert of["money"].tolist() == pytest.approx(
            (of["seconds"] * of["num_workers"] / 1800).tolist()
        )
    fast, slow = (curves[curves["network"] == name].iloc[-1] for name in NETWORKS)
    assert fast["seconds"] < slow["seconds"]
    for line, one in zip(prediction.network_lines(), prediction.of_networks, strict=True):
        best = one.recommended
        simulated = ", simulated" * bool(best["is_simulated"])
        named = f"global batch {best['global_batch']} on {best['num_workers']} worker"
        assert line.startswith(f"With {one.network}{simulated}: {named}")
    assert "knee" in repr(prediction)


def test_a_knee_is_where_more_workers_bring_little() -> None:
    workers = pd.Series([1, 2, 4, 8])
    assert knee(workers, pd.Series([1.0, 1.9, 3.5, 4.0])) == 4
    assert knee(workers, pd.Series([1.0, 2.0, 4.0, 8.0])) is None
    assert knee(workers, pd.Series([1.0, 1.1, 1.2, 1.3])) == 1
    # The first exchange costs much, but more workers then bring much again.
    assert knee(pd.Series([1, 2, 4, 8, 16]), pd.Series([1.0, 1.3, 2.4, 4.4, 5.0])) == 8
    assert knee(workers, pd.Series([1.0, 1.3, 2.4, 4.4])) is None
    assert knee(pd.Series([4]), pd.Series([1.0])) is None
    # The step from 2 to 64 workers does not tell where more of them begin to bring less.
    assert knee(pd.Series([1, 2, 64]), pd.Series([1.0, 1.9, 10.0])) is None
    assert knee(pd.Series([1, 2, 64, 128]), pd.Series([1.0, 1.9, 10.0, 11.0])) == 64


def test_the_wall_is_where_all_further_batches_are_above_it() -> None:
    workers = pd.Series([4, 8, 16, 32])
    cases: list[tuple[list[bool], int | None]] = [
        ([True, False, True, True], 16), ([True] * 4, 4), ([True, True, True, False], None),
        ([], None),
    ]  # fmt: skip
    for above, at in cases:
        assert wall(workers[: len(above)], pd.Series(above, dtype=bool)) == at


@pytest.mark.full
def test_the_command_prints_a_line_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(GROUPNORM), "--workers", "1..64", "--target-accuracy", "0.42"]
    words += [word for network in NETWORKS for word in ("--network", network)]
    assert predict.run(words) == 0
    told = capsys.readouterr().out
    assert all(f"With {network}, " in told for network in NETWORKS)
    assert predict.run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["network"] for one in found["networks"]] == NETWORKS
    for one in found["networks"]:
        assert {cell["is_simulated"] for cell in one["cells"]} == {True, False}
    assert {row["network"] for row in found["curves"]} == {OWN_LINKS, *NETWORKS}


@pytest.mark.full
def test_figures_and_tables_mark_what_is_simulated(study: analysis.Study) -> None:
    cells = analysis.surface(study)
    assert cells["is_simulated"].any()
    (axes,) = plots.FIGURES["time_surface"](study).axes
    frames = [one for one in axes.patches if isinstance(one, Rectangle) and not one.get_fill()]
    dashed = [frame for frame in frames if frame.get_linestyle() not in ("solid", "-")]
    shown = cells["is_simulated"] & (cells["problem"] == "")
    assert len(dashed) == shown.sum()
    for name in ("time_surface", "pareto_front"):
        figure = plots.FIGURES[name](study)
        assert "simulated" in plots.caption(figure)
        legends = [text.get_text() for one in figure.legends for text in one.get_texts()]
        assert "simulated" in legends, name
    tables = {table.name: table for table in recommended(study)}
    assert tables["predicted"].cells["runs"].str.contains("simulated").any()
    assert "25gbit,10us" in tables["predicted"].caption
    assert len(tables["larger-clusters"].cells) == len(analysis.larger_clusters(study))


@pytest.mark.full
def test_a_codec_is_compared_like_a_network_and_doubted_more() -> None:
    networks = ["100mbit,1ms", "100mbit,1ms,compression=fp16"]
    found = bsweep.predict(
        GROUPNORM, target_accuracy=0.42, network=networks, workers=[1, 8], batches=[256, 512]
    )
    seconds = [one.cells.set_index("num_workers")["seconds"][8].min() for one in found.of_networks]
    assert seconds[1] < seconds[0]
    plain, coded = (
        one.cells[one.cells["is_simulated"]].set_index("global_batch") for one in found.of_networks
    )
    widths = [of["step_seconds_high"] / of["step_seconds_low"] for of in (plain, coded)]
    assert (widths[1] > widths[0]).all()
    assert any("a codec may change it" in warning for warning in found.warnings)
    assert any("no run measured the seconds that fp16 takes" in one for one in found.warnings)


@pytest.mark.full
def test_ways_that_split_a_model_are_simulated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By constants that a test gives, as the epochs of the study have no seconds."""
    known = Constants(np.full(20, 0.02), np.full(20, 0.0005), 4e6, 64, "a test")
    monkeypatch.setattr("bsweep.analysis.simulation.constants.of_study", lambda *_: known)
    study = tmp_path / "ways"
    write_ways(study)
    found = bsweep.predict(study, TARGET, network="1gbit", workers=[1, 2, 4, 8])
    simulated = found.cells[found.cells["is_simulated"]]
    assert set(simulated["num_workers"]) == {8}
    ways = {"ddp", "sharded", "pipeline"}
    assert {way.split()[0] for way in simulated["way"]} == ways
    assert (found.cells["num_workers"] == 8).sum() == len(simulated)
    assert sum("not known" in warning for warning in found.warnings) == 2
    assert any("published, not measured: 50us of 1gbit (" in one for one in found.warnings)
    other = bsweep.predict(study, TARGET, network="1gbit,50us", workers=[1, 2, 4, 8])
    assert not any("published, not measured" in one for one in other.warnings)
    with pytest.raises(ValueError, match=r"compression=topk with strategy=\w+: it takes no codec"):
        bsweep.predict(study, TARGET, network="1gbit,compression=topk", workers=[4, 8])


BEGINS = {
    "predict": [str(GROUPNORM), "--target-accuracy", "0.42"],
    "report": [str(GROUPNORM), "--out", "report"],
    "recommend": ["local_batch=8,16", "num_workers=1,2", "--target-accuracy", "0.5"],
    "simulate": [str(GROUPNORM)],
}
"""The words with which commands that simulate larger clusters begin."""


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("given", "says", "commands"),
    [
        ("--speeds 1,x --network 1gbit", "--speeds 1,x", [*BEGINS]),
        ("--speeds 1,0 --network 1gbit", "--speeds 0", [*BEGINS]),
        ("--network 25gb", "--network 25gb", [*BEGINS]),
        ("--network 25gbit --measured-network 1gb", "--measured-network 1gb", [*BEGINS]),
        ("--speeds 1,0.5", "--speeds 1,0.5 without a network", ["predict", "recommend"]),
        ("--measured-network 1gbit", "--measured-network 1gbit without a network", ["predict"]),
        ("--speeds 1,0.5", "--speeds without a network", ["report"]),
        ("--workers 1..64", "--workers without a network", ["report"]),
        ("--network 1gbit --workers 1,2", "--network 1gbit: no cell of the grid", ["predict"]),
        ("--network 1gbit,compression=", "--network 1gbit,compression=: name", ["predict"]),
        ("--network 1gbit,compression=fp16,compression=topk", "name one codec", ["predict"]),
        ("--network 1gbit,compression=fp15", "compression=fp15 is unknown", ["predict"]),
        ("--network 1gbit,compression=own", "compression=own has code", ["predict"]),
        ("--network 1gbit,compression=powersgd", "what compression=powersgd", ["predict"]),
        ("strategy=sharded --network 1gbit,compression=topk", "topk with strategy=", ["recommend"]),
    ],
)
def test_what_describes_machines_wrongly_is_refused_before_anything_starts(
    given: str,
    says: str,
    commands: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main.run([command, *BEGINS[command], *given.split()]) == BAD_CONFIG
        assert says in caplog.text
        caplog.clear()
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_the_command_reports_a_larger_cluster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It predicts with few draws, and draws the figure of the cluster alone, in one format."""
    monkeypatch.setattr(plots, "FIGURES", {"larger_clusters": plots.FIGURES["larger_clusters"]})
    monkeypatch.setattr(report, "_PICTURES", ("svg",))
    monkeypatch.setattr(fitting.fit, "__defaults__", (100,))
    write_study(tmp_path / "s", local_batches=(8, 64), num_workers=(1, 2))
    options = "--network 25gbit,10us --workers 1,2,4 --price-per-worker-hour 2.5 --speeds 1,0.25"
    assert main.run(["report", str(tmp_path / "s"), *options.split()]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert caplog.messages[0].startswith("Fastest to a test accuracy of ")
    assert options in page.read_text()
    assert "simulated" in page.with_name("table.md").read_text()
    assert page.with_name("larger_clusters.svg").exists()


@pytest.mark.full
def test_the_page_marks_what_is_simulated(
    browser: Any, study: analysis.Study, tmp_path: Path
) -> None:
    cells = analysis.surface(study)
    best = cells[cells["is_recommended"]].iloc[0]
    with opened(browser, page_of(study, tmp_path)) as page:
        on_map = rows(page, "map")
        assert sum(row["is_simulated"] for row in on_map) == cells["is_simulated"].sum()
        assert ("Simulated with 25gbit,10us" in page.inner_text("#sure")) == best["is_simulated"]
        assert page.inner_text("#networks").count("With ") == 2
        chosen = cells[cells["is_simulated"] & (cells["problem"] == "")].iloc[0]
        go(page, cell=f"{chosen['global_batch']}x{chosen['num_workers']}")
        assert "simulated" in page.inner_text("#reading")
