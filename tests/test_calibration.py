"""What `auto` stands for in a study: asked for once, measured by the first point's workers, the same for all points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bsweep import calibrate, calibration, precision
from bsweep.calibration import Calibration, Numerics, Timed
from bsweep.runlog import read_json, read_records
from tests.running import TINY, bsweep, compose

FP32, FP32_LAST, BF16_LAST = Numerics("fp32", False), Numerics("fp32", True), Numerics("bf16", True)
AUTO = compose("local_batch=8")


def measured(**seconds: tuple[float, ...]) -> Calibration:
    """Of local batches 8 and 64, which are those that were asked for."""
    names = {"fp32": FP32, "fp32_last": FP32_LAST, "bf16_last": BF16_LAST}
    timed = tuple(Timed(names[name], each) for name, each in seconds.items())
    return Calibration(1, wanted_batches=(8, 64), measured_batches=(8, 64), timed=timed)


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        (((0.1, 0.2), (0.1, 0.2), (0.2, 0.1)), FP32),  # per example a small batch costs more
        (((0.1, 0.8), (0.1, 0.8), (0.11, 0.3)), BF16_LAST),
        (((0.1, 0.2), (0.1, 0.2), (0.098, 0.196)), FP32),  # 2 % are no difference
    ],
)
def test_the_fastest_per_example_is_chosen(times: tuple[tuple[float, float], ...], chosen: Numerics) -> None:
    found = measured(**dict(zip(("fp32", "fp32_last", "bf16_last"), times, strict=True)))
    assert calibration.choose(AUTO, found, default=FP32_LAST) == chosen
    assert str(chosen) in found.says(AUTO)


def test_what_a_run_says_itself_is_not_chosen() -> None:
    found = measured(fp32=(0.3, 0.3), fp32_last=(0.2, 0.2), bf16_last=(0.1, 0.1))
    assert calibration.choose(compose("local_batch=8", "precision=fp32"), found, BF16_LAST) == FP32_LAST
    exact = compose("local_batch=8", "precision=fp64", "channels_last=false")
    assert calibration.choose(exact, found, BF16_LAST) == Numerics("fp64", False)
    assert calibration.choose(compose("local_batch=8", "precision=bf16"), found, FP32) == BF16_LAST
    assert calibration.choose(AUTO, None, BF16_LAST) == BF16_LAST


def test_a_strategy_that_refuses_fp16_is_not_given_it() -> None:
    servers = compose("local_batch=8", "strategy=parameter_server", "num_workers=2")
    found = Calibration(
        1, (8,), measured_batches=(8,), timed=(Timed(FP32, (0.2,)), Timed(Numerics("fp16", True), (0.1,)))
    )
    assert calibration.choose(AUTO, found, FP32).precision == "fp16"
    assert calibration.choose(servers, found, FP32).precision == "fp32"


def test_batches_that_were_not_measured_go_by_the_nearest() -> None:
    found = replace(measured(fp32=(0.1, 0.8)), wanted_batches=(8, 64, 1024))
    assert found.seconds_per_example(found.timed[0]) == pytest.approx((0.1 / 8 + 2 * 0.8 / 64) / 3)


def test_a_short_sweep_is_not_worth_a_calibration_and_a_study_is_asked_once(tmp_path: Path) -> None:
    points = [replace(AUTO, results_dir=str(tmp_path), local_batch=batch) for batch in (64, 8)]
    path = calibration.path_of(points[0])
    path.parent.mkdir()
    calibration.request(points, calibration.LEAST_STEPS - 1)
    calibration.request([compose("local_batch=8", "precision=fp32", "channels_last=true")], 10_000)
    assert not path.exists()
    calibration.request(points, calibration.LEAST_STEPS)
    asked = calibration.read(path)
    assert asked and asked.is_open and asked.wanted_batches == (8, 64)
    assert calibration.is_open_to(asked, FP32) and calibration.is_open_to(asked, BF16_LAST)
    calibration.request([replace(points[0], local_batch=256)], 10_000)
    assert calibration.read(path) == asked


def test_only_what_all_points_leave_open_is_measured(tmp_path: Path) -> None:
    points = [compose("local_batch=8", "channels_last=false", "precision=fp32"), compose("local_batch=8")]
    for given, is_open in ((points[:1], False), (points, True)):
        asking = [replace(point, results_dir=str(tmp_path), study=f"s{len(given)}") for point in given]
        asking = [replace(point, precision="auto") for point in asking]
        asking[0].study_dir.mkdir()
        calibration.request(asking, 10_000)
        found = calibration.read(calibration.path_of(asking[0]))
        assert found and calibration.is_open_to(found, FP32) and calibration.is_open_to(found, FP32_LAST) == is_open


def test_gpus_take_their_half_precision_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the study has an answer."""
    point = replace(AUTO, results_dir=str(tmp_path))
    point.study_dir.mkdir()
    monkeypatch.setattr(precision, "choose", lambda *_: "bf16")
    monkeypatch.setattr(calibrate, "_measure", lambda *_: pytest.fail("measured"))
    strategy: Any = SimpleNamespace(gather_json=lambda own: [own], rank=0, members=(0,))
    asked, answered = Calibration(1, (8, 64)), measured(fp32=(0.1, 0.2))
    for found, chosen, kept in (
        (asked, BF16_LAST, replace(asked, settled=BF16_LAST)),
        (answered, FP32, answered),
    ):
        calibration.write(calibration.path_of(point), found)
        none: Any = None
        assert calibrate.agree(point, none, strategy, torch.device("cuda")) == chosen
        assert calibration.read(calibration.path_of(point)) == kept


SWEEP = ("run", "-m", "study=s", "model=tiny_cnn", *TINY, "epochs=1", "local_batch=8,16")
INLINE = ("launch=inline", "strategy=single")


def ask(cwd: Path) -> Path:
    """What a sweep of many steps leaves for its first point."""
    path = cwd / "results/s/calibration.json"
    path.parent.mkdir(parents=True)
    calibration.write(path, Calibration(1, wanted_batches=(8, 16)))
    return path


def starts(cwd: Path) -> list[dict[str, Any]]:
    records = (read_records(path)[0] for path in sorted(cwd.glob("results/s/*/metrics.jsonl")))
    return [record for each in records for record in each if record["type"] == "start"]


def test_the_first_point_measures_for_all_of_a_study(tmp_path: Path) -> None:
    """Two workers, which go by the slower one; then one in the sweep's process, which finds the answer there."""
    path = ask(tmp_path)
    said = bsweep(*SWEEP, "strategy=allreduce", "num_workers=2", cwd=tmp_path).stderr
    found = calibration.read(path)
    assert found and found.measured_batches[0] == 8 and len(found.timed) in (2, 4)
    chosen = found.ranked(AUTO)[0][0]
    assert said.count(f"  {chosen}: the fastest at local batch 8") == said.count("fastest") == 1
    bsweep(*SWEEP, *INLINE, cwd=tmp_path)
    kept = [Numerics(start["precision"], start["channels_last"]) for start in starts(tmp_path)]
    assert kept == [chosen] * 4 and calibration.read(path) == found


def test_a_calibration_leaves_no_trace_in_the_numbers_of_the_point_that_measures(tmp_path: Path) -> None:
    losses = []
    for name in ("measured", "given"):
        cwd = tmp_path / name
        given: tuple[str, ...] = ()
        if name == "measured":
            ask(cwd)
        else:
            cwd.mkdir()
            (start,) = starts(tmp_path / "measured")
            given = (f"precision={start['precision']}", f"channels_last={str(start['channels_last']).lower()}")
        bsweep(*SWEEP, *INLINE, "local_batch=8", *given, cwd=cwd)
        (summary,) = cwd.glob("results/s/*/summary.json")
        losses.append((read_json(summary) or {})["train_loss"])
    assert losses[0] == losses[1]


def test_a_study_goes_on_as_its_runs_began(tmp_path: Path) -> None:
    """Its first sweep took too few steps to measure anything; a later one does not begin to."""
    bsweep(*SWEEP, *INLINE, "local_batch=8", cwd=tmp_path)
    (before,) = starts(tmp_path)
    assert not (tmp_path / "results/s/calibration.json").exists()
    said = bsweep(*SWEEP, *INLINE, cwd=tmp_path).stderr
    assert said.count("as all runs of this study") == 1
    kept = [(start["precision"], start["channels_last"]) for start in starts(tmp_path)]
    assert kept == [(before["precision"], before["channels_last"])] * 2
