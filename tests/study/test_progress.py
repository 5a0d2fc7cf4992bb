"""What a person is told while a run trains, from records as a run writes them."""

from __future__ import annotations

import io
import itertools
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from bsweep import launch
from bsweep.config.run import RunConfig
from bsweep.launch import LaunchRequest, Outcome
from bsweep.runlog.files import RunPaths
from bsweep.study import side_runs
from bsweep.study.progress import Progress
from tests.support.running import TINY, compose

POINT = (*TINY, "model=tiny_cnn", "local_batch=8", "num_workers=2")
EPOCH = {
    "type": "epoch",
    "epoch": 1,
    "train_seconds": 10.0,
    "images_per_second": 9.0,
    "train_loss": 2.0,
    "test_accuracy": 0.5,
}


def told(
    config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, *records: dict[str, object]
) -> list[str]:
    """The lines of a run that wrote these records in ten seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    screen = io.StringIO()
    lines = Progress(1, Console(file=screen, width=200))
    paths = RunPaths(folder)
    lines.begin(config, paths, [])
    start = {"type": "start", "num_train": 90, "tokens_per_example": None}
    with paths.metrics.open("a") as file:
        file.write(json.dumps(start) + "\n")
    now[0] += 1
    lines.poll()
    with paths.metrics.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    now[0] += 10
    lines.poll()
    return screen.getvalue().splitlines()


@pytest.mark.parametrize(
    ("overrides", "described", "counted"),
    [
        (
            ("epochs=4", "num_workers=1", "target_accuracy=0.9"),
            "local batch 8, 1 worker, horovod, 4 epochs, target a test accuracy of 0.9",
            "epoch 1/4: 10.0 s",
        ),
        (
            ("strategy=diloco", "strategy.max_rounds=4", "allocation.local_steps=[3,5]"),
            "local batch 8, local steps 3, 5, 2 workers, diloco, 4 rounds",
            "epoch 1, round 1/4: 10.0 s",
        ),
    ],
)
def test_a_run_is_described_by_what_it_does_and_what_ends_it(
    overrides: tuple[str, ...],
    described: str,
    counted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = compose(*POINT, "epochs=1000", *overrides)
    begin, epoch = told(config, tmp_path, monkeypatch, {"type": "round", "round": 1}, EPOCH)
    assert begin == f"[1/1] {tmp_path}: {described}"
    assert epoch.startswith(f"  {counted}")
    assert epoch.endswith(", 30 s left"), "a quarter took ten seconds"


def test_records_that_were_cut_are_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", itertools.count().__next__)
    screen = io.StringIO()
    lines, paths = Progress(1, Console(file=screen, width=200)), RunPaths(tmp_path)
    lines.begin(compose(*POINT), paths, [])
    epochs = [json.dumps({**EPOCH, "epoch": number}) + "\n" for number in (1, 2, 3, 4)]
    cut = ["{\n", *epochs[:3]]
    for written in (epochs[:2], epochs[:1], cut, [*cut, "}\n", epochs[3]]):
        paths.metrics.write_text("".join(written))
        lines.poll()
    said = [line.split()[1].split("/")[0] for line in screen.getvalue().splitlines()[1:]]
    assert said == ["1", "2", "4"]


def test_what_workers_print_is_told_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched(request: LaunchRequest) -> Outcome:
        paths, show = request.paths, request.on_poll
        paths.rank_logs(1).mkdir(parents=True)
        with (paths.rank_logs(1) / "stdout").open("ab", buffering=0) as file:
            file.write(b"a\n\nb")
            show()
            assert lines == ["worker 1: a"]
            file.write(b"c\n")
        return Outcome("failed")

    lines: list[str] = []
    monkeypatch.setattr(launch, "launch", launched)
    side_runs.probe(compose(*POINT, f"results_dir={tmp_path}"), lines.append)
    assert lines == ["worker 1: a", "worker 1: bc"]


def test_a_resumed_run_shows_only_what_it_trains_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumed after two of four epochs, and took 11 s for the third."""
    config = compose(*POINT, "epochs=4")
    resumed = {"type": "event", "event": "resumed", "message": "resumed after step 12, in epoch 3"}
    earlier = [EPOCH, EPOCH | {"epoch": 2}, resumed]
    RunPaths(tmp_path).metrics.write_text("".join(json.dumps(one) + "\n" for one in earlier))
    _, said, epoch = told(config, tmp_path, monkeypatch, EPOCH | {"epoch": 3})
    assert said == "  resumed after step 12, in epoch 3"
    assert epoch.startswith("  epoch 3/4: 10.0 s")
    assert epoch.endswith(", 10 s left")
