"""Tables of synthetic studies with known answers, and of the published numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from scipy import stats

import bsweep
from bsweep import analysis, report
from bsweep.analysis.cell_tables.statistics import CHANCE_ALPHA
from bsweep.analysis.study.columns import RUNS, TABLES, names
from bsweep.analysis.study.derived import placement
from bsweep.runlog.files import RunPaths
from tests.support.synthetic_study import (
    META,
    diloco,
    server,
    server_step_seconds,
    train_seconds,
    write_run,
    write_study,
)

MEASURED = Path(__file__).parents[2] / "results" / "measured"


RUN_COLUMNS, EPOCH_COLUMNS = names(RUNS, "promised"), names(TABLES["epochs"], "promised")


def one_series(table: pd.DataFrame) -> pd.DataFrame:
    """A table of a single series, indexed by the local batch alone."""
    return table.reset_index(analysis.levels(table)[:-1])


def test_runs_and_epochs_have_the_promised_columns_and_values(tmp_path: Path) -> None:
    study = bsweep.load(write_study(tmp_path / "paper", local_batches=(8, 64), num_workers=(2,)))
    assert study.name == "paper"
    assert study.warnings == ()
    assert list(study.runs.columns[: len(RUN_COLUMNS)]) == RUN_COLUMNS
    assert list(study.epochs.columns[: len(EPOCH_COLUMNS)]) == EPOCH_COLUMNS
    run = study.runs.iloc[1]
    sizes = run[["local_batch", "global_batch", "epochs", "status"]].tolist()
    assert sizes == [64, 128, 3, "completed"]
    assert (run["model"], run["stem"], run["data"]) == ("resnet18", "imagenet", "imagefolder")
    assert (run["lr"], run["lr_rule"], run["hardware"]) == (0.1, "per_worker", "Test CPU, 2 cores")
    assert run["train_seconds"] == pytest.approx(train_seconds(64, 2))
    assert len(study.epochs) == 6
    assert study.epochs["epoch"].tolist() == [1, 2, 3] * 2
    assert study.provenance["versions.torch"].unique().tolist() == ["2.13.0"]


def test_unfinished_runs_are_filled_from_start_record_or_config(tmp_path: Path) -> None:
    started = write_run(
        tmp_path / "s", local_batch=8, num_workers=2, status=None, num_epochs_done=1
    )
    waiting = write_run(tmp_path / "s", local_batch=16, num_workers=2, status=None)
    RunPaths(waiting).metrics.unlink()
    study = bsweep.load(tmp_path / "s")
    assert study.runs["status"].tolist() == ["unfinished"] * 2
    assert "unfinished" in study.warnings[0]
    runs = study.runs.set_index("run_id").T
    seen = runs[started.name]
    assert (seen["local_batch"], seen["global_batch"], seen["epochs"]) == (8, 16, 1)
    planned = runs[waiting.name]
    assert planned[["local_batch", "global_batch", "planned_epochs"]].tolist() == [16, 32, 3]
    assert np.isnan(planned["train_seconds"])
    assert planned["lr_rule"] == "per_worker"


def test_a_run_that_failed_before_its_start_joins_the_curve_of_the_others(tmp_path: Path) -> None:
    """It never chose a memory format, which does not tell it apart."""
    auto = {"channels_last": "auto"}
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,), settings=auto)
    failed = write_run(
        tmp_path / "s", local_batch=32, status="failed", num_epochs_done=0, message="no luck",
        settings=auto,
    )  # fmt: skip
    RunPaths(failed).metrics.unlink()
    runs = bsweep.load(tmp_path / "s").runs
    assert runs["channels_last"].isna().sum() == 1
    cells = analysis.cells(runs)
    assert analysis.levels(cells) == ["variant", "num_workers", "local_batch"]
    assert cells["n"].tolist() == [1, 1, 0]
    assert cells["other_statuses"].tolist() == ["", "", "failed"]
    assert analysis.failures(runs)[["status", "message"]].values.tolist() == [["failed", "no luck"]]


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    """That steps were shared out anew is on record, but is nothing to warn of."""
    folder = write_run(tmp_path / "s", local_batch=8, events=("cores are shared",))
    event = {"schema": 1, "time": 0.0, "type": "event", "event": "reallocated", "message": "more"}
    with RunPaths(folder).metrics.open("a") as file:
        file.write(json.dumps(event) + '\n{"schema": 1, "type": "ep')
    study = bsweep.load(tmp_path / "s")
    assert len(study.epochs) == 3
    torn, shared = study.warnings
    assert "incomplete last line of 25 bytes" in torn
    assert shared.endswith("cores are shared")


@pytest.mark.parametrize(
    ("odd", "said"), [("twice", "epoch 2 is on record twice"), ("gone", "epoch 1 is not on record")]
)
def test_a_run_with_an_epoch_twice_or_never_is_left_out(
    tmp_path: Path, odd: str, said: str
) -> None:
    """Two processes that train one run write each epoch twice."""
    write_run(tmp_path / "s", local_batch=16)
    folder = write_run(tmp_path / "s", local_batch=8, status=None)
    path = RunPaths(folder).metrics
    lines = path.read_text().splitlines()
    lines = [*lines, lines[2]] if odd == "twice" else [lines[0], *lines[2:]]
    path.write_text("\n".join(lines) + "\n")
    study = bsweep.load(tmp_path / "s")
    assert list(study.skipped) == [folder.name]
    assert said in study.skipped[folder.name]


def test_a_missing_or_wrong_folder_says_what_to_give(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "paper", local_batch=8)
    write_run(tmp_path / "paper" / ".previous", local_batch=8)
    (tmp_path / "paper" / "report").mkdir()
    assert len(bsweep.load(tmp_path / "paper").runs) == 1
    with pytest.raises(FileNotFoundError, match=r"no such study folder. Did you mean '.*/paper'\?"):
        bsweep.load(tmp_path / "papr")
    with pytest.raises(ValueError, match="holds no runs"):
        bsweep.load(tmp_path)
    with pytest.raises(ValueError, match="is one run of a study"):
        bsweep.load(folder)


def test_a_newer_schema_and_a_damaged_line_are_errors(tmp_path: Path) -> None:
    path = RunPaths(write_run(tmp_path / "s", local_batch=8)).metrics
    whole = path.read_text()
    path.write_text(whole.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ValueError, match="record schema 2, but this bsweep reads schemas up to 1"):
        bsweep.load(tmp_path / "s")
    path.write_text(whole.replace('{"schema": 1', "oops", 1))
    with pytest.raises(ValueError, match=r"none of its 1 runs .*metrics.jsonl:1: damaged record"):
        bsweep.load(tmp_path / "s")


@pytest.mark.full
def test_the_csv_of_a_report_load_as_the_same_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_write_figures", lambda *_: {})
    write_study(tmp_path / "s", local_batches=(8, 16, 32), num_workers=(1, 2), seeds=2)
    write_run(
        tmp_path / "s", local_batch=64, status="failed", message="two\nlines", num_epochs_done=0
    )
    raw, copy = bsweep.load(tmp_path / "s"), bsweep.load(report.write(tmp_path / "s").parent)
    assert_frame_equal(raw.runs[RUN_COLUMNS], copy.runs[RUN_COLUMNS], check_dtype=False)
    assert_frame_equal(raw.epochs, copy.epochs, check_dtype=False)
    assert_frame_equal(analysis.cells(raw.runs), analysis.cells(copy.runs), check_dtype=False)
    assert copy.warnings == raw.warnings
    assert analysis.comparable(copy)


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_three_seeds_or_more_have_students_interval(seeds: int, tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,), seeds=seeds)
    cell = one_series(analysis.cells(bsweep.load(tmp_path / "s").runs)).loc[16]
    seconds = [train_seconds(16, 1, seed=seed) for seed in range(seeds)]
    half = stats.t.ppf(0.975, seeds - 1) * stats.sem(seconds) if seeds >= 3 else math.nan
    assert cell["n"] == seeds
    assert cell["train_seconds"] == pytest.approx(np.mean(seconds))
    assert cell["train_seconds_points"] == pytest.approx(seconds)
    assert cell["train_seconds_ci95"] == pytest.approx(half, nan_ok=True)


def test_repetitions_of_a_seed_are_no_seeds(tmp_path: Path) -> None:
    for number, seed in enumerate((0, 1, 1)):
        write_run(tmp_path / "s", local_batch=8, seed=seed, settings={"log_every_steps": number})
    study = bsweep.load(tmp_path / "s")
    cell = analysis.cells(study.runs).iloc[0]
    assert (cell["n"], cell["num_runs"]) == (2, 3)
    seconds = [train_seconds(8, 1, seed=seed) for seed in (0, 1)]
    assert cell["train_seconds"] == pytest.approx(np.mean(seconds))
    assert np.isnan(cell["train_seconds_ci95"])
    assert any(
        "repeat a seed of the same cell: 1" in line for line in analysis.cell_warnings(study)
    )
    assert analysis.epoch_curves(study)["n"].tolist() == [2] * 3


def test_what_is_at_chance_has_not_learned(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,))
    runs = bsweep.load(tmp_path / "s").runs
    assert set(zip(runs["num_classes"], runs["num_test"], strict=True)) == {(10, 10_000)}
    threshold = stats.binom.isf(CHANCE_ALPHA, 10_000, 0.1) / 10_000
    runs["test_accuracy"] = [threshold, threshold + 1e-4]
    assert analysis.cells(runs)["has_learned"].tolist() == [False, True]
    cells = analysis.cells(runs.assign(num_test=np.nan))
    assert cells["has_learned"].isna().all()
    assert len(analysis.fastest_accurate(cells)) == 2, "what cannot be tested has not failed"


@pytest.mark.parametrize(
    ("study", "num_classes", "num_test"),
    [
        ("cifar10", 10, 10_000),
        ("parameter_sharding_1gbit", 1000, 8),
        ("geo_distributed", 256, np.nan),
    ],
)
def test_older_tables_tell_what_chance_is(study: str, num_classes: int, num_test: float) -> None:
    runs = bsweep.load(MEASURED / study).runs
    assert runs["num_classes"].unique().tolist() == [num_classes]
    np.testing.assert_array_equal(runs["num_test"].unique(), [num_test])
    learned = analysis.cells(runs)["has_learned"]
    assert learned.isna().all() if np.isnan(num_test) else learned.eq(num_classes == 10).all()


def test_the_fastest_is_among_the_accurate_that_have_learned(tmp_path: Path) -> None:
    for batch in (8, 16, 32, 64):
        write_run(tmp_path / "s", local_batch=batch)
    runs = bsweep.load(tmp_path / "s").runs  # 64 is the fastest, 8 the slowest
    runs["test_accuracy"] = [0.800, 0.795, 0.78, 0.1]
    cells = analysis.cells(runs)
    assert one_series(analysis.fastest_accurate(cells)).index.tolist() == [16, 8]
    assert one_series(analysis.fastest_accurate(cells, margin=0.02)).index.tolist() == [32, 16, 8]
    assert one_series(analysis.fastest_accurate(cells, margin=1)).index.tolist() == [32, 16, 8]


TWO_HOSTS = {"launch.hosts": "h1:1,h2:1", "launch.network_interface": "eth0"}
OTHER_NAMES, IB = {"launch.hosts": "a:1,b:1"}, {"launch.network_interface": "ib0"}
ADAMW = {"optimizer.name": "adamw", "optimizer.weight_decay": 0.01}
AUTO = {"settings": {"precision": "auto"}}
FOUR_T4 = {"meta": META | {"gpus": ["Tesla T4, 550.1, 15 GiB"] * 4}}


def with_threads(number: int) -> dict[str, Any]:
    return {"threads": number, "settings": {"launch.threads_per_worker": number}}


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("first", "second", "key", "warning"),
    [
        ({}, {"settings": TWO_HOSTS}, "placement", ""),
        ({"settings": TWO_HOSTS}, {"settings": TWO_HOSTS | IB}, "network_interface", ""),
        ({"settings": TWO_HOSTS}, {"settings": TWO_HOSTS | OTHER_NAMES}, None, ""),
        ({}, {"settings": ADAMW}, "optimizer", ""),
        ({}, {"settings": {"batching.name": "fixed"}}, None, ""),  # the first is older than the key
        (with_threads(1), with_threads(2), "threads", ""),
        (AUTO, AUTO | {"precision": "bf16"}, "precision", "precision on cpu"),
        ({}, FOUR_T4, "hardware", "4 x Tesla T4"),
    ],
)
def test_cells_are_told_apart_by_settings_but_not_by_their_labels(
    first: dict[str, Any], second: dict[str, Any], key: str | None, warning: str, tmp_path: Path
) -> None:
    for seed, told in enumerate((first, second)):
        write_run(tmp_path / "s", local_batch=8, num_workers=2, seed=seed, **told)
    study = bsweep.load(tmp_path / "s", mix=True)
    cells = analysis.cells(study.runs)
    assert cells["n"].tolist() == ([1, 1] if key else [2])
    assert analysis.levels(cells)[:-3] == ([key] if key else [])
    assert warning in "".join(study.warnings)


@pytest.mark.parametrize(
    ("hosts", "num_workers", "num_servers", "words"),
    [
        (None, 4, 2, "1 node"),
        ("h1:8,h2:8", 4, 2, "1 node"),
        ("h1:2,h2:2", 4, 0, "2 nodes"),
        ("h1:3,h2:1", 4, 0, "nodes of 3, 1"),
        ("h1:1,h2:1,h3:1", 2, 1, "2 nodes and 1 of servers"),
        ("h1:2,h2:2", 4, 1, "nodes of 2 + 1 servers, 2"),
    ],
)
def test_a_placement_is_said_without_names(
    hosts: str | None, num_workers: int, num_servers: int, words: str
) -> None:
    assert placement(hosts, num_workers, num_servers) == words


def test_derived_thread_counts_keep_one_curve_and_a_speedup_is_over_equal_ones(
    tmp_path: Path,
) -> None:
    for workers, threads in ((1, 4), (2, 2), (4, 2)):
        write_run(tmp_path / "s", local_batch=8, num_workers=workers, threads=threads)
    failed = write_run(
        tmp_path / "s", local_batch=32, num_workers=2, status="failed", num_epochs_done=0
    )
    RunPaths(failed).metrics.unlink()
    runs = bsweep.load(tmp_path / "s").runs
    cells = analysis.cells(runs)
    assert analysis.levels(cells) == ["variant", "num_workers", "local_batch"]
    assert analysis.entangled(runs) == ["threads"]
    scaling = analysis.scaling(cells).xs(8, level="local_batch").droplevel("variant")
    assert scaling["base_workers"].to_dict() == {2: 2, 4: 2}
    assert scaling.loc[4, "speedup"] == pytest.approx(2 / 2**0.1)
    assert scaling.loc[4, "efficiency"] == pytest.approx(1 / 2**0.1)
    assert "1 worker had 4 threads, 2 workers had 2 each" in analysis.unequal_threads(cells)
    assert analysis.scaling(analysis.cells(runs[runs["num_workers"] < 4])).empty
    assert analysis.unequal_threads(analysis.cells(runs.assign(threads=1))) == ""
    on_gpus = analysis.cells(runs.assign(device="NVIDIA H200"))
    assert len(analysis.scaling(on_gpus)) == 3, "threads of the host do not compute there"


LOCAL_SGD = {"strategy": {"name": "local_sgd", "sync_every": 8}}


@pytest.mark.parametrize(
    ("rule", "strategy", "rate"),
    [
        ("fixed", {}, 0.1),
        ("per_worker", {}, 0.4),
        ("linear", {}, 0.1 * 128 / 256),
        ("sqrt", {}, 0.1 * (128 / 256) ** 0.5),
        ("linear", LOCAL_SGD, 0.1 * 128 / 256),  # as in the versions that did not record it
        ("linear", diloco("uniform"), 0.1 * 32 / 256),
        ("linear", diloco("uniform", ((8, 8, 32, 16), None)), 0.1 * 8 / 256),
    ],
)
def test_the_rate_in_effect_stands_beside_the_base_rate(
    rule: str, strategy: dict[str, Any], rate: float, tmp_path: Path
) -> None:
    settings = {"optimizer.lr_rule": rule, **strategy}
    write_run(tmp_path / "s", local_batch=32, num_workers=4, settings=settings)
    run = bsweep.load(tmp_path / "s").runs.iloc[0]
    assert (run["lr"], run["learning_rate"]) == (0.1, pytest.approx(rate))


def test_a_rate_on_record_is_the_rate(tmp_path: Path) -> None:
    metrics = RunPaths(write_run(tmp_path / "s", local_batch=32, num_workers=4)).metrics
    start, *others = metrics.read_text().splitlines()
    start = json.dumps(json.loads(start) | {"learning_rate": 0.025})
    metrics.write_text("\n".join([start, *others]) + "\n")
    assert bsweep.load(tmp_path / "s").runs["learning_rate"].tolist() == [0.025]


def test_the_ratios_and_the_fit_of_the_published_times_are_the_papers() -> None:
    cells = analysis.cells(analysis.published().runs)
    ratios = one_series(analysis.batch_ratios(cells))
    assert ratios["smaller_batch"].tolist() == [8, 16, 32, 64, 128]
    assert ratios.loc[16, "train_seconds_ratio"] == pytest.approx(0.556, abs=5e-4)
    first, *others = ratios["train_accuracy_ratio"]
    assert first == pytest.approx(2.8, abs=0.03)
    assert others == pytest.approx([1.03, 1.01, 1.0001, 0.94], abs=2e-3)
    relative = analysis.relative_seconds(cells, 256)
    assert relative.iloc[0] == pytest.approx(14892 / 2069)
    assert relative.iloc[-1] == 1
    fit = analysis.seconds_fits(analysis.published().runs).iloc[0]
    assert fit["r_squared"] > 0.99
    assert fit["num_batches"] == 6
    residuals = fit[["lowest_residual", "highest_residual"]].tolist()
    assert residuals == pytest.approx([-0.098, 0.082], abs=1e-3)
    batches = np.array([8, 16, 32, 64, 128, 256])
    fitted = fit["fixed_seconds"] + fit["batch_seconds"] / batches
    np.testing.assert_allclose(fitted, 1672 + 105760 / batches, rtol=0.04)


def test_the_fit_recovers_known_constants_from_three_batch_sizes_or_more(tmp_path: Path) -> None:
    runs = bsweep.load(write_study(tmp_path / "s", num_workers=(1, 2))).runs
    one, two = (analysis.seconds_fits(runs).iloc[row] for row in range(2))
    constants = one[["fixed_seconds", "batch_seconds", "step_seconds", "image_seconds"]]
    assert constants.tolist() == pytest.approx([600, 30_000, 0.2, 0.004])
    assert two["batch_seconds"] == pytest.approx(15_000 * 2**0.1)
    assert two["r_squared"] == pytest.approx(1)
    assert analysis.seconds_fits(runs[runs["local_batch"] < 32]).empty
    assert analysis.seconds_fits(runs.assign(train_seconds=0.0)).empty


def test_a_cell_without_an_accuracy_is_not_called_less_accurate(tmp_path: Path) -> None:
    study = bsweep.load(write_study(tmp_path / "s", local_batches=(8, 16), num_workers=(1,)))
    scores = study.runs["test_accuracy"].where(study.runs["local_batch"] == 8)
    assert study.runs["train_seconds"].idxmin() == 1
    lines = analysis.headlines(replace(study, runs=study.runs.assign(test_accuracy=scores)))
    assert lines[0].startswith("Fastest within 0.01 of the best test accuracy: local batch 8 on")
    assert not any("less accurate" in line for line in lines)


def test_ratios_skip_a_batch_that_did_not_complete(tmp_path: Path) -> None:
    for batch, status in ((8, "completed"), (16, "out_of_memory"), (32, "completed")):
        write_run(tmp_path / "s", local_batch=batch, status=status)
    ratios = one_series(analysis.batch_ratios(analysis.cells(bsweep.load(tmp_path / "s").runs)))
    assert ratios.index.tolist() == [32]
    assert ratios["smaller_batch"].tolist() == [8]


def test_a_rate_of_each_batch_and_servers_of_each_worker_count_keep_one_curve(
    tmp_path: Path,
) -> None:
    for batch, lr in ((8, 0.1), (16, 0.2), (32, 0.4)):
        write_run(tmp_path / "s", local_batch=batch, settings={"optimizer.lr": lr})
    study = bsweep.load(tmp_path / "s")
    runs = study.runs
    assert analysis.entangled(runs) == ["lr"]
    (line,) = analysis.cell_warnings(study)
    assert line.startswith("The base learning rate changes together with the batch size")
    assert len(analysis.batch_ratios(analysis.cells(runs))) == 2
    for workers in (2, 4, 8):
        settings = server("memory", num_servers=workers // 2)
        write_run(tmp_path / "t", local_batch=8, num_workers=workers, settings=settings)
    runs = bsweep.load(tmp_path / "t").runs
    assert len(analysis.scaling(analysis.cells(runs))) == 3
    assert analysis.entangled(runs) == ["strategy.num_servers"]


def test_epoch_curves_show_incomplete_runs_only_where_none_completed(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=8, seed=0)
    write_run(tmp_path / "s", local_batch=8, seed=1, status="diverged", num_epochs_done=2)
    write_run(tmp_path / "s", local_batch=16, status="diverged", num_epochs_done=2)
    study = bsweep.load(tmp_path / "s")
    curves = analysis.epoch_curves(study)[["completed", "n"]]
    assert curves.to_numpy().tolist() == [[True, 1]] * 3 + [[False, 1]] * 2
    assert study.runs["train_loss"].isna().tolist() == [False, True, True]
    is_null = study.epochs["test_loss"].isna().groupby(study.epochs["run_id"]).sum()
    assert is_null.tolist() == [1, 0, 1]
    assert study.epochs["wait_seconds"].isna().all(), "null is missing, and not zero"


def test_only_runs_on_all_of_cifar10_are_compared_with_the_paper(tmp_path: Path) -> None:
    full = bsweep.load(write_study(tmp_path / "full", local_batches=(8, 16, 32), num_workers=(2,)))
    assert analysis.comparable(full)
    full.runs["optimizer.warmup_epochs"] = pd.Series([10, 5, "2"], dtype=object)
    told = analysis.differences(full)
    assert "epochs: 3 (published: 50)" in told
    assert "warmup epochs: 5, 10, 2 (published: not given)" in told
    assert not any("learning-rate rule" in line for line in told)
    write_run(tmp_path / "subset", local_batch=8, num_train=5_000)
    write_run(tmp_path / "tiny", local_batch=8, settings={"model.name": "tiny_cnn"})
    assert not analysis.comparable(bsweep.load(tmp_path / "subset"))
    assert not analysis.comparable(bsweep.load(tmp_path / "tiny"))
    assert not analysis.comparable(analysis.published())


TOPK = {"name": "topk", "density": 0.01, "warmup_densities": [0.25, 0.1]}
RING, NATIVE = (
    {"strategy": {"name": "allreduce", "algorithm": name}} for name in ("ring", "native")
)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("variants", "names"),
    [
        ([{}], ["horovod"]),
        ([RING, NATIVE], ["ring", "native"]),
        (
            [server("layer"), server("layer", consistency="stale_synchronous", staleness=3)],
            ["synchronous", "stale_synchronous"],  # the staleness follows
        ),
        (
            [{}, {"compression": TOPK}, {"compression": {**TOPK, "density": 0.1}}],
            ["horovod", "horovod topk 0.01", "horovod topk 0.1"],
        ),
        ([{}, diloco("uniform"), diloco("hybrid")], ["horovod", "diloco uniform", "diloco hybrid"]),
        (
            [diloco("uniform"), diloco("uniform", (None, (100, 90)))],
            ["diloco", "diloco local_steps 100,90"],
        ),
        ([{}, {"launch.slowdown": [1.0, 1.5]}], ["horovod", "horovod slowdown 1,1.5"]),
    ],
)
def test_variants_are_named_by_what_differs(
    variants: list[dict[str, Any]], names: list[str], tmp_path: Path
) -> None:
    for settings in variants:
        write_study(
            tmp_path / "s", local_batches=(8,), num_workers=(2, 4), epochs=1, settings=settings
        )
    raw = bsweep.load(tmp_path / "s")
    cells = analysis.cells(raw.runs)
    assert analysis.levels(cells)[-3:] == ["variant", "num_workers", "local_batch"]
    assert set(cells.index.get_level_values("variant")) == set(names)
    assert len(cells) == 2 * len(variants)
    raw.runs.to_csv(tmp_path / "runs.csv", index=False)
    raw.epochs.to_csv(tmp_path / "epochs.csv", index=False)
    copy = analysis.cells(bsweep.load(tmp_path).runs)
    assert_frame_equal(cells, copy, check_dtype=False)


def test_servers_and_waits_are_summed_over_epochs(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=50, num_workers=4, epochs=2, settings=server("layer"))
    write_run(tmp_path / "s", local_batch=50, num_workers=4)
    study = bsweep.load(tmp_path / "s")
    steps = 2 * 250
    assert len(study.servers) == 2
    fullest = study.servers.iloc[0]
    assert fullest[["server", "share", "pushes", "max_lead"]].tolist() == [0, 0.743, 4 * steps, 0]
    assert fullest["busy_seconds"] == pytest.approx(0.5 * 4 * 0.743 * steps)
    assert fullest["load"] == pytest.approx(0.5 * 4 * 0.743 / server_step_seconds(4, "layer"))
    assert study.waits["worker"].tolist() == [0, 1, 2, 3]
    assert study.waits["wait_seconds"].tolist() == pytest.approx([0.1 * steps, 0, 0, 0])
    loads = analysis.server_loads(study).iloc[0]
    assert loads["queue_seconds"] == pytest.approx(0.25 / 2)  # a worker pushes to both
    assert analysis.server_shares(study).to_numpy().tolist() == [[0.743, pytest.approx(0.257)]]


def test_a_steps_time_is_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "s", local_batch=50, num_workers=4, settings=server("layer"))
    write_run(tmp_path / "s", local_batch=50, num_workers=1)
    study = bsweep.load(tmp_path / "s")
    times = analysis.step_times(study)
    step = times.xs(4, level="num_workers").iloc[0]
    names = ["total_seconds", "exposed_exchange_seconds", "wait_seconds", "compute_seconds"]
    assert step[names].tolist() == pytest.approx([4 + 4 * 0.743, 4 * 0.743, 0.025, 4 - 0.025])
    assert step["sent_bytes"] == 4 * 138_357_544
    assert step["sent_of_ring"] == pytest.approx(138_357_544 / (2 * 3 / 4 * 11_181_642))
    assert np.isnan(times.xs(1, level="num_workers").iloc[0]["compute_seconds"])
    steps = study.epochs["num_steps"].astype(float)
    codec = study.epochs.assign(exposed_exchange_seconds=0.5 * steps, codec_seconds=0.25 * steps)
    times = analysis.step_times(replace(study, epochs=codec))
    parts = ["exposed_exchange_seconds", "codec_seconds", "compute_seconds"]
    told = times.xs(4, level="num_workers").iloc[0][parts].tolist()
    assert told == pytest.approx([0.5, 0.25, 4 + 4 * 0.743 - 0.5 - 0.25 - 0.025])
    older = study.epochs.assign(exposed_exchange_seconds=np.nan, codec_seconds=np.nan)
    step = analysis.step_times(replace(study, epochs=older)).xs(4, level="num_workers").iloc[0]
    assert step["exposed_exchange_seconds"] == pytest.approx(4 * 0.743)
    assert np.isnan(step["codec_seconds"])


def test_control_characters_of_messages_are_escaped(tmp_path: Path) -> None:
    """A command is on record as it can be typed."""
    message = "lost\x1b[31m\x07"
    meta = {**META, "command": "bsweep run data.root=. 'model.weights=/my own/a.pth'"}
    write_run(
        tmp_path, local_batch=8, status="failed", message=message, events=(message,), meta=meta
    )
    study = bsweep.load(tmp_path)
    assert study.provenance["command"].tolist() == [meta["command"]]
    assert list(study.runs["message"]) == list(study.events["message"]) == [r"lost\u001b[31m\u0007"]
