"""The figure of batches by epoch, and the labels of the policies that changed them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import bsweep
from bsweep.analysis.keys import keyed
from bsweep.config.saved import save_config
from bsweep.plots import COLORS, FIGURES
from bsweep.plots.curves import looks
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.measured import NoiseScale
from bsweep.runlog.records import BatchChanged, Start, Step
from tests.support.running import compose

NUM_TRAIN = 64


def write_run(study: Path, noise_scale: float, *overrides: str) -> str:
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


@pytest.mark.full
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
