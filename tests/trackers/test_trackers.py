"""Trackers hold what the records say: told while a run goes on or afterwards, once, and never at
the run's expense.
"""

from __future__ import annotations

import json
import shlex
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bsweep import trackers
from bsweep.config.values import TrackerName
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import settled
from bsweep.trackers import records
from tests.support.running import TINY, exits, imported_first, ran_ok, recorded

pytestmark = pytest.mark.full

ALONE = ("launch=inline", "strategy=single", "local_batch=30", "epochs=2")
POINT = (*TINY, *ALONE, "model=tiny_cnn", "log_every_steps=1")
LOSS = "epoch/test_loss"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that all trackers were told of while they went on."""
    folder = tmp_path_factory.mktemp("tracked")
    # On a busy machine, MLflow and W&B take longer than a sweep waits for them.
    patient = "import bsweep.trackers.live as live\nlive._PATIENCE_SECONDS = 600\n"
    env = imported_first(folder, patient)
    grid = ("-m", *POINT, "seed=0,1", "study=s", "trackers=[tensorboard,mlflow,wandb]")
    result = ran_ok("run", *grid, cwd=folder, env=env, timeout=550)
    assert "warning" not in result.stderr, result.stderr
    return folder / "results/s"


def on_record(study: Path) -> dict[str, list[tuple[int, Any]]]:
    """The test losses of each run by epoch."""
    return {
        path.parent.name: [
            (record["epoch"], pytest.approx(record["test_loss"]))
            for record in recorded(path.parent, "epoch")
        ]
        for path in study.glob("*/metrics.jsonl")
    }


def in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for run in folder.iterdir():
        assert len(list(run.iterdir())) == 1
        events = EventAccumulator(str(run))
        events.Reload()
        found[run.name] = [(one.step, one.value) for one in events.Scalars(LOSS)]
        assert b"| seed | " in events.Tensors("config")[0].tensor_proto.string_val[0]
        assert events.Tensors("status")[0].tensor_proto.string_val == [b"completed"]
        assert "_hparams_/session_start_info" in events.Tags()["tensors"]
        assert events.Scalars("step/train_loss")[-1].step == 6
        assert events.Scalars("summary/test_loss")
    return found


def in_mlflow(file: Path) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{file}")
    experiment = client.get_experiment_by_name("s")
    assert experiment
    runs = client.search_runs([experiment.experiment_id])
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.params["model.name"] == "tiny_cnn"
        assert run.data.metrics["num_steps"] == 6
    histories = {
        run.info.run_name: client.get_metric_history(run.info.run_id, LOSS) for run in runs
    }
    return {
        str(name): [(one.step, one.value) for one in history] for name, history in histories.items()
    }


def in_wandb(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    found: dict[str, list[tuple[int, float]]] = {}
    for file in folder.glob("offline-run-*/*.wandb"):
        name = file.stem.removeprefix("run-")
        assert name not in found
        found[name] = []
        settings: dict[str, Any] = {}
        for part in wandb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(part)
            logged, configured = (
                {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                for items in (record.history.item, record.config.update)
            )
            settings |= configured
            if LOSS in logged:
                found[name].append((logged["epoch"], logged[LOSS]))
        assert settings["model.name"] == "tiny_cnn"
    return found


def wandb_records(file: bytes) -> Iterator[bytes]:
    """The records of an offline run: LevelDB's log format, after seven bytes."""
    position, whole = 7, b""
    while position + 7 <= len(file):
        if 32_768 - position % 32_768 < 7:
            position += -position % 32_768
        _, length, kind = struct.unpack_from("<IHB", file, position)
        whole += file[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


def test_trackers_hold_all_records_and_an_export_doubles_none(study: Path) -> None:
    expected = on_record(study)
    assert len(expected) == 2
    assert all(len(losses) == 2 for losses in expected.values())
    for is_exported in (False, True):
        assert in_tensorboard(study / "tensorboard") == expected
        assert in_mlflow(study / "mlflow.db") == expected
        assert in_wandb(study / "wandb") == expected
        for name in () if is_exported else trackers.NAMES:
            result = ran_ok("export", "results/s", "--to", name, cwd=study.parents[1])
            assert ("there already" in result.stderr) == (name == "mlflow")


def test_an_export_names_its_target_and_unreadable_runs(study: Path, tmp_path: Path) -> None:
    expected = on_record(study)
    broken = study / "broken"
    broken.mkdir()
    (broken / "metrics.jsonl").write_text("no record\n")
    out = str(tmp_path / "board")
    words = ("export", "results/s", "--to", "tensorboard", "--out", out)
    result = exits(1, *words, cwd=study.parents[1])
    shutil.rmtree(broken)
    assert "broken: left out" in result.stderr
    assert f"--logdir {out}" in result.stdout
    assert in_tensorboard(tmp_path / "board") == expected


def test_points_at_once_share_a_tracker(tmp_path: Path) -> None:
    at_once = ("launch=torchrun", "launch.parallel=2", "launch.threads_per_worker=1")
    grid = ("-m", *POINT, *at_once, "seed=0,1", "study=s", "trackers=[mlflow]")
    result = ran_ok("run", *grid, cwd=tmp_path)
    assert "warning: mlflow" not in result.stderr, result.stderr
    assert sorted(in_mlflow(tmp_path / "results/s/mlflow.db")) == sorted(
        on_record(tmp_path / "results/s")
    )


def test_a_tracker_that_fails_is_one_warning(tmp_path: Path) -> None:
    nowhere = {"MLFLOW_TRACKING_URI": "sqlite:////proc/nowhere/mlflow.db"}
    grid = ("-m", *POINT, "seed=0,1", "study=s", "trackers=[mlflow]")
    result = ran_ok("run", *grid, cwd=tmp_path, env=nowhere)
    assert result.stderr.count("warning: mlflow: ") == 1, result.stderr
    assert "export" in result.stderr, result.stderr
    assert all(len(losses) == 2 for losses in on_record(tmp_path / "results/s").values())


def test_a_missing_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()  # as wandb itself leaves behind
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # which another test has read with
    with pytest.raises(ValueError, match=r"wandb not installed: pip install 'bsweep\[wandb\]'"):
        trackers.check_trackers(["wandb"])


def test_what_a_resumed_run_took_back_is_left_out(tmp_path: Path) -> None:
    steps = [
        {"type": kind, kind: n, "time": t}
        for t, (kind, n) in enumerate([("step", 1), ("step", 2), ("epoch", 1)])
    ]
    again = [{"type": "event", "time": 3}, {"type": "step", "step": 2, "time": 4}]
    assert [one["time"] for one in settled([*steps, *again])] == [0, 2, 3, 4]
    before = records.fingerprint(RunPaths(tmp_path))
    (tmp_path / "summary.json").write_text("{}")
    assert records.fingerprint(RunPaths(tmp_path)) != before


def test_mlflow_keeps_all_events_and_the_settings_of_a_resumed_run(tmp_path: Path) -> None:
    from bsweep.trackers import to_mlflow

    tracked = to_mlflow.Tracked(str(tmp_path / "of 10:30.db"), "s", "run", began_at=1.0)
    for device in ("Tesla T4", "NVIDIA A100"):
        tracked.config({"seed": 0, "device": device})
        tracked.note(f"warning: {device}", 1.0)
    data = tracked._client.get_run(tracked._id).data
    assert data.params == {"seed": "0", "device": "Tesla T4"}
    events = [text for key, text in data.tags.items() if key.startswith("event.")]
    assert sorted(events) == ["warning: NVIDIA A100", "warning: Tesla T4"]


@pytest.mark.parametrize("name", trackers.NAMES)
def test_the_command_that_shows_a_study_can_be_pasted(name: TrackerName) -> None:
    view = trackers.sink(name).view
    assert len(shlex.split(view("my results"))) == len(view("results").split())
