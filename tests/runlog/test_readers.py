"""Readers take what bsweep writes, and say of everything else what is wrong with it: never a
traceback. Records survive a kill at any byte.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import bsweep
from bsweep import allocation, report
from bsweep.allocation import probes
from bsweep.analysis.prediction.probed_steps import probe_timings
from bsweep.analysis.study.run_rows import rows_of
from bsweep.config.saved import read_config, save_config
from bsweep.config.values import ConfigError
from bsweep.runlog.checkpoint_files import checkpoints, keep_until, soundest
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import Damaged, Newer, read_json, read_records, read_run
from bsweep.runlog.records import BatchChanged, Continued, Event, Record, Step
from bsweep.runlog.summary import read_ending, write_summary
from bsweep.study import history, overview
from bsweep.study.watching import Watched
from tests.allocation.test_allocation import POINT, worker, write_probe
from tests.support.mutations import damaged, fuzz
from tests.support.running import TINY, compose
from tests.support.saved import save_checkpoint
from tests.support.synthetic_study import diloco, server, write_run

NUM_MUTATIONS = pytest.mark.parametrize(
    "num_mutations", [100, pytest.param(1000, marks=pytest.mark.full)]
)
MOST_KEPT = 30  # runs of odd contents that readers took, which are loaded together in the end


def fuzz_run(folder: Path, run: Path, path: Path, others: list[Path]) -> None:
    """Damage a file of a run in many ways, and load all that was taken as one study, beside sound
    `others`.
    """
    whole, kept = path.read_bytes(), folder / "kept"
    if path.suffix == ".json":
        whole = json.dumps(json.loads(whole)).encode()  # in one line
    for other in others:
        shutil.copytree(other, kept / other.name)

    def read(content: bytes) -> bool:
        path.write_bytes(content)
        why = reason(lambda: rows_of(run), Damaged, Newer)
        if why is None and content != whole and (number := len(list(kept.iterdir()))) < MOST_KEPT:
            shutil.copytree(run, kept / f"{number:05d}")
        elif why and "Update bsweep" not in why:
            assert str(run) in why
            assert path.name in why
            assert len(why) < 1000
            assert read_ending(RunPaths(run)).status is None, f"the same sweep repeats it: {why}"
        return why is None

    fuzz(f"{path.name} of {run.name}", read, 1000, damaged(whole))
    study = bsweep.load(kept, mix=True)
    assert len(study.runs) == len(list(kept.iterdir())) > len(others) + 5
    assert not study.skipped
    assert "left out" not in repr(study)
    report.write(kept, mix=True)


STEP = Step(
    epoch=1, step=20, train_loss=2.0, learning_rate=0.1, images_per_second=90.0, global_batch=64,
    epochs_done=0.1
)  # fmt: skip
BRANCH = Continued(message="it was another", branch_of="another", num_steps=10, train_seconds=1.5)
CHANGE = BatchChanged(
    message="larger", epochs_done=0.1, before=64, global_batch=128, inputs={"noise_scale": 900.0}
)
MORE = (BRANCH, STEP, CHANGE, replace(STEP, step=40, global_batch=128, epochs_done=0.2))


@pytest.mark.parametrize(
    ("name", "whole", "odd"),
    [
        ("metrics.jsonl", '"num_workers": 1,', '"num_workers": 2147483647,'),
        ("metrics.jsonl", '"num_workers": 1,', '"num_workers": 1, "num_workers": 1,'),
        ("metrics.jsonl", '"name": "horovod"', '"name": "a\\u001b[31m"'),
        ("summary.json", '"num_workers": 1,', '"num_workers": 2147483647,'),
        ("metrics.jsonl", '"learning_rate": 0.1, "images', '"learning_rate": [1], "images'),
        ("metrics.jsonl", '"train_loss": 2.0,', f'"train_loss": {10**30},'),
        ("metrics.jsonl", '"step": 40, ', ""),
        ("metrics.jsonl", '"num_steps": 10, ', ""),
        ("metrics.jsonl", '64, "global_batch": 128', '64, "global_batch": "more"'),
        ("metrics.jsonl", '"lr_rule": "per_worker"', '"lr_rule": "cubic"'),
    ],
)
def test_a_damaged_run_is_left_out_by_name_and_repeated(
    name: str, whole: str, odd: str, tmp_path: Path
) -> None:
    write_run(tmp_path, local_batch=8)
    run = write_run(tmp_path, local_batch=16, more=MORE)
    assert len(bsweep.load(tmp_path).runs) == 2
    text = (run / name).read_text()
    assert whole in text
    (run / name).write_text(text.replace(whole, odd))
    study = bsweep.load(tmp_path)
    assert len(study.runs) == 1
    assert study.skipped.keys() == {run.name}
    assert "left out" in repr(study)
    assert read_ending(RunPaths(run)).status is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings", "num_rounds"),
    [
        ("metrics.jsonl", {}, 0),
        ("summary.json", {}, 0),
        ("meta.json", {}, 0),
        ("metrics.jsonl", diloco("uniform"), 2),
        ("metrics.jsonl", server("layer"), 0),
    ],
)
def test_a_run_with_anything_in_a_file_is_read_or_named(
    name: str, settings: dict[str, Any], num_rounds: int, tmp_path: Path
) -> None:
    write = functools.partial(
        write_run, tmp_path / "s", num_workers=4, settings=settings, num_rounds=num_rounds
    )
    others = [write(local_batch=batch) for batch in (8, 16)]
    run = write(local_batch=32, more=() if settings else MORE)
    fuzz_run(tmp_path, run, run / name, others)


ODD_YAML = [
    b"a: &a [*a]", b"!!python/object/apply:os.system [ls]", b"? [a]\n: b", (b"a: "
    b"2001-13-45"), b"\t",
    b"- " * 5000, b"a: !!binary x", b"a: {? {a: b} : c}", b"<<: 5",
    b"a: 2001-01-01", b"%YAML 9",
]  # fmt: skip


def reason(read: Callable[[], object], *errors: type[Exception]) -> str | None:
    """What a reader says that refuses; None where it does not."""
    try:
        read()
    except errors as error:
        return str(error) or "nothing"
    return None


@NUM_MUTATIONS
def test_anything_as_config_yaml_is_read_or_said(num_mutations: int, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_config(compose("local_batch=8"), path)
    as_yaml = path.read_bytes()
    as_json = json.dumps(read_config(path), default=vars).encode()
    longer = st.binary(max_size=60).map(lambda more: as_yaml + more)

    def read(content: bytes) -> bool:
        path.write_bytes(content)
        why = reason(lambda: read_config(path), ConfigError)
        assert why is None or str(path) in why
        return why is None

    contents = (st.sampled_from(ODD_YAML), damaged(as_json), damaged(as_json), longer)
    fuzz("config.yaml", read, num_mutations, *contents)
    for content in ODD_YAML:
        path.write_bytes(content)
        assert reason(lambda: read_config(path), ConfigError), content


@NUM_MUTATIONS
@pytest.mark.parametrize("policy", ["hybrid", "network_aware"])
def test_anything_as_probe_json_is_read_or_said(
    policy: str, num_mutations: int, tmp_path: Path
) -> None:
    config = compose(*POINT, "num_workers=2", f"allocation={policy}", f"results_dir={tmp_path}")
    write_probe(config, [worker(0.01), worker(0.02)])
    path = probes.path_of(config)
    whole = path.read_bytes()

    def read(content: bytes) -> bool:
        path.write_bytes(content)
        allocation.warnings(config)
        of_predict = reason(lambda: probe_timings(path), ValueError)
        assert of_predict is None or str(path) in of_predict
        return reason(lambda: allocation.fill_in(config), ConfigError) is None

    found = fuzz(f"probe.json for {policy}", read, num_mutations, damaged(whole))
    assert found.keys() == {True, False}


@NUM_MUTATIONS
def test_anything_as_commands_jsonl_is_read_or_named(
    num_mutations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [compose(*TINY, f"seed={seed}", "local_batch=8", "study=s") for seed in range(3)]
    history.record(tmp_path, ["seed=0"], configs[:1])
    history.record(tmp_path, ["-m", "seed=1,2"], configs[1:])
    path, named = tmp_path / "commands.jsonl", list[str]()
    monkeypatch.setattr(history, "_warn", named.append)
    write_run(tmp_path, local_batch=8)

    def read(content: bytes) -> bool:
        path.write_bytes(content)
        named.clear()
        watched = Watched(tmp_path)
        rows, source = watched.rows(), watched.estimated_by
        overview.status_text(tmp_path, rows, source, [])
        overview.plan_text(rows, source)
        json.loads(overview.as_json(rows, source))
        assert all(str(path) in why for why in named)
        return not named

    found = fuzz("commands.jsonl", read, num_mutations, damaged(path.read_bytes()))
    assert found.keys() == {True, False}


@NUM_MUTATIONS
def test_anything_as_complete_json_is_read_or_taken_for_none(
    num_mutations: int, tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path)
    path = save_checkpoint(paths).folder / "complete.json"

    def read(content: bytes) -> bool:
        path.write_bytes(content)
        return bool(checkpoints(paths))

    whole = json.dumps(json.loads(path.read_bytes())).encode()
    assert fuzz("complete.json", read, num_mutations, damaged(whole)).keys() == {True, False}


@pytest.mark.parametrize("name", [b"state", b"caf\xe9 1%.pt", "état=1.pt".encode()])
def test_a_checkpoint_has_files_of_any_name(tmp_path: Path, name: bytes) -> None:
    paths = RunPaths(tmp_path)
    paths.program.mkdir()
    paths.metrics.touch()
    file = paths.program / os.fsdecode(name)
    file.write_text("1")
    sums = {f"../../program/{file.name}": hashlib.sha256(b"1").hexdigest()}
    saved = save_checkpoint(paths)
    saved.complete({**(saved.facts or {}), "sha256": sums})
    checkpoint, damage = soundest(paths)
    assert checkpoint == saved
    assert not damage
    keep_until(paths, checkpoint)
    file.write_text("another")
    assert checkpoint.damage(paths.metrics) == f"{checkpoint.folder / next(iter(sums))} is damaged"


def write(path: Path, *messages: str) -> None:
    with RunLog(path) as log:
        for message in messages:
            log.write(Event(event="warning", message=message))


def messages(path: Path) -> list[str]:
    return [record["message"] for record in read_records(path)[0]]


def test_a_file_torn_at_any_byte_loses_its_last_record_only(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, "a", "b")
    whole = path.read_bytes()
    start_of_last = whole.index(b"\n") + 1
    for cut in range(start_of_last, len(whole)):
        path.write_bytes(whole[:cut])
        _, warning = read_records(path)
        assert messages(path) == ["a"]
        assert (warning is None) == (cut == start_of_last)
        assert warning is None or f" of {cut - start_of_last} byte" in warning
        write(path, "c")
        assert messages(path) == ["a", "c"]


def test_numbers_that_json_has_not_are_refused_by_the_writer(tmp_path: Path) -> None:
    with (
        RunLog(tmp_path / "m.jsonl") as log,
        pytest.raises(ValueError, match=r"not JSON compliant|Out of range"),
    ):
        log.write(Event(event="warning", message=float("nan")))  # type: ignore[arg-type]
    assert read_records(tmp_path / "m.jsonl") == ((), None)


def test_damaged_records_are_never_vouched_for(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths.metrics, "a")
    write_summary(paths, compose("local_batch=8"), "completed", "", 1.0)
    event = json.loads(paths.metrics.read_text())
    for bad in (
        {**event, "message": 5},
        {**event, "schema": 0},
        [event],
        5,
        {},
        {**event, "time": math.nan},
    ):
        paths.metrics.write_text(json.dumps(bad) + "\n")
        with pytest.raises(ValueError, match=r"metrics\.jsonl:1"):
            read_run(paths.folder)
        write_summary(paths, compose("local_batch=8"), "failed", "", 1.0)
        with pytest.raises(ValueError, match=r"metrics\.jsonl:1"):
            read_run(paths.folder)  # though nothing has changed since


@pytest.mark.parametrize("more", [(STEP,), (STEP, CHANGE)])
def test_records_that_are_vouched_for_are_read_as_others_are(
    tmp_path: Path, more: tuple[Record, ...]
) -> None:
    settings = diloco("uniform")
    run = write_run(
        tmp_path, local_batch=8, num_workers=4, settings=settings, num_rounds=2, more=more
    )
    paths = RunPaths(run)
    with paths.metrics.open("a") as file:
        file.write('{"schema": 1, "ty')
    write_summary(paths, compose("local_batch=8"), "timeout", "", 1.0)
    vouched = read_run(run)
    summary = json.loads(paths.summary.read_text())
    del summary["metrics_crc32"]
    write_json(paths.summary, summary)
    plain = read_run(run)
    assert vouched.records == plain.records
    # Tables need the steps only of a run whose batch size changed.
    assert any(record["type"] == "step" for record in plain.records) == (CHANGE in more)
    assert vouched.warnings == plain.warnings != ()


def test_a_summary_of_other_epochs_than_the_records_is_repeated(tmp_path: Path) -> None:
    paths = RunPaths(write_run(tmp_path / "s", local_batch=32))
    assert read_ending(paths).status == "completed"
    write_json(paths.summary, json.loads(paths.summary.read_text()) | {"epochs": 999})
    assert read_ending(paths).status is None


def test_a_run_that_never_started_has_a_summary_with_null_numbers(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_summary(paths, compose("local_batch=8", "num_workers=2"), "failed", "no luck", 3.5)
    summary = json.loads(paths.summary.read_text())
    told = ("status", "message", "wall_seconds", "local_batch", "global_batch", "num_workers")
    assert [summary[key] for key in told] == ["failed", "no luck", 3.5, 8, 16, 2]
    missing = ("train_seconds", "images_per_second", "train_loss", "test_accuracy", "sent_bytes")
    assert [summary[key] for key in missing] == [None] * 5


def test_a_name_that_is_not_utf_8_is_written_so_that_it_can_be_read(tmp_path: Path) -> None:
    name = b"caf\xe9 \xea\xb0\x80".decode("utf-8", "surrogateescape")
    with RunLog(tmp_path / "metrics.jsonl") as log:
        log.write(Event(event="warning", message=name))
    write_json(tmp_path / "meta.json", {"command": name})
    (record,), _ = read_records(tmp_path / "metrics.jsonl")
    meta = read_json(tmp_path / "meta.json")
    assert meta
    assert record["message"] == meta["command"] == r"caf\xe9 가"
