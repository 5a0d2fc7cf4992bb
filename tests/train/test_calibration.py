"""What `auto` stands for in a study: asked for once, measured by the first point's workers, the
same for all points.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.ranks import Place
from bsweep.numerics import precision
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Calibration, Numerics, Timed
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.hardware import hardware_words
from bsweep.runlog.reading import read_json, read_records
from bsweep.runlog.records import Continued
from bsweep.study import provenance, sweep
from bsweep.train import choose_numerics, step, worker
from tests.support.running import TINY, bsweep, compose
from tests.support.synthetic_study import META, write_run

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
        (((0.1, 0.2), (0.1, 0.2), (0.09, 0.18)), BF16_LAST),
    ],
)
def test_the_fastest_per_example_is_chosen(
    times: tuple[tuple[float, float], ...], chosen: Numerics
) -> None:
    found = measured(**dict(zip(("fp32", "fp32_last", "bf16_last"), times, strict=True)))
    assert calibration_file.numerics_for(AUTO, found, default=FP32_LAST) == chosen
    assert str(chosen) in found.says(AUTO)


def test_what_is_within_the_noise_is_no_difference() -> None:
    found = replace(measured(fp32=(0.1, 0.2), bf16_last=(0.09, 0.18)), noise=0.1)
    assert calibration_file.numerics_for(AUTO, found, default=BF16_LAST) == FP32
    assert (
        "faster by more than 13% at local batch 8, 64 (time of bf16, channels_last 0.90x)"
        in found.says(AUTO)
    )


def test_a_single_point_calibrates_alone_unless_its_study_has_done_so(
    tmp_path: Path,
) -> None:
    """So `bsweep profile` of one batch does not settle what a sweep over others trains in."""
    point = replace(AUTO, results_dir=str(tmp_path))
    folder, path = point.study_dir / ".profile", calibration_file.path_of(point)
    folder.mkdir(parents=True)
    for asked, own in (
        (None, True),
        (Calibration(1, (8, 64)), True),
        (measured(fp32=(0.1, 0.2)), False),
    ):
        if asked:
            calibration_file.write_calibration(path, asked)
        calibration_file.request([point], calibration_file.LEAST_STEPS, folder)
        assert (calibration_file.read_calibration(path) if asked else path.exists()) == (
            asked or False
        )
        assert calibration_file.path_in(folder, point) == (folder / path.name if own else path)
        (folder / path.name).unlink(missing_ok=True)


def test_what_a_run_says_itself_is_not_chosen() -> None:
    found = measured(fp32=(0.3, 0.3), fp32_last=(0.2, 0.2), bf16_last=(0.1, 0.1))
    assert (
        calibration_file.numerics_for(compose("local_batch=8", "precision=fp32"), found, BF16_LAST)
        == FP32_LAST
    )
    exact = compose("local_batch=8", "precision=fp64", "channels_last=false")
    assert calibration_file.numerics_for(exact, found, BF16_LAST) == Numerics("fp64", False)
    assert (
        calibration_file.numerics_for(compose("local_batch=8", "precision=bf16"), found, FP32)
        == BF16_LAST
    )
    assert calibration_file.numerics_for(AUTO, None, BF16_LAST) == BF16_LAST


def test_a_strategy_that_refuses_fp16_is_not_given_it() -> None:
    servers = compose("local_batch=8", "strategy=parameter_server", "num_workers=2")
    found = Calibration(
        1,
        (8,),
        measured_batches=(8,),
        timed=(Timed(FP32, (0.2,)), Timed(Numerics("fp16", True), (0.1,))),
    )
    assert calibration_file.numerics_for(AUTO, found, FP32).precision == "fp16"
    assert calibration_file.numerics_for(servers, found, FP32).precision == "fp32"


def test_batches_that_were_not_measured_go_by_the_nearest() -> None:
    found = replace(measured(fp32=(0.1, 0.8)), wanted_batches=(8, 64, 1024))
    assert found.seconds_per_example(found.timed[0]) == pytest.approx((0.1 / 8 + 2 * 0.8 / 64) / 3)


def test_a_short_sweep_is_not_calibrated_and_a_study_only_once(tmp_path: Path) -> None:
    points = [replace(AUTO, results_dir=str(tmp_path), local_batch=batch) for batch in (64, 8)]
    path = calibration_file.path_of(points[0])
    path.parent.mkdir()
    calibration_file.request(points, calibration_file.LEAST_STEPS - 1)
    calibration_file.request(
        [compose("local_batch=8", "precision=fp32", "channels_last=true")], 10_000
    )
    assert not path.exists()
    calibration_file.request(points, calibration_file.LEAST_STEPS)
    asked = calibration_file.read_calibration(path)
    assert asked
    assert asked.is_open
    assert asked.wanted_batches == (8, 64)
    assert calibration_file.is_open_to(asked, FP32)
    assert calibration_file.is_open_to(asked, BF16_LAST)
    calibration_file.request([replace(points[0], local_batch=256)], 10_000)
    assert calibration_file.read_calibration(path) == asked


def test_only_what_all_points_leave_open_is_measured(tmp_path: Path) -> None:
    points = [
        compose("local_batch=8", "channels_last=false", "precision=fp32"),
        compose("local_batch=8"),
    ]
    for given, is_open in ((points[:1], False), (points, True)):
        asking = [
            replace(point, results_dir=str(tmp_path), study=f"s{len(given)}") for point in given
        ]
        asking = [replace(point, precision="auto") for point in asking]
        asking[0].study_dir.mkdir()
        calibration_file.request(asking, 10_000)
        found = calibration_file.read_calibration(calibration_file.path_of(asking[0]))
        assert found
        assert calibration_file.is_open_to(found, FP32)
        assert calibration_file.is_open_to(found, FP32_LAST) == is_open


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (("false", "true"), False),
        (("true", "true"), True),
        (("auto", "true"), "auto"),
        (("auto", "false"), "auto"),
    ],
)
def test_a_compiled_model_is_timed_only_if_a_point_leaves_it_open(
    tmp_path: Path, given: tuple[str, ...], asked: object
) -> None:
    points = [
        replace(compose("local_batch=8", f"compile={one}"), results_dir=str(tmp_path))
        for one in given
    ]
    points[0].study_dir.mkdir()
    calibration_file.request(points, 10_000)
    found = calibration_file.read_calibration(calibration_file.path_of(points[0]))
    assert found
    assert found.compile == asked


GPUS_OWN = Numerics("bf16", True)
FP16, CONTIGUOUS = Numerics("fp16", True), Numerics("bf16", False)


@pytest.mark.parametrize(
    ("words", "wanted", "compared"),
    [
        ((), {}, [GPUS_OWN, CONTIGUOUS, FP16, Numerics("fp16", False)]),
        ((), {"leaves_out_fp16": True}, [GPUS_OWN, CONTIGUOUS]),
        (("precision=bf16",), {"precision": "bf16"}, [GPUS_OWN, CONTIGUOUS]),
        (("channels_last=true",), {"channels_last": True}, [GPUS_OWN, FP16]),
    ],
)
@pytest.mark.parametrize("gain", [0.98, 0.5])
def test_gpus_compare_half_precisions_and_memory_formats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    wanted: dict[str, Any],
    compared: list[Numerics],
    gain: float,
) -> None:
    """What is not faster than their own half precision in channels_last is not chosen."""
    point = replace(compose("local_batch=8", *words), results_dir=str(tmp_path))
    point.study_dir.mkdir()
    path = calibration_file.path_of(point)
    calibration_file.write_calibration(path, Calibration(1, (8,), **wanted))
    seconds = [1.0, *(gain for _ in compared[1:])]

    def timed(candidates: Any, asked: Calibration, *_: object) -> Calibration:
        assert [*candidates] == compared
        each = tuple(Timed(one, (s,)) for one, s in zip(compared, seconds, strict=True))
        return replace(asked, measured_batches=(8,), timed=each)

    monkeypatch.setattr(
        precision,
        "choose",
        lambda config, _: "bf16" if config.precision == "auto" else config.precision,
    )
    monkeypatch.setattr(choose_numerics, "_timed", timed)
    strategy: Any = SimpleNamespace(gather_json=lambda own: [own], rank=0, members=(0,))
    images: Any = SimpleNamespace(train_inputs=torch.zeros(9, 3, 8, 8), train_labels=range(9))
    none: Any = None
    paths = RunPaths(point.study_dir / "run")
    chosen = choose_numerics.agree(point, paths, images, strategy, torch.device("cuda"), none)
    assert chosen == compared[gain < 0.9]
    assert (calibration_file.read_calibration(path) or Calibration(1, (1,))).timed


def test_fp16_is_left_out_if_a_point_refuses_it(tmp_path: Path) -> None:
    """So that all points of a study have the same precision."""
    found = Calibration(
        1,
        (8,),
        measured_batches=(8,),
        timed=(Timed(GPUS_OWN, (0.2,)), Timed(FP16, (0.1,))),
    )
    assert calibration_file.numerics_for(AUTO, found, FP32) == FP16
    for number, words in enumerate(
        (("strategy=parameter_server", "num_workers=2"), ("strategy=single", "graph=step"))
    ):
        refusing = compose("local_batch=8", *words)
        assert calibration_file.numerics_for(refusing, found, FP32) == GPUS_OWN
        for points, left_out in (((AUTO,), False), ((AUTO, refusing), True)):
            study = f"s{number}{left_out}"
            asking = [replace(one, results_dir=str(tmp_path), study=study) for one in points]
            asking[0].study_dir.mkdir()
            calibration_file.request(asking, 10_000)
            asked = calibration_file.read_calibration(calibration_file.path_of(asking[0]))
            assert asked
            assert asked.leaves_out_fp16 == left_out


@pytest.mark.parametrize("words", [("strategy=parameter_server",), ("strategy=ddp", "graph=step")])
def test_an_answer_in_fp16_says_nothing_of_a_point_that_refuses_it(words: tuple[str, ...]) -> None:
    """It takes what its GPU has beside fp16, whether the answer was measured or is of other runs;
    the start record then says what that is.
    """
    refusing = compose("local_batch=8", "num_workers=2", *words)
    measured_in_it = Calibration(1, (8,), measured_batches=(8,), timed=(Timed(FP16, (0.1,)),))
    for found in (measured_in_it, Calibration(1, (8,), settled=FP16)):
        assert calibration_file.numerics_for(AUTO, found, GPUS_OWN) == FP16
        assert "Using fp16, channels_last: " in found.says(AUTO)
        assert calibration_file.numerics_for(refusing, found, GPUS_OWN) == GPUS_OWN
        assert found.says(refusing) == ""
    begun = Calibration(1, (8,), settled=FP16, settled_by="itself")  # on a GPU without bf16
    assert calibration_file.numerics_for(refusing, begun, GPUS_OWN) == FP16
    assert "Using fp16, channels_last: " in begun.says(refusing)


def test_what_is_said_is_what_is_used() -> None:
    compiled = replace(GPUS_OWN, compiled=True)
    each = (Timed(GPUS_OWN, (0.2,)), Timed(compiled, (0.1,)))
    found = Calibration(1, (8,), measured_batches=(8,), timed=each)
    for words in (("compile=auto",), ("compile=auto", "strategy=ddp"), ("precision=fp32",)):
        config = compose("local_batch=8", *words)
        used = calibration_file.numerics_for(config, found, GPUS_OWN)
        assert f"Using {used}: " in found.says(config)


@pytest.mark.parametrize(("seconds", "expected"), [(6.0, [8, 256]), (2.0, [8, 16, 64, 256])])
def test_gpus_calibrate_as_many_batches_as_they_have_time_to_prepare(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    """Where a step takes hardly any time, and the graph of each batch so many seconds."""
    clock = SimpleNamespace(now=0.0)

    def rounds(job: Any, batch: int, most_seconds: float) -> list[float]:
        clock.now += seconds
        return [1e-6 * batch] * 2

    monkeypatch.setattr(choose_numerics, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(choose_numerics, "_rounds_of_graph", rounds)
    jobs: list[Any] = [SimpleNamespace(device=torch.device("cuda"), compiled=None)]
    strategy: Any = SimpleNamespace(gather_json=lambda own: [own])
    found, _ = choose_numerics._times(lambda: jobs, (8, 16, 64, 256), strategy)
    assert [*found] == expected


HERE, ELSEWHERE = {"cpu": "one", "cores": 2}, {"cpu": "other", "cores": 2}


def test_on_other_hardware_a_study_is_asked_anew_and_keeps_both_answers(tmp_path: Path) -> None:
    """What is native on one processor may be emulated on the next, whose runs do not compare
    anyway.
    """
    point, here, elsewhere = (
        replace(AUTO, results_dir=str(tmp_path)),
        "one, 2 cores",
        "other, 2 cores",
    )
    write_run(point.study_dir, local_batch=8, meta=ELSEWHERE, precision="bf16")
    first = calibration_file.path_of(point)
    kept = replace(measured(bf16_last=(0.1, 0.2)), models=("old",), hardware=elsewhere)
    calibration_file.write_calibration(first, kept)
    calibration_file.request([point], 10, hardware=elsewhere)
    assert calibration_file.read_calibration(first) == kept
    calibration_file.request([point], 10, hardware=here)
    path = calibration_file.path_of(point, here)
    asked = calibration_file.read_calibration(path)
    assert path != first
    assert asked
    assert asked.is_open
    assert asked.models == ("resnet18",)
    assert calibration_file.path_of(point, elsewhere) == first
    assert calibration_file.read_calibration(first) == kept

    # A worker finds it by what its own run is on, and the console says why there is another.
    assert (
        calibration_file.path_in(write_run(point.study_dir, local_batch=16, meta=HERE), point)
        == path
    )
    assert (
        calibration_file.path_in(write_run(point.study_dir, local_batch=32, meta=ELSEWHERE), point)
        == first
    )
    answer = replace(asked, measured_batches=(8,), timed=(Timed(FP32, (0.1,)),))
    assert answer.says(AUTO).endswith(f", on {here}; this study's first answer was for {elsewhere}")


def test_runs_on_this_hardware_alone_say_what_a_study_goes_on_in(tmp_path: Path) -> None:
    point, here = replace(AUTO, results_dir=str(tmp_path)), "one, 2 cores"
    write_run(point.study_dir, local_batch=8, meta=ELSEWHERE, precision="bf16")
    calibration_file.request([point], 10, hardware=here)
    assert not calibration_file.path_of(point, here).exists(), (
        "too few steps to measure, and no emulated bf16"
    )
    write_run(point.study_dir, local_batch=16, meta=HERE)
    calibration_file.request([point], 10, hardware=here)
    found = calibration_file.read_calibration(calibration_file.path_of(point, here))
    assert found
    assert found.settled == FP32_LAST
    assert "the same as in an earlier run of this study" in found.says(AUTO)


def test_a_run_that_has_begun_goes_on_in_its_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path, local_batch=8, meta=ELSEWHERE, precision="bf16")
    found = calibration_file.begun(run / "metrics.jsonl", AUTO)
    assert found
    assert calibration_file.numerics_for(AUTO, found, FP32) == BF16_LAST
    assert "Using bf16, channels_last: the same as at the start of this run" in found.says(AUTO)
    assert calibration_file.begun(tmp_path / "none/metrics.jsonl", AUTO) is None


def test_a_resumed_run_keeps_its_memory_layout(tmp_path: Path) -> None:
    run = write_run(tmp_path, local_batch=8, precision="fp32", settings={"precision": "fp32"})
    config = replace(AUTO, precision="fp32")
    assert (
        calibration_file.numerics_for(
            config, calibration_file.begun(run / "metrics.jsonl", config), FP32
        )
        == FP32_LAST
    )


def test_a_branch_begins_in_what_its_study_takes(tmp_path: Path) -> None:
    """It has a copy of the records of the run that it goes on from, until it begins itself."""
    branch = (
        write_run(tmp_path / AUTO.study, local_batch=8, meta=HERE, precision="bf16")
        / "metrics.jsonl"
    )
    (own,) = [record for record in read_records(branch)[0] if record["type"] == "start"]
    with RunLog(branch) as log:
        log.write(
            Continued(message="until step 3", branch_of="other", num_steps=3, train_seconds=0.5)
        )
    assert calibration_file.begun(branch, AUTO) is None
    calibration_file.request(
        [replace(AUTO, results_dir=str(tmp_path))], 10, hardware="one, 2 cores"
    )
    assert not (tmp_path / AUTO.study / "calibration.json").exists(), (
        "the copy is no run of this study"
    )
    with branch.open("a") as lines:
        lines.write(json.dumps({**own, "precision": "fp32"}) + "\n")
    found = calibration_file.begun(branch, AUTO)
    assert found
    assert found.settled == FP32_LAST


LOGIN = "login node, 4 cores"


def agreed(point: RunConfig, monkeypatch: pytest.MonkeyPatch, **meta: Any) -> Numerics:
    """What a new run comes to on a machine where nothing but plain fp32 is measured."""
    folder = point.study_dir / f"run on {meta['cpu']}"
    folder.mkdir()
    write_json(folder / "meta.json", {**META, **meta})
    found = {"measured_batches": (8,), "timed": (Timed(FP32, (0.1,)),)}
    monkeypatch.setattr(
        choose_numerics, "_measure", lambda _, wanted, *__: replace(wanted, **found)
    )
    strategy: Any = SimpleNamespace(gather_json=lambda own: [own], rank=0, members=(0,))
    images: Any = SimpleNamespace(train_inputs=torch.zeros(1, 3, 8, 8))
    none: Any = None
    return choose_numerics.agree(
        point, RunPaths(folder), images, strategy, torch.device("cpu"), none
    )


def test_workers_on_other_machines_calibrate_once_per_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = replace(AUTO, results_dir=str(tmp_path))
    point.study_dir.mkdir()
    calibration_file.request([point], calibration_file.LEAST_STEPS, hardware=LOGIN)
    first = calibration_file.path_of(point)
    assert agreed(point, monkeypatch, **HERE) == FP32
    answer = calibration_file.read_calibration(first)
    assert answer
    assert answer.timed
    assert answer.hardware == "one, 2 cores"
    assert not answer.instead_of
    assert agreed(point, monkeypatch, **ELSEWHERE) == FP32
    (other,) = {*point.study_dir.glob("calibration*.json")} - {first}
    found = calibration_file.read_calibration(other)
    assert found
    assert found.timed
    assert (found.hardware, found.instead_of) == ("other, 2 cores", answer.hardware)
    assert calibration_file.read_calibration(first) == answer


def test_workers_on_another_machine_than_who_asked_go_on_as_its_runs_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = replace(AUTO, results_dir=str(tmp_path))
    write_run(point.study_dir, local_batch=16, meta=ELSEWHERE, precision="bf16")
    calibration_file.request([point], calibration_file.LEAST_STEPS, hardware=LOGIN)
    assert agreed(point, monkeypatch, **ELSEWHERE) == BF16_LAST


def test_a_point_whose_calibration_was_deleted_goes_on_as_others_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes the file between the start of the point and its first look."""
    point = replace(AUTO, results_dir=str(tmp_path))
    write_run(point.study_dir, local_batch=16, meta=ELSEWHERE, precision="bf16")
    assert not calibration_file.path_of(point).exists()
    assert agreed(point, monkeypatch, **ELSEWHERE) == BF16_LAST
    assert agreed(point, monkeypatch, **HERE) == FP32, "no run of the study was on this hardware"


def test_a_calibration_that_vanishes_before_a_point_reads_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with the last point, after which the sweep does not look for the file again."""
    point = compose("local_batch=8", "launch=inline", f"results_dir={tmp_path}", "data=synthetic")
    path = calibration_file.path_of(point)
    path.parent.mkdir()
    write_run(point.study_dir, local_batch=16)

    def run(*_: object) -> str:
        path.unlink()
        return "completed"

    monkeypatch.setattr(sweep, "_run_checked", run)
    with sweep.Sweep([point], ()) as points:
        assert path.exists()
        assert points.run() == ["completed"]
    assert f"{path} is missing: what the study's runs use is" in capsys.readouterr().err
    assert path.exists()


def test_a_short_sweep_is_calibrated_if_its_study_was_long_enough(
    tmp_path: Path,
) -> None:
    point = replace(AUTO, results_dir=str(tmp_path))
    point.study_dir.mkdir()
    settled = Calibration(1, (8,), settled=BF16_LAST, hardware="one, 2 cores")
    for first, is_asked in ((settled, False), (replace(settled, settled_by="gpu"), True)):
        calibration_file.write_calibration(calibration_file.path_of(point), first)
        calibration_file.request([point], 10, hardware=LOGIN)
        path = calibration_file.path_of(point, LOGIN)
        assert path.exists() == is_asked
        path.unlink(missing_ok=True)
        assert (calibration_file.asked(path, point, LOGIN) is not None) == is_asked


def test_what_was_not_measured_is_said_too() -> None:
    start = {"precision": "fp32", "channels_last": False, "device": "cpu"}
    assert (
        calibration_file.unmeasured(start)
        == "Using fp32, contiguous: the sweep has fewer than 1,000 steps, too few to calibrate"
    )
    of_gpu = {**start, "precision": "bf16", "channels_last": True, "device": "NVIDIA H200"}
    assert (
        calibration_file.unmeasured(of_gpu)
        == "Using bf16, channels_last: chosen for this kind of GPU without measuring"
    )
    settled = Calibration(1, (8,), settled=BF16_LAST, settled_by="gpu")
    assert settled.says(AUTO) == calibration_file.unmeasured(of_gpu)
    assert (
        calibration_file.unmeasured(start, was_asked=True)
        == "Using fp32, contiguous: the calibration has no answer for it"
    )


SWEEP = ("run", "-m", "study=s", "model=tiny_cnn", *TINY, "epochs=1", "local_batch=8,16")
INLINE = ("launch=inline", "strategy=single")


def ask(cwd: Path) -> Path:
    """What a sweep of many steps leaves for its first point."""
    path = cwd / "results/s/calibration.json"
    path.parent.mkdir(parents=True)
    calibration_file.write_calibration(
        path,
        Calibration(
            1, wanted_batches=(8, 16), hardware=hardware_words(provenance.provenance(AUTO))
        ),
    )
    return path


def starts(cwd: Path) -> list[dict[str, Any]]:
    records = (read_records(path)[0] for path in sorted(cwd.glob("results/s/*/metrics.jsonl")))
    return [record for each in records for record in each if record["type"] == "start"]


def test_the_first_point_measures_for_all_of_a_study(tmp_path: Path) -> None:
    """Two workers, which go by the slower one; then one in the sweep's process, which finds the
    answer there.
    """
    path = ask(tmp_path)
    said = bsweep(*SWEEP, "strategy=allreduce", "num_workers=2", cwd=tmp_path).stderr
    found = calibration_file.read_calibration(path)
    assert found
    assert found.measured_batches[0] == 8
    assert len(found.timed) in (2, 4)
    assert found.torch
    assert found.example_shape == (3, 8, 8)
    chosen = found.ranked(AUTO)[0][0]
    assert said.count(f"  Using {chosen}: ") == said.count("at local batch 8") == 1
    bsweep(*SWEEP, *INLINE, cwd=tmp_path)
    kept = [Numerics(start["precision"], start["channels_last"]) for start in starts(tmp_path)]
    assert kept == [chosen] * 4
    assert calibration_file.read_calibration(path) == found


@pytest.mark.parametrize("strategy", ["sharded", "pipeline"])
def test_workers_of_a_split_model_do_not_measure(tmp_path: Path, strategy: str) -> None:
    """The whole model may not fit on one of them."""
    path = ask(tmp_path)
    before = path.read_bytes()
    words = (*SWEEP, "num_workers=2", f"strategy={strategy}", "precision=auto")
    result = bsweep(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Using fp32, contiguous: no worker times steps of a model that" in result.stderr
    assert path.read_bytes() == before
    assert {(start["precision"], start["channels_last"]) for start in starts(tmp_path)} == {
        ("fp32", False)
    }


def test_a_split_model_takes_what_others_measured() -> None:
    found = measured(fp32=(0.2, 0.4), bf16_last=(0.1, 0.2))
    words = ("local_batch=8", "model=tiny_cnn", "num_workers=2")
    for strategy, is_last in (("sharded", False), ("pipeline", True)):
        point = compose(*words, f"strategy={strategy}")
        chosen = calibration_file.numerics_for(point, found, default=FP32)
        assert chosen == Numerics("bf16", channels_last=is_last)
        assert f"Using {chosen}" in found.says(point)
    with pytest.raises(
        ConfigError, match="channels_last=true with strategy=sharded: this strategy"
    ):
        compose(*words, "strategy=sharded", "channels_last=true")


def test_a_calibration_does_not_change_the_numbers_of_its_point(
    tmp_path: Path,
) -> None:
    losses = []
    for name in ("measured", "given"):
        cwd = tmp_path / name
        given: tuple[str, ...] = ()
        if name == "measured":
            ask(cwd)
        else:
            cwd.mkdir()
            (start,) = starts(tmp_path / "measured")
            given = (
                f"precision={start['precision']}",
                f"channels_last={str(start['channels_last']).lower()}",
            )
        bsweep(*SWEEP, *INLINE, "local_batch=8", *given, cwd=cwd)
        (summary,) = cwd.glob("results/s/*/summary.json")
        losses.append((read_json(summary) or {})["train_loss"])
    assert losses[0] == losses[1]


def test_a_profile_measures_for_itself_alone(tmp_path: Path) -> None:
    point = ("model=tiny_cnn", *TINY, "epochs=1000", "local_batch=8", *INLINE)
    bsweep("profile", "study=s", *point, cwd=tmp_path)
    found = calibration_file.read_calibration(tmp_path / "results/s/.profile/calibration.json")
    assert found
    assert found.measured_batches == (8,)
    assert not (tmp_path / "results/s/calibration.json").exists()


def test_whole_steps_are_measured_in_the_workers_that_train_nothing(tmp_path: Path) -> None:
    """Each candidate's steps, optimizer included, at the run's own settings, and with a warm-up
    before.
    """
    path, point = (
        tmp_path / "s" / "calibration.json",
        ("model=tiny_cnn", *TINY, f"results_dir={tmp_path}", "study=s"),
    )
    path.parent.mkdir()
    calibration_file.write_calibration(path, Calibration(1, wanted_batches=(4, 8)))
    config = compose(*point, "local_batch=8", *INLINE)
    made: list[Numerics] = []
    steps_of = step.train_step

    def counted(job: Any, *arguments: Any) -> torch.Tensor:
        made.append(job.numerics)
        before = job.vector.parameters.clone()
        totals = steps_of(job, *arguments)
        assert job.vector.parameters.equal(before)
        assert job.vector.gradients.any()
        return totals

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step, "train_step", counted)
        job = worker.set_up(config, RunPaths(tmp_path), Place())
    found = calibration_file.read_calibration(path)
    assert found
    assert found.measured_batches == (4, 8)
    assert {one.numerics for one in found.timed} == {*made}
    assert made[: len(found.timed)] == [one.numerics for one in found.timed]
    assert made[0] == calibration_file.PLAIN
    assert job.numerics == found.ranked(config)[0][0]
    assert not job.vector.gradients.any()


class Speed(float):
    """In place of a job whose steps take so much time, and with which nothing is compiled."""

    compiled = None
    device = torch.device("cpu")
    compiling = nullcontext


@pytest.mark.parametrize(
    ("seconds_per_example", "of_another", "fits", "expected"),
    [
        (0.001, (0.0, 0.0), 1000, [8, 16, 64, 256]),
        (0.02, (0.0, 0.0), 1000, [8, 16, 64]),  # 256 would take longer than there is
        (0.02, (0.2, 0.0), 1000, [8, 16]),  # 64 would, for another worker
        (0.02, (0.0, 12.0), 1000, [8, 16]),  # and for one that has little time left
        (0.001, (math.inf, math.inf), 1000, [8]),  # which has no memory for 8
        (1.0, (0.0, 0.0), 1000, [8]),  # which is measured however long it takes
        (0.001, (0.0, 0.0), 100, [8]),  # after 256 was too large nothing is measured any more
        (0.001, (0.0, 0.0), 4, []),
    ],
)
def test_the_largest_feasible_batch_is_calibrated_after_the_smallest(
    seconds_per_example: float,
    of_another: tuple[float, float],
    fits: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What small batches are fastest in may be slow for large ones."""
    clock, order, gathered = SimpleNamespace(now=0.0), [], []

    def step_seconds(job: Any, batch: int) -> float:
        if batch > fits:
            raise MemoryError
        order.append(batch)
        seconds = float(job * seconds_per_example * batch)
        clock.now += seconds
        return seconds

    def gather(told: dict[str, Any]) -> list[dict[str, Any]]:
        gathered.append(told)
        return [json.loads(json.dumps(each)) for each in (told, {"seconds": of_another})]

    monkeypatch.setattr(choose_numerics, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(choose_numerics, "_step_seconds", step_seconds)
    jobs: list[Any] = [Speed(1.0), Speed(1.2)]
    strategy: Any = SimpleNamespace(gather_json=gather)
    found, _ = choose_numerics._times(lambda: jobs, (8, 16, 64, 256), strategy)
    assert [*found] == expected
    assert all(len(own) >= 2 for rounds in found.values() for own in rounds)
    assert clock.now < 18 or expected == [8]
    assert len(gathered) == 1, "all workers call it, whatever happens to one"
    assert [*dict.fromkeys(order)] == [*expected[:1], *expected[:0:-1]]


def test_workers_that_measured_other_batches_go_by_those_of_all() -> None:
    one = Calibration(
        1, (8, 64), measured_batches=(8, 16, 64), timed=(Timed(FP32, (0.1, 0.2, 0.6)),), noise=0.1
    )
    other = replace(one, measured_batches=(8, 64), timed=(Timed(FP32, (0.2, 0.5)),), noise=0.2)
    both = choose_numerics._of_slowest([one, other])
    assert both == replace(
        one, measured_batches=(8, 64), timed=(Timed(FP32, (0.2, 0.6)),), noise=0.2
    )
    none = replace(other, measured_batches=(), timed=())
    assert choose_numerics._of_slowest([one, none]) == replace(one, measured_batches=(), timed=())


def test_a_study_goes_on_as_its_runs_began(tmp_path: Path) -> None:
    """Its first sweep took too few steps to measure anything; a later one does not begin to."""
    said = bsweep(*SWEEP, *INLINE, "local_batch=8", cwd=tmp_path).stderr
    (before,) = starts(tmp_path)
    assert f"  Using {before['precision']}, contiguous: the sweep has fewer than" in said
    assert not (tmp_path / "results/s/calibration.json").exists()
    said = bsweep(*SWEEP, *INLINE, cwd=tmp_path).stderr
    assert said.count("the same as in an earlier run of this study") == 1
    kept = [(start["precision"], start["channels_last"]) for start in starts(tmp_path)]
    assert kept == [(before["precision"], before["channels_last"])] * 2
