"""Simulated steps on the page: its charts have the numbers of the simulation, and are there only
for a study with larger clusters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep import analysis
from bsweep.analysis.prediction.networks import OWN_LINKS
from bsweep.analysis.prediction.simulated import recommended_steps
from bsweep.analysis.simulation import Simulation
from bsweep.analysis.simulation.constants import Constants
from bsweep.report.document import document
from bsweep.report.interactive import html_of
from bsweep.report.steps import steps
from tests.analysis.test_ways import write as write_ways
from tests.report.browser import go, opened, rows
from tests.support.synthetic_targets import TARGET

GROUPNORM = Path(__file__).parents[2] / "results/measured/groupnorm"
FAR = "10gbit,50us,sites=4,between=1gbit/20ms"
NETWORKS = ["25gbit,10us", FAR]
WORKERS = [1, 2, 4, 16, 64]
PHONE = {"width": 390, "height": 844}
CHARTS = ("step_speedup", "step_shares", "step_timeline", "step_sites")


@pytest.fixture(scope="module")
def study() -> analysis.Study:
    return bsweep.load(GROUPNORM).on_networks(NETWORKS, WORKERS)


@pytest.fixture(scope="module")
def simulation(study: analysis.Study) -> Simulation:
    (answer,) = analysis.answers(study)
    assert answer.prediction is not None
    found = recommended_steps(answer.prediction)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def path(study: analysis.Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "steps.html"
    path.write_text(html_of(document(study)), encoding="utf-8")
    return path


def chosen(table: pd.DataFrame, network: str, workers: int) -> pd.DataFrame:
    return table[(table["network"] == network) & (table["num_workers"] == workers)]


def test_steps_are_those_of_the_recommended_way(
    study: analysis.Study, simulation: Simulation
) -> None:
    (answer,) = analysis.answers(study)
    assert answer.prediction is not None
    cells, best = simulation.cells, answer.prediction.recommended
    assert set(cells["local_batch"]) == {best["local_batch"]}
    simulated = cells[cells["kind"] == "simulated"]
    for network in NETWORKS:
        assert simulated.loc[simulated["network"] == network, "num_workers"].tolist() == WORKERS
    measured = cells[cells["kind"] == "measured"]
    assert measured[["network", "num_workers"]].to_numpy().tolist() == [[OWN_LINKS, 2]]
    given: dict[str, Any] = {"strategies": "horovod", "workers": WORKERS, "network": NETWORKS}
    of_command = bsweep.simulate(GROUPNORM, local_batch=round(best["local_batch"]), **given).cells
    of_command = of_command[of_command["kind"] == "simulated"].set_index(["network", "num_workers"])
    steps = simulated.set_index(["network", "num_workers"])
    for name in ("step_seconds", "speed_up", "speed_up_low", "exchange_share"):
        assert steps[name].to_dict() == pytest.approx(of_command[name].to_dict())


def test_charts_of_steps_have_the_numbers_of_the_simulation(
    browser: Any, path: Path, simulation: Simulation
) -> None:
    cells = simulation.cells
    with opened(browser, path, f"network={FAR}") as page:
        speeds, shares = (rows(page, name) for name in CHARTS[:2])
        for name in CHARTS:
            assert page.locator(f"#{name} canvas").bounding_box()["width"] > 200
            assert page.locator(f"#save-{name} button:visible").count() == 3
    assert [row["value"] for row in speeds] == pytest.approx([*cells["speed_up"]])
    is_simulated = cells["kind"] == "simulated"
    assert [row["is_dashed"] for row in speeds] == [*is_simulated]
    assert all(row["low"] <= row["value"] <= row["high"] for row in speeds)
    simulated = [row for row in speeds if row["is_dashed"]]
    assert [row["low"] for row in simulated] == pytest.approx(
        [*cells.loc[is_simulated, "speed_up_low"]]
    )
    assert all("simulated" in row["line"] for row in simulated)
    parts = pd.DataFrame(shares).pivot(index="num_workers", columns="part", values="percent")
    assert [*parts.index] == WORKERS
    assert parts.sum(axis=1).to_numpy() == pytest.approx(np.full(len(WORKERS), 100))
    own = cells[(cells["network"] == FAR) & is_simulated].set_index("num_workers")
    for part, name in (("exchange", "exchange"), ("waiting for slower workers", "waiting")):
        assert parts[part].to_dict() == pytest.approx((100 * own[f"{name}_share"]).to_dict())


@pytest.mark.parametrize(("network", "workers"), [(NETWORKS[0], 16), (FAR, 4), (FAR, 64)])
def test_a_timeline_has_the_times_of_the_simulation(
    network: str, workers: int, browser: Any, path: Path, simulation: Simulation
) -> None:
    table = chosen(simulation.timelines, network, workers)
    with opened(browser, path) as page:
        go(page, network=network, step_workers=str(workers))
        drawn = rows(page, "step_timeline")
        assert page.input_value("#network") == network
        assert page.input_value("#step_workers") == str(workers)
    factor = 1 if table["end_seconds"].max() >= 1 else 1000
    for end in ("begin", "end"):
        times = [row[end] / factor for row in drawn]
        assert times == pytest.approx([*table[f"{end}_seconds"]])
    names = [f"worker {worker + 1}" for worker in range(workers)]
    assert [*dict.fromkeys(row["worker"] for row in drawn)] == [
        *(names if workers <= 16 else ["slowest worker"]), "network",
    ]  # fmt: skip
    kinds = {"computing", "exchange"} | ({"waiting for slower workers"} if workers <= 16 else set())
    assert {row["kind"] for row in drawn} == kinds
    told = [row["tip"] for row in drawn if row["worker"] == "network"]
    assert len(told) == 1
    assert f"rounds of messages in all: {2 * (workers - 1)}" in told[0]  # of a ring


def test_sites_are_on_a_circle_with_what_their_links_carry(
    browser: Any, path: Path, simulation: Simulation
) -> None:
    table = chosen(simulation.sites, FAR, 16)
    with opened(browser, path, f"network={FAR}&step_workers=16") as page:
        drawn = rows(page, "step_sites")
        scales = page.evaluate("""() => ["x", "y"].map((name) => {
            const scale = charts.step_sites.view.scale(name);
            return Math.abs(scale(1) - scale(0));
        })""")
        note = page.inner_text("#step-sites-say")
        go(page, network=NETWORKS[0])
        assert not page.is_visible("#step-sites")
        assert not page.is_visible("#save-step_sites")
    assert scales[0] == pytest.approx(scales[1], rel=0.01), "a circle is round"
    for name in ("x", "y", "workers"):
        assert [row[name] for row in drawn] == pytest.approx([*table[name]])
    assert [row["workers"] for row in drawn] == [4] * 4
    assert [*np.hypot(table["x"], table["y"])] == pytest.approx([1] * 4)
    megabytes = [float(row["says"].split(" MB\n")[0]) for row in drawn]
    assert megabytes == pytest.approx([*table["sent_bytes"] / 1e6], rel=0.005)
    assert "0.95 Gbit/s of payload, 20 ms" in note
    # A ring has as many latencies as rounds, which are most of the exchange of the timeline above.
    assert all(row["says"].endswith(" + 30 × 20 ms") for row in drawn)  # noqa: RUF001
    exchange = chosen(simulation.timelines, FAR, 16).query("who == 'network'").iloc[0]
    seconds = exchange["end_seconds"] - exchange["begin_seconds"]
    assert table["link_seconds"].max() + 30 * 0.02 == pytest.approx(seconds, rel=0.05)


def test_the_page_says_which_lines_are_simulated(browser: Any, path: Path) -> None:
    with opened(browser, path) as page:
        assert "Dotted: twice the workers, twice the speed." in page.inner_text("#step")
        assert "Dashed: simulated. A single worker" in page.inner_text("#larger")
        drawn = rows(page, "larger_time")
    alone = [row for row in drawn if row["num_workers"] == 1]
    assert alone
    assert not any(", simulated" in row["tip"].split("\n")[1] for row in alone)


def test_steps_are_told_on_a_phone(browser: Any, path: Path) -> None:
    with opened(browser, path, f"network={FAR}&step_workers=4", viewport=PHONE) as page:
        workers = [row["worker"] for row in rows(page, "step_timeline")]
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert [*dict.fromkeys(workers)] == [*(f"worker {one}" for one in range(1, 5)), "network"]


def test_without_a_network_the_page_has_no_steps(browser: Any, tmp_path: Path) -> None:
    told = document(bsweep.load(GROUPNORM))
    assert [part["steps"] for part in told["parts"]] == [None]
    (tmp_path / "page.html").write_text(html_of(told), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as page:
        assert not page.is_visible("#step")
        assert page.locator("#step canvas").count() == 0


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> analysis.Prediction:
    """A prediction for a study of ways that split a model, which codecs do not suit."""
    of = Constants(np.full(20, 0.02), np.full(20, 0.0005), 4e6, 64, "a test", example_bytes=4e4)
    monkeypatch.setattr("bsweep.analysis.simulation.constants.of_study", lambda *_: of)
    write_ways(tmp_path / "ways")
    return bsweep.predict(tmp_path / "ways", TARGET, network="1gbit", workers=[1, 2, 4, 8])


def test_passes_of_a_pipeline_have_numbers(ways: analysis.Prediction) -> None:
    place = int(np.flatnonzero(ways.cells["way"] == "pipeline microbatches=4")[0])
    told = steps(replace(ways, choice=replace(ways.choice, place=place)))
    assert told is not None
    spans = pd.DataFrame(told["spans"])
    assert set(spans["kind"]) == {"forward", "backward"}
    of = spans[spans["num_workers"] == 2]
    assert sorted(of["number"]) == sorted([*range(4)] * 4)
    assert {*of["who"], *of["place"]} == {"stage", 0.0, 1.0}


def test_a_network_whose_codec_no_way_takes_is_left_out(ways: analysis.Prediction) -> None:
    coded = replace(ways, network="1gbit,compression=topk")
    for both in (replace(ways, others=(coded,)), replace(coded, others=(ways,))):
        found = recommended_steps(both)
        assert found is not None
        assert set(found.cells["network"]) == {"1gbit"}
    assert recommended_steps(coded) is None
    assert steps(coded) is None
