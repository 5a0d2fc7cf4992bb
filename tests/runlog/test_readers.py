"""Readers take what bsweep writes, and say of everything else what is wrong with it: never a
traceback.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bsweep
from bsweep import allocation, report
from bsweep.analysis.loading import _by_column, tables_of
from bsweep.config.saved import read_config, save_config
from bsweep.config.values import ConfigError
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Numerics, Timed
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import Damaged, Newer
from bsweep.runlog.records import BatchChanged, Continued, Step
from bsweep.runlog.summary import ended
from tests.allocation.test_allocation import POINT, worker, write_probe
from tests.support.running import compose
from tests.support.synthetic_study import diloco, server, write_run

NUM_CASES = 500  # of each kind of file
AT_ONCE = 25  # for hypothesis takes longer over an example than readers over a case
FUZZ = settings(
    max_examples=NUM_CASES // AT_ONCE, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
MOST_KEPT = 30  # runs of odd contents that readers took, which are loaded together in the end

# What stands for a value of JSON text.
ODD = st.sampled_from(
    ["null", "true", "-1", "0", "1.5", "-0.5", "1e400", "-1e400", "1e308", "NaN", "Infinity",
    "9" * 30, "9" * 5000,
     '""', '"x"', '"5"', '"NaN"', '"\\u0000"', '"\\ud800"', "[]", "{}", "[1, 2]", '["a"]', ('{"a": '
     '1}'), '{"name": 5}',
     '[[1], "a"]', "[" * 300 + "]" * 300, "[" * 100_000, '{"a":' * 150 + "1" + "}" * 150, "\x00",
     "oops", "1" * 400]
)  # fmt: skip
RAW = st.sampled_from(
    [b"", b"5", b"[1,2]", b"null", b"\xff\xfe", b"\x00" * 99, b'"a"', b"{}", b"[]", b"{", b"\n\n"]
)
KEYS = st.sampled_from(
    [
        "run_id",
        "status",
        "local_batch",
        "learning_rate",
        "threads",
        "schema",
        "type",
        "a.b",
        "",
        "é",
    ]
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a tree are, inner nodes included."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def with_odd(text: str, draw: st.DrawFn) -> str:
    """JSON text with one value in it replaced, taken away, or added under another name."""
    tree = {"": json.loads(text)}
    place: tuple[Any, ...] = ("", *draw(st.sampled_from(places(tree[""]))))
    *parents, key = place
    inner: Any = tree
    for parent in parents:
        inner = inner[parent]
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if how == "remove" and key != "":
        del inner[key]
    elif how == "add" and isinstance(inner, dict) and key != "":
        inner[draw(KEYS)] = "ODD"
    else:
        inner[key] = "ODD"
    return json.dumps(tree[""]).replace('"ODD"', draw(ODD))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file of JSON lines, or of one JSON value, with something wrong in it."""
    how = draw(
        st.sampled_from(["value", "value", "value", "value", "bytes", "cut", "lines", "raw"])
    )
    lines = whole.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    if how == "value":
        lines[number] = with_odd(lines[number].decode(), draw).encode(errors="replace") + b"\n"
    elif how == "bytes":
        at = draw(st.integers(0, len(whole)))
        return whole[:at] + draw(st.binary(max_size=8)) + whole[at + draw(st.integers(0, 8)) :]
    elif how == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    elif how == "lines":
        lines[number : number + draw(st.integers(0, 2))] = [draw(RAW) + b"\n"] * draw(
            st.integers(0, 2)
        )
    else:
        return draw(RAW)
    return b"".join(lines)


def fuzz(check: Callable[[bytes], None], *contents: st.SearchStrategy[bytes]) -> None:
    """Check many contents of a file."""
    num_checked = 0

    @FUZZ
    @given(st.lists(st.one_of(contents), min_size=AT_ONCE, max_size=AT_ONCE))
    def check_some(cases: list[bytes]) -> None:
        nonlocal num_checked
        for content in cases:
            check(content)
        num_checked += len(cases)

    check_some()
    assert num_checked >= NUM_CASES


def fuzz_run(folder: Path, run: Path, path: Path, others: list[Path]) -> None:
    """Damage a file of a run in many ways, and load all that was taken as one study, beside sound
    `others`.
    """
    whole, kept = path.read_bytes(), folder / "kept"
    if path.suffix == ".json":
        whole = json.dumps(json.loads(whole)).encode()  # in one line
    for other in others:
        shutil.copytree(other, kept / other.name)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        why = reason(lambda: tables_of(run), Damaged, Newer)
        if why is None and content != whole and (number := len(list(kept.iterdir()))) < MOST_KEPT:
            shutil.copytree(run, kept / f"{number:05d}")
        elif why and "Update bsweep" not in why:
            assert str(path) in why
            assert len(why) < 1000
            assert ended(RunPaths(run)) is None, f"the same sweep repeats it: {why}"

    fuzz(read, damaged(whole))
    study = bsweep.load(kept, mix=True)
    assert len(study.runs) == len(list(kept.iterdir())) > len(others) + 10
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
    ("whole", "odd"),
    [
        (
            '"learning_rate": 0.1, "images_per_second": 90.0',
            '"learning_rate": [1], "images_per_second": 90.0',
        ),
        ('"step": 40, ', ""),
        ('"num_steps": 10, ', ""),
        ('"before": 64, "global_batch": 128', '"before": 64, "global_batch": "more"'),
        ('"lr_rule": "per_worker"', '"lr_rule": "cubic"'),
    ],
)
def test_a_damaged_run_is_left_out_by_name_and_repeated(
    whole: str, odd: str, tmp_path: Path
) -> None:
    write_run(tmp_path, local_batch=8)
    metrics = RunPaths(write_run(tmp_path, local_batch=16, more=MORE)).metrics
    assert len(bsweep.load(tmp_path).runs) == 2
    assert whole in metrics.read_text()
    metrics.write_text(metrics.read_text().replace(whole, odd))
    study = bsweep.load(tmp_path)
    assert len(study.runs) == 1
    assert study.skipped.keys() == {metrics.parent.name}
    assert "left out" in repr(study)
    assert ended(RunPaths(metrics.parent)) is None


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_write_figures", lambda *_: {})


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "meta.json"])
def test_a_run_with_anything_in_a_file_is_read_or_named(name: str, tmp_path: Path) -> None:
    others = [write_run(tmp_path / "s", local_batch=batch, num_workers=2) for batch in (8, 16)]
    run = write_run(tmp_path / "s", local_batch=32, num_workers=2, more=MORE)
    fuzz_run(tmp_path, run, run / name, others)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("told", "num_rounds"), [(diloco("uniform"), 2), (server("layer"), 0)])
def test_records_of_rounds_and_servers_are_read_or_named(
    told: dict[str, Any], num_rounds: int, tmp_path: Path
) -> None:
    others = [
        write_run(
            tmp_path / "s", local_batch=8, num_workers=4, settings=told, num_rounds=num_rounds
        )
    ]
    run = write_run(
        tmp_path / "s", local_batch=16, num_workers=4, settings=told, num_rounds=num_rounds
    )
    fuzz_run(tmp_path, run, run / "metrics.jsonl", others)


NAMES = "abcdefghi"
BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n" for last, name in itertools.pairwise(NAMES)
)
ODD_YAML = [
    BOMB.encode(), b"a: &a [*a]", b"!!python/object/apply:os.system [ls]", b"? [a]\n: b", (b"a: "
    b"2001-13-45"), b"\t",
    b"[" * 100_000, b"- " * 5000, b"a: !!binary x", b"a: {? {a: b} : c}", b"<<: 5",
    b"a: 2001-01-01", b"%YAML 9",
]  # fmt: skip


def reason(read: Callable[[], object], *errors: type[Exception]) -> str | None:
    """What a reader says that refuses; None where it does not."""
    try:
        read()
    except errors as error:
        return str(error) or "nothing"
    return None


def test_anything_as_config_yaml_is_read_or_said(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_config(compose("local_batch=8"), path)
    as_yaml, as_json = (
        path.read_bytes(),
        json.dumps(json.loads(json.dumps(read_config(path), default=vars))).encode(),
    )
    longer = st.binary(max_size=60).map(lambda more: as_yaml + more)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        reason(lambda: read_config(path), ConfigError)

    fuzz(read, st.sampled_from(ODD_YAML), damaged(as_json), damaged(as_json), longer)
    for content in ODD_YAML:
        path.write_bytes(content)
        assert reason(lambda: read_config(path), ConfigError), content


def test_anything_as_calibration_json_is_read_or_taken_for_none(tmp_path: Path) -> None:
    path, config = tmp_path / "calibration.json", compose("local_batch=8")
    timed = (Timed(Numerics("fp32", False), (0.1, 0.3)), Timed(Numerics("bf16", True), (0.2, 0.2)))
    calibration_file.write_calibration(
        path, calibration_file.Calibration(1, (8, 64), measured_batches=(8, 64), timed=timed)
    )
    whole, found = json.dumps(json.loads(path.read_text())).encode(), []

    def read(content: bytes) -> None:
        path.write_bytes(content)
        found.append(calibration_file.read_calibration(path))
        if found[-1]:
            calibration_file.numerics_for(config, found[-1], Numerics("fp32", False))
            found[-1].says(config)

    fuzz(read, damaged(whole))
    assert None in found
    assert any(found)


@pytest.mark.parametrize("policy", ["hybrid", "network_aware"])
def test_anything_as_probe_json_is_read_or_said(policy: str, tmp_path: Path) -> None:
    config = compose(*POINT, "num_workers=2", f"allocation={policy}", f"results_dir={tmp_path}")
    write_probe(config, [worker(0.01), worker(0.02)])
    path = allocation.probe_path(config)
    whole, ends = path.read_bytes(), []

    def read(content: bytes) -> None:
        path.write_bytes(content)
        ends.append(reason(lambda: allocation.fill_in(config), ConfigError) is None)
        allocation.doubts(config)

    fuzz(read, damaged(whole))
    assert True in ends
    assert False in ends


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"a": 1, "b": 2}, {"b": 4, "a": 3}], {"a": (1, 3), "b": (2, 4)}),
        (
            [{"a": 1, "b": 2}, {"a": 3, "c": 4}],
            {"a": (1, 3), "b": (2, None), "c": (None, 4)},
        ),  # as many, but others
        ([{"a": 1}, {"a": 3, "b": 4}], {"a": (1, 3), "b": (None, 4)}),
        ([{"a": 1}, {"a": 2}], {"a": (1, 2)}),
        ([{}], {}),
        ([], {}),
    ],
)
def test_rows_become_columns_by_their_names(
    rows: list[dict[str, int]], expected: dict[str, tuple[int, ...]]
) -> None:
    assert _by_column(rows) == expected
