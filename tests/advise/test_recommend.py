"""`bsweep recommend`: what it chooses on grids with known laws, and searches with real workers,
interrupted and not.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

import bsweep
from bsweep.advise import recommend, search
from bsweep.advise.search import Search, _Probe
from bsweep.analysis.conclusions.next_run import (
    SHARE,
    Grid,
    Offer,
    first_run,
    has_known_steps,
    next_probe,
    next_run,
    still_open,
    with_rates,
)
from bsweep.analysis.prediction.forecast import Key
from bsweep.analysis.prediction.objectives import parse_objective
from bsweep.analysis.prediction.seen_runs import observed
from bsweep.analysis.prediction.step_time import Cell, Timing, fit_step_time
from bsweep.config.target import target_of
from bsweep.config.values import ConfigError
from bsweep.core import energy
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Status
from bsweep.runlog.summary import write_summary
from bsweep.study import history
from tests.support.played_search import DRAWS, SEEDS, Played
from tests.support.running import Fork, before, compose, exits, ran_ok, wait_for
from tests.support.running import bsweep as command
from tests.support.synthetic_targets import TARGET, Truth, write_target_run
from tests.support.worlds import WORLDS, drawn


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 3, 6, 7])
def test_a_search_finds_a_cell_near_the_best_for_a_small_cost(seed: int, tmp_path: Path) -> None:
    """In one of the worlds, batches beyond a threshold never reach the target."""
    truth = WORLDS["threshold"](seed) if seed == 6 else drawn(seed)
    search = Played(truth, tmp_path / "s", seed)
    prediction = search.search()
    assert prediction is not None
    best = prediction.recommended
    seconds = {cell: search.truth.seconds(*cell[:2]) for cell in search.grid.cells}
    cost = sum(SEEDS * taken * cell[1] for cell, taken in seconds.items())
    found = int(best["global_batch"]), int(best["num_workers"]), 1, ""
    assert seconds[found] <= 1.05 * min(seconds.values())
    assert search.spent <= 1.15 * SHARE * cost, "5 % of the cost as it is predicted"


@pytest.mark.full
def test_a_search_begins_in_the_middle_and_keeps_its_budget(tmp_path: Path) -> None:
    search = Played(Truth(), tmp_path / "s", 0)
    _, first, _ = search.look()
    assert first.offer is not None
    assert first.offer.cell[1] == 1
    assert first.offer.cell[0] in (128, 256), "the middle of the batches"
    step_time = fit_step_time(search.timings, DRAWS)

    def left(worker_seconds: float) -> dict[int, float]:
        return dict.fromkeys((1, 2, 4), worker_seconds)

    begun = Offer((16, 4, 1, ""), 9e4, done_steps=50.0)
    goes_on = first_run(search.grid, [first.offer, begun], step_time, left(1e4))
    assert goes_on.offer == begun, "what is under way"
    assert first_run(search.grid, [begun], step_time, left(-1.0)).ends == "budget"
    assert first_run(search.grid, [], step_time, left(1e4)).ends == "runs"
    search.run((64, 1, 1, ""), math.inf)
    prediction, second, _ = search.look()
    assert prediction is not None
    assert not has_known_steps(prediction), "one batch size tells nothing of the others"
    assert second.offer is not None
    assert second.offer.cell[0] != 64
    most = search.grid.most_steps
    offers = [Offer(cell, most[cell]) for cell in search.grid.cells]
    poor = next_run(search.grid, offers, prediction, left(1.0))
    assert poor.ends == "budget"
    assert poor.worker_seconds > 1
    assert poor.gain > 0
    rich = next_run(search.grid, offers, prediction, left(1e6))
    assert rich.offer == poor.offer is not None
    assert not rich.ends
    half = [Offer(cell, most[cell], 0.9 * search.truth.steps(cell[0])) for cell in most]
    cheaper = next_run(search.grid, half, prediction, left(1e6))
    assert cheaper.worker_seconds < 0.5 * rich.worker_seconds, "the rest of a run alone"
    search.run((512, 1, 1, ""), math.inf)
    prediction, _, _ = search.look()
    assert prediction is not None
    assert has_known_steps(prediction)


def test_a_budget_that_earlier_searches_have_spent_buys_no_run(tmp_path: Path) -> None:
    kind = history.planned(compose("local_batch=8", "launch=inline")).kind
    timed = {"kind": kind, "step_seconds": 0.01, "wall_seconds": 6.0}
    probes = [{**timed, "cell": [batch, 1, 1]} for batch in (8, 16)]
    kept = tmp_path / "results/s/recommend.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"schema": 1, "probes": probes}))
    grid = ("local_batch=8,16", "launch=inline", "study=s", "--target-accuracy", "0.9")
    result = command("recommend", *grid, "--budget", "11s", cwd=tmp_path)
    assert "Ended: the rest of the budget" in result.stdout, result.stderr
    assert not list(kept.parent.glob("b*"))


def test_a_run_out_of_memory_counts_in_a_search_that_resumes(tmp_path: Path) -> None:
    words = ("launch=inline", "num_workers=1", f"results_dir={tmp_path}", "study=s")
    configs = [compose(f"local_batch={batch}", *words) for batch in (8, 16, 32)]
    large = RunPaths(configs[-1].folder)

    def search() -> Search:
        objective = parse_objective("fastest")
        cells = recommend._cells(configs, objective)
        target = target_of(accuracy=0.9)
        return Search(cells, {}, "bsweep recommend", [], target, objective, 1e4, None)

    large.folder.mkdir(parents=True)
    kept = {"schema": 1, "runs": [configs[-1].run_id], "probes": [
        {"kind": history.planned(configs[0]).kind, "cell": [batch, 1, 1], "step_seconds": 0.01,
         "wall_seconds": 6.0} for batch in (8, 16, 32)
    ]}  # fmt: skip
    (tmp_path / "s/recommend.json").write_text(json.dumps(kept))
    write_summary(large, configs[-1], "out_of_memory", "no room", 100.0)
    first = search()
    assert first.spent(is_wall=True) == 118
    first._does_not_fit((32, 1, 1, ""), 0.0, "no room")
    first._keep()
    assert first.spent(is_wall=True) == 118
    second = search()
    second._probe()
    assert [cell[0] for cell in second.cells] == [8, 16]
    assert second.spent(is_wall=True) == 118


def test_a_grid_whose_runs_are_all_out_of_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("launch=inline", "num_workers=1", f"results_dir={tmp_path}", "study=s")
    configs = [compose(f"local_batch={batch}", *words) for batch in (8, 16)]
    target, objective = target_of(accuracy=0.9), parse_objective("fastest")
    cells, warnings = recommend._cells(configs, objective), {c.folder: [""] for c in configs}
    begun = Search(cells, warnings, "bsweep recommend", [], target, objective, 1e4, None)
    begun.probes = {cell: _Probe(begun.kinds[""], cell[:3], 0.01, 6.0) for cell in cells}
    begun.study_dir.mkdir()
    monkeypatch.setattr(search, "_train", lambda *_: "out_of_memory")
    with pytest.raises(ValueError, match="no cell of the grid fits into memory: add smaller"):
        begun.lead()


def test_without_a_budget_three_runs_are_paid_for() -> None:
    step_time = fit_step_time([Timing(Cell(8, 1), 0.1), Timing(Cell(32, 1), 0.2)], DRAWS)
    cells: list[Key] = [(8, 1, 1, ""), (16, 1, 1, ""), (32, 1, 1, "")]
    small = Grid(dict.fromkeys(cells, 1), dict.fromkeys(cells, 100.0), {1: 5.0})
    middle = small.run_worker_seconds(Offer((16, 1, 1, ""), 100.0), math.inf, step_time)
    assert middle > 5 + 100 * 0.1, "with its start"
    assert small.share(step_time, None, before=7.0) == pytest.approx(7 + 3 * middle)
    large = Grid(dict.fromkeys(cells, 100), dict.fromkeys(cells, 100.0), {1: 5.0})
    assert large.share(step_time, None, before=7.0) > 10 * middle, "5 % of all runs are more"


def test_batches_above_one_that_ended_in_vain_are_not_tried(tmp_path: Path) -> None:
    truth = Truth()
    write_target_run(tmp_path / "s", truth, batch=32)
    examples = 64 * truth.steps(64)
    write_target_run(tmp_path / "s", truth, batch=128, most_examples=examples)
    offers = [Offer((batch, 1, 1, ""), 9e4) for batch in (16, 64, 128, 256)]

    def opened(study: Path) -> list[int]:
        seen = observed(bsweep.load(study), target_of(accuracy=TARGET))
        return [one.cell[0] for one in still_open(offers, seen.runs)]

    assert opened(tmp_path / "s") == [16, 64]
    write_target_run(tmp_path / "s", truth, batch=512)
    assert opened(tmp_path / "s") == [16, 64, 256], "a larger one reached the target"
    write_target_run(tmp_path / "t", truth, batch=32)
    write_target_run(tmp_path / "t", truth, batch=128, most_examples=examples, status="diverged")
    assert opened(tmp_path / "t") == [16, 64, 128, 256], "that it diverged says nothing of them"


def timed_cells(cells: list[Key], most: float = math.inf) -> list[Key]:
    costs: dict[Key, float] = {}
    while (cell := next_probe(cells, costs, lambda: most)) is not None:
        costs[cell] = 1.0
    return [*costs]


def test_both_ends_are_timed_first_and_then_what_is_farthest_from_them() -> None:
    """Further cells are timed while they cost a tenth of the budget."""
    cells: list[Key] = [(batch, n, 1, "") for n in (1, 2) for batch in (16, 32, 64, 128, 256)]
    assert len(timed_cells(cells, most=0.0)) == 4, "two of each worker count, whatever they cost"
    assert len(timed_cells(cells, most=60.0)) == 6
    timed = timed_cells(cells)
    assert timed[:4] == [(16, 1, 1, ""), (16, 2, 1, ""), (256, 1, 1, ""), (256, 2, 1, "")]
    assert timed[4:6] == [(64, 1, 1, ""), (64, 2, 1, "")]
    assert len(timed) == len(cells)
    passes: list[Key] = [(64, 1, 1, ""), (128, 1, 2, "")]
    assert len(timed_cells(passes)) == 1, "the same pass"
    swept: list[Key] = [(batch, 1, passes, "") for batch in (64, 128) for passes in (1, 8)]
    assert timed_cells(swept)[:2] == [(64, 1, 8, ""), (128, 1, 1, "")], "the largest pass"


TINY = (
    "local_batch=16,64", "model=tiny_cnn", "precision=fp32", "channels_last=false", "epochs=60",
    "optimizer.lr=0.05", "optimizer.lr_rule=linear", "optimizer.reference_batch=32",
    "evaluate_every_examples=700",
    "launch.threads_per_worker=1", "study=s",
)  # fmt: skip
REAL = (
    "recommend", *TINY, "num_workers=1,2", "strategy=ddp", "--target-accuracy", "0.45",
    "--budget", "20m", "--json",
)  # fmt: skip


def begun(cwd: Path) -> list[Path]:
    """Runs whose workers train."""
    found = (cwd / "results/s").glob("*/metrics.jsonl")
    return [path.parent for path in found if '"type": "evaluation"' in path.read_text()]


@pytest.mark.full
def test_an_interrupted_search_resumes_and_leaves_an_ordinary_study(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        process = Fork("bsweep", *REAL, cwd=tmp_path, stdout=said, stderr=said, has_forks=True)
        try:
            wait_for(lambda: begun(tmp_path), process)
            (interrupted,) = begun(tmp_path)
            time.sleep(0.2)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(60) == 130, (tmp_path / "said").read_text()
        finally:
            process.kill()
    first = (tmp_path / "said").read_text()
    assert first.count("timing a few steps of") == 4
    assert "next: global batch" in first
    second = ran_ok(*REAL, cwd=tmp_path)
    assert "timing" not in second.stderr, "that is on record"
    assert interrupted.name in second.stderr
    told = json.loads(second.stdout)
    assert told["runs"][0] == interrupted.name
    assert len(set(told["runs"])) == len(told["runs"])
    assert told["ended"] in ("sure", "gain", "runs")
    assert told["spent"]["seconds"] < 1200
    study = bsweep.load(tmp_path / "results/s")
    assert set(study.runs["run_id"]) == set(told["runs"])
    assert (study.runs["status"] == "completed").all()
    assert study.runs["reached"].any()
    status = command("status", "results/s", cwd=tmp_path)
    assert f"{len(told['runs'])} points: {len(told['runs'])} completed" in status.stdout
    assert "nothing is left to do" in command("resume", "results/s", cwd=tmp_path).stdout
    third = ran_ok(*REAL, "--network", "25gbit,10us", "--network", "1gbit,1ms", cwd=tmp_path)
    assert "next:" not in third.stderr, "there is nothing to go on with"
    simulated = json.loads(third.stdout)["simulated"]
    assert [one["network"] for one in simulated["networks"]] == ["25gbit,10us", "1gbit,1ms"]
    cells = simulated["networks"][0]["cells"]
    assert {cell["num_workers"] for cell in cells if cell["is_simulated"]} == {4, 8, 16, 32, 64}
    own = json.loads(third.stdout)["prediction"]
    assert not any(cell["is_simulated"] for cell in own["cells"]), "the answer is not mixed with it"
    assert any(line.startswith("Simulated with ") for line in json.loads(third.stdout)["said"])
    kept = [
        json.loads(line)["arguments"] for line in (tmp_path / "results/s/commands.jsonl").open()
    ]
    again = ran_ok("run", *kept[0], cwd=tmp_path)
    assert "completed already" in again.stderr, "a run that ended at its target is over"


@pytest.mark.full
def test_a_search_over_strategies_names_the_one_to_use(tmp_path: Path) -> None:
    words = [word for word in REAL if word not in ("num_workers=1,2", "strategy=ddp")]
    result = ran_ok(*words, "num_workers=2", "strategy=ddp,sharded", cwd=tmp_path)
    told = json.loads(result.stdout)
    assert told["prediction"]["recommendation"]["way"] in ("ddp", "sharded")
    ways = {(cell["global_batch"], cell["way"]) for cell in told["prediction"]["cells"]}
    assert ways == {(batch, way) for batch in (32, 128) for way in ("ddp", "sharded")}
    for batch, way in ways:
        said = f"timing a few steps of global batch {batch} on 2 workers with {way}"
        assert said in result.stderr
    study = bsweep.load(tmp_path / "results/s")
    assert set(study.runs["run_id"]) == set(told["runs"])
    lines = (tmp_path / "results/s/commands.jsonl").read_text().splitlines()
    typed = [json.loads(line)["arguments"] for line in lines]
    assert {f"strategy={name}" for name in study.runs["strategy"]} == {
        word for words in typed for word in words if word.startswith("strategy")
    }


def test_strategies_that_may_take_other_steps_are_searched_alone() -> None:
    strategies = (("strategy=horovod", "strategy.op=adasum"), ("strategy=ddp",))
    grid = itertools.product(("local_batch=8", "local_batch=16"), strategies)
    configs = [compose(size, *one, "num_workers=2", "model=tiny_cnn") for size, one in grid]
    with pytest.raises(ConfigError, match=r"strategy=horovod: .* Search it alone"):
        recommend._cells(configs, parse_objective("fastest"))


@pytest.mark.full
def test_cells_out_of_memory_or_of_more_workers_are_left_out(tmp_path: Path) -> None:
    """One is out of memory as its steps are timed, the others later: in a run, which is the first
    or the second.
    """
    code = (
        "import time, torch\n"
        "time.sleep(0.003)\n"  # so that few large steps take less than many
        "if first.config.local_batch >= (32 if first.config.epochs > 1 else 80):\n"
        "    raise torch.OutOfMemoryError('no room')\n"
    )
    env = before(tmp_path, "train.step", "train_step", code)
    grid = (*TINY[1:], "local_batch=8,16,32,64,80", "num_workers=1,2", "strategy=allreduce")
    wanted = ["--target-accuracy", "0.2", "--budget", "20m", "--json"]
    wanted += ["--objective", "deadline=1h,workers<=1"]
    result = ran_ok("recommend", *grid, *wanted, cwd=tmp_path, env=env)
    for batch in ("(32|64)", "80"):
        cell = rf"global batch {batch} on 1 worker"
        said = rf"{cell}: .*OutOfMemoryError: no room; this cell and .* larger passes are left out"
        assert re.search(said, result.stderr), result.stderr
    assert "2 workers" not in result.stderr
    assert "timing a few steps of global batch 16 on 1 worker" in result.stderr, "it costs little"
    told = json.loads(result.stdout)
    best = told["prediction"]["recommendation"]
    assert best["global_batch"] in (8, 16)
    assert best["num_workers"] == 1
    assert best["probability_in_time"] > 0.9
    statuses = bsweep.load(tmp_path / "results/s").runs.set_index("local_batch")["status"]
    assert "out_of_memory" in set(statuses.drop([8, 16]))
    assert statuses[8] == statuses[16] == "completed"
    large = ("local_batch=80,96", "num_workers=1", "strategy=allreduce", "study=large")
    result = exits(2, "recommend", *TINY[1:], *large, *wanted, cwd=tmp_path, env=env)
    assert re.search(r"add smaller batches.*OutOfMemoryError: no room", result.stderr)


@pytest.mark.full
def test_a_search_out_of_budget_names_the_best_accuracy_seen(tmp_path: Path) -> None:
    inline = ("launch=inline", "strategy=single", "num_workers=1")
    never = ("recommend", *TINY, *inline, "--target-accuracy", "0.999")
    result = exits(2, *never, "--budget", "0.001s", cwd=tmp_path)
    budget = re.search(r"too short to time the steps.* Give --budget (\d+s)", result.stderr)
    assert budget is not None, result.stderr
    result = exits(1, *never, "--budget", budget[1], "epochs=100000", cwd=tmp_path)
    assert "No recommendation: no run reached a test accuracy of 0.999." in result.stdout
    assert "can resume" in result.stderr
    assert "Ended: the rest of the budget" in result.stdout
    assert "the same command with --budget" in result.stdout
    result = exits(1, *never, "--budget", "20m", "epochs=2", "study=short", cwd=tmp_path)
    assert "No recommendation: no run reached" in result.stdout, result.stderr
    assert "no point of the grid is left to run" in result.stdout, "larger batches need more"


def test_joules_that_nobody_counts_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    configs = [compose(f"local_batch={batch}", "model=tiny_cnn", "device=cpu") for batch in (8, 16)]
    with pytest.raises(ConfigError, match=r"do not report their energy.* Use --objective cheapest"):
        recommend._cells(configs, parse_objective("joules"))
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    for name in ("energy_uj", "max_energy_range_uj"):
        (package / name).write_text("1000")
    assert len(recommend._cells(configs, parse_objective("joules"))) == 2


@pytest.mark.full
def test_a_batch_is_run_with_the_rates_beside_its_best_one(tmp_path: Path) -> None:
    rates, cells = [0.01, 0.02, 0.05, 0.1], [(batch, 1, 1, "") for batch in (16, 64, 256)]

    def offered(*, gone: tuple[tuple[int, float], ...] = ()) -> dict[int, set[float]]:
        offers = [
            Offer(cell, 9e4, rate=rate)
            for cell in cells
            for rate in rates
            if (cell[0], rate) not in gone
        ]
        study = tmp_path / "s"
        seen = observed(bsweep.load(study), target_of(accuracy=TARGET)) if study.exists() else None
        found: dict[int, set[float]] = {}
        for one in with_rates(offers, rates, seen):
            found.setdefault(one.cell[0], set()).add(one.rate)
        return found

    def run(batch: int, rate: float, needed: float, status: Status = "completed") -> None:
        settings = {"optimizer.lr": rate}
        write_target_run(
            tmp_path / "s", Truth(scatter=0.0), batch=batch, settings=settings, needed=needed,
            status=status, most_examples=9000 if status == "diverged" else math.inf,
        )  # fmt: skip

    assert offered() == {16: {0.05}, 64: {0.05}, 256: {0.05}}, "the middle one"
    run(64, 0.05, 1.5)
    assert offered() == {16: {0.05}, 64: {0.02, 0.1}, 256: {0.05}}
    run(64, 0.02, 1.0)
    assert offered() == {16: {0.02}, 64: {0.01}, 256: {0.02}}, "its other side is open"
    run(64, 0.01, 1.2)
    done = tuple((64, rate) for rate in (0.01, 0.05))
    assert offered(gone=done)[64] == {0.02}, "both sides were tried"
    run(16, 0.02, 1.0, "diverged")
    assert offered()[16] == {0.01}, "larger ones would diverge too"
    run(16, 0.01, 1.0)
    assert offered()[16] == {0.01}


@pytest.mark.full
def test_a_search_over_learning_rates_names_the_one_to_use(tmp_path: Path) -> None:
    rates = ("optimizer.lr=0.0005,0.05", "optimizer.lr_rule=sqrt", "epochs=20")
    others = [text for text in TINY if not text.startswith(("optimizer.lr", "epochs"))]
    grid = (*others, *rates, "launch=inline", "strategy=single")
    wanted = ("num_workers=1", "--target-accuracy", "0.3", "--budget", "20m")
    result = ran_ok("recommend", *grid, *wanted, cwd=tmp_path)
    assert "optimizer.lr=0.05, seed" in result.stderr
    assert "Use optimizer.lr=0.05, the best of the rates run with" in result.stdout
    runs = bsweep.load(tmp_path / "results/s").runs
    named = int(re.search(r"global batch (\d+)", result.stdout)[1])  # type: ignore[index]
    assert set(runs.loc[runs["global_batch"] == named, "lr"]) == {0.0005, 0.05}
    kept = [json.loads(line) for line in (tmp_path / "results/s/commands.jsonl").open()]
    again = command("run", *kept[0]["arguments"], cwd=tmp_path)
    assert "completed already" in again.stderr
