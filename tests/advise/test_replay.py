"""What a policy would have done in runs on record: the policy itself, shown what they recorded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import bsweep
from bsweep.advise import replay
from bsweep.analysis.keys import keyed
from bsweep.config.saved import save_config
from bsweep.plots import COLORS, FIGURES
from bsweep.plots.curves import looks
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.measured import NoiseScale
from bsweep.runlog.records import BatchChanged, Start, Step
from bsweep.train import noise_meter
from tests.support.running import compose

NUM_TRAIN = 64


def write_run(study: Path, noise_scale: float | None, *overrides: str) -> str:
    """A run of two epochs in steps of 8 of 64 examples, 10 ms each and 1 ms an example; its id."""
    config = compose(
        "strategy=single",
        "launch=inline",
        "model=tiny_cnn",
        "global_batch=8",
        "epochs=2",
        *overrides,
    )
    paths = RunPaths(study / config.run_id)
    paths.folder.mkdir(parents=True)
    save_config(config, paths.config)
    with RunLog(paths.metrics) as log:
        log.write(
            Start(
                run_id=config.run_id, config=json.loads(json.dumps(asdict(config))), local_batch=8,
                global_batch=8,
                num_train=NUM_TRAIN, num_test=1, classes=(), num_parameters=1, device="cpu",
                precision="fp32",
                threads=1, start_seconds=None, channels_last=False,
            )
        )  # fmt: skip
        for number in range(1, 17):
            done, epoch = number / 8, (number + 7) // 8
            rate, batch = (
                8 / (0.010 + 0.001 * 8),
                16 if config.batching.name != "fixed" and number > 8 else 8,
            )
            if number == 9 and batch == 16:
                told = {"times": 1.0}
                log.write(
                    BatchChanged(
                        message="", epochs_done=1.0, before=8, global_batch=16, inputs=told
                    )
                )
            if noise_scale:
                log.write(
                    NoiseScale(
                        epoch=epoch, num_steps=number, epochs_done=done, gradient_square=1.0,
                        variance=noise_scale,
                        num_gradients=2,
                    )
                )  # fmt: skip
            log.write(
                Step(
                    epoch=epoch, step=number, train_loss=2.0, learning_rate=0.1,
                    images_per_second=rate,
                    global_batch=batch, epochs_done=done,
                )
            )  # fmt: skip
    return config.run_id


def test_a_schedule_is_replayed_with_its_batches_rates_and_steps(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        None,
        "optimizer.lr_rule=linear",
        "optimizer.reference_batch=8",
        "optimizer.lr=0.1",
    )
    (found,) = replay.replay(tmp_path, "schedule", [])
    assert [(one.step, one.epochs_done, one.global_batch) for one in found.changes] == [
        (9, 1.0, 16)
    ]
    assert found.changes[0].learning_rate == pytest.approx(0.2)
    assert (found.num_steps, found.recorded_steps) == (12, 16)
    assert "9   1.000     16            0.2  the batch is multiplied by 2" in str(found)


def test_policies_see_noise_loss_and_seconds_as_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, 32.0)
    more = ["batching.every_steps=4", "batching.max_local_batch=64"]
    (by_noise,) = replay.replay(tmp_path, "noise_scale", more)
    assert [one.global_batch for one in by_noise.changes] == [32]
    (coupled,) = replay.replay(tmp_path, "cabs", [*more, "optimizer.lr=1"])
    assert [one.global_batch for one in coupled.changes] == [16], "lr x variance / loss"
    assert replay.main([str(tmp_path), "--batching", "goodput", "--json", *more]) == 0
    (by_time,) = json.loads(capsys.readouterr().out)["runs"]
    assert by_time["changes"][0]["inputs"]["step_seconds"] == pytest.approx(0.018, rel=0.2)
    assert by_time["last_batch"] > 8


def test_what_was_not_recorded_and_what_is_not_known_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = write_run(tmp_path, None)
    with pytest.raises(
        ValueError, match=rf"{silent}: batching=goodput .* measure.noise_scale=true"
    ):
        replay.replay(tmp_path, "goodput", [])
    write_run(tmp_path, 32.0, "seed=1")
    assert len(replay.replay(tmp_path, "goodput", [])) == 1
    assert silent in capsys.readouterr().err
    for name, words, message in (
        ("goodpud", [], "Did you mean 'goodput'"),
        ("schedule", ["batching.factr=3"], "Did you mean 'batching.factor'"),
        ("schedule", ["seed=3"], "keys of the policy or the optimizer"),
        ("cabs", ["optimizer.lr_rule=linear"], "fits the batch to the learning rate"),
    ):
        with pytest.raises(ValueError, match=message):
            replay.replay(tmp_path, name, words)


def test_recorded_seconds_are_of_the_passes_that_the_run_made(tmp_path: Path) -> None:
    words = ("batching=schedule", "local_batch=8", "batching.max_local_batch=64", "model=tiny_cnn")
    recorded = replay.Recorded(
        "run", compose(*words), 100, [{"global_batch": 64, "images_per_second": 640.0}], []
    )
    ((shares, seconds),) = recorded.timings()
    assert shares[0].num_passes == 1
    assert seconds == pytest.approx(0.1)


def test_a_policy_is_told_of_as_many_measured_steps_as_in_training(tmp_path: Path) -> None:
    run_id = write_run(tmp_path, 32.0)
    (*_, (done, noise)) = replay._recorded(tmp_path / run_id).noises
    assert (done, noise.num_samples) == (2.0, 16), "a lone worker's two halves are of one step"
    assert [noise_meter.measured_steps(10, 2), noise_meter.measured_steps(2, 4)] == [5, 1]


def test_the_figure_has_runs_whose_batch_changed(tmp_path: Path) -> None:
    write_run(tmp_path, 32.0)
    changing = [
        write_run(tmp_path, scale, "batching=schedule", f"seed={seed}")
        for seed, scale in enumerate((32.0, 64.0))
    ]
    study = bsweep.load(tmp_path)
    assert set(study.batches["run_id"]) == set(changing)
    assert len(study.batches) == 2 * 16
    figure = FIGURES["batch_by_epoch"](study)
    batch, noise, _ = figure.axes
    assert list(batch.lines[0].get_ydata()) == [8] * 8 + [16] * 8  # type: ignore[arg-type]
    assert batch.lines[0].get_color() == looks(study)["variant", "batch by schedule"]["color"]
    assert batch.lines[0].get_color() != COLORS[0], "of the fixed batch, as in other figures"
    assert len(batch.lines) == 2, "a line for each run"
    (median,) = noise.lines
    assert list(median.get_ydata()) == pytest.approx([48] * 16)  # type: ignore[arg-type]


def test_labels_name_a_policy_before_its_differing_settings(
    tmp_path: Path,
) -> None:
    for policy in ("noise_scale", "schedule", "schedule batching.factor=4"):
        write_run(tmp_path, 32.0, "batching.max_global_batch=64", *f"batching={policy}".split())
    variants = set(keyed(bsweep.load(tmp_path).runs)["variant"])
    assert variants == {"noise_scale", "schedule factor 2", "schedule factor 4"}
