"""The bench's arithmetic; its figures are for quiet machines."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import report
from bsweep.runlog.files import RunPaths
from tests.support import running
from tests.support.running import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench
from benches import against, alone, common, split, together

THEN = {
    "cpu": "one",
    "cores": 2,
    "alone": {"resnet18, batch 8": {"plain": [1.0, 1.1, 1.2], "default": [0.5, 0.55, 0.6]}},
    "start": {"cold start": [3.0, 3.1, 3.2]},
    "strategies": {"step": {"ddp": [0.1, 0.1], "allreduce": [0.1, 0.1]}},
    "together": {
        "steps": {"a": {"DDP": [0.1, 0.1], "Horovod's wrapper": [0.1, 0.1], "horovod": [0.1, 0.1]}}
    },
    "points": {"exponent of points": [-0.276], "steep": {"exponent of runs": [1.3]}},
    "memory": {"peak_bytes": 500_000_000},
    "parts": {"x": {"data": 0.001, "backward": 0.05, "step": 0.1}},
}
NUM_VALUES = 11  # of THEN, without references and hardware


@pytest.mark.parametrize(
    ("now", "expected", "num_compared"),
    [
        (THEN, [], NUM_VALUES),
        ({"start": {"cold start": [2.0, 2.1, 2.2]}}, [], 1),
        ({"start": {"cold start": [3.3, 3.2, 3.1]}}, [], 1),  # within the noise
        (
            {"start": {"cold start": [4.0, 4.1, 4.2]}},
            ["start: cold start takes 1.32x as long: 4.1 s, was 3.1"],
            1,
        ),
        ({"cores": 9, "start": {"another": [9.0]}, "parts": {"y": {"data": 1.0}}}, [], 0),
        # On a machine half as fast: both programs slowed down, and then bsweep's alone.
        (
            {
                "alone": {
                    "resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [1.0, 1.1, 1.2]}
                }
            },
            [],
            1,
        ),
        (
            {
                "alone": {
                    "resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [2.0, 2.2, 2.4]}
                }
            },
            ["alone / resnet18, batch 8: default takes 2.00x as long: 1 times plain, was 0.5"],
            1,
        ),
        # The strategy ddp is bsweep's: nothing that slows them all is hidden by it.
        (
            {"strategies": {"step": {"ddp": [0.2, 0.2], "allreduce": [0.2, 0.2]}}},
            [
                "strategies / step: allreduce takes 2.00x as long: 0.2 s, was 0.1",
                "strategies / step: ddp takes 2.00x as long: 0.2 s, was 0.1",
            ],
            2,
        ),
        # Horovod's own optimizer is not bsweep's.
        (
            {
                "together": {
                    "steps": {"a": {"DDP": [0.1], "Horovod's wrapper": [0.9], "horovod": [0.1]}}
                }
            },
            [],
            1,
        ),
        # An exponent is no time. Below 1 it is as it should be.
        ({"points": {"exponent of points": [0.9], "steep": {"exponent of runs": [1.35]}}}, [], 2),
        (
            {"points": {"exponent of points": [1.2]}},
            ["points: exponent of points is 1.20, was -0.28"],
            1,
        ),
        ({"memory": {"peak_bytes": 500_000_001}}, [], 1),
        (
            {"memory": {"peak_bytes": 600_000_000}},
            ["memory: peak_bytes is 1.20x as much: 600 MB, was 500"],
            1,
        ),
        # Three times as long for the data are 2 % of a step.
        ({"parts": {"x": {"data": 0.003, "backward": 0.05, "step": 0.102}}}, [], 3),
        (
            {"parts": {"x": {"data": 0.001, "backward": 0.065, "step": 0.105}}},
            ["parts / x: backward takes 1.30x as long: 0.065 s, was 0.05"],
            3,
        ),
    ],
)
def test_what_got_slower_is_told_from_noise_and_other_machines(
    now: dict[str, object], expected: list[str], num_compared: int
) -> None:
    assert against.compared(now, THEN) == (expected, num_compared)


def test_seconds_of_other_hardware_are_compared_by_references_alone() -> None:
    slow = {
        "start": {"cold start": [9.0]},
        "alone": {"resnet18, batch 8": {"plain": [1.0], "default": [1.0]}},
    }
    lines, num_compared = against.compared(slow, THEN, same_hardware=False)
    assert num_compared == 1
    assert [line.partition(":")[0] for line in lines] == ["alone / resnet18, batch 8"]
    both = {"strategies": {"step": {"ddp": [0.2, 0.2], "allreduce": [0.2, 0.2]}}}
    assert against.compared(both, THEN, same_hardware=False) == ([], 1)
    one = {"strategies": {"step": {"ddp": [0.2, 0.2], "allreduce": [0.4, 0.4]}}}
    said = "strategies / step: allreduce takes 2.00x as long: 2 times ddp, was 1"
    assert against.compared(one, THEN, same_hardware=False) == ([said], 1)


def test_a_file_with_nothing_in_common_is_not_called_as_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hardware = {"cpu": "one", "cores": 2, "gpus": []}
    file, then = Path("then.json"), {**THEN, "gpus": []}
    assert bench.told_against(file, then, {"start": {"another": [9.0]}}, hardware) == 2
    assert bench.told_against(file, then, {"start": {"cold start": [3.1]}}, hardware) == 0
    assert bench.told_against(file, then, {"start": {"cold start": [9.1]}}, hardware) == 1
    said = capsys.readouterr().out
    assert said.startswith("nothing was compared")
    assert "compared with then.json: none of 1 values got slower or larger" in said


def test_what_was_measured_outlives_a_bench_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(bench, "bench_memory", lambda: {"peak_bytes": 5})
    monkeypatch.setattr(bench, "bench_points", fail)
    file = tmp_path / "some.json"
    file.write_text("of an earlier time")
    given = argparse.Namespace(
        json=file, against=None, names=["points", "memory"], quick=True, models=None, batches=None
    )
    with pytest.raises(MemoryError):
        bench.main(given)
    assert file.read_text() == "of an earlier time"
    written = json.loads((tmp_path / "some.part.json").read_text())
    assert written["memory"] == {"peak_bytes": 5}
    assert "points" not in written
    assert written["cores"] > 0
    given.names = ["memory"]
    assert bench.main(given) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]
    assert json.loads(file.read_text())["memory"] == {"peak_bytes": 5}


def test_programs_take_turns_and_are_compared_by_ratios_of_medians() -> None:
    turns: list[str] = []
    programs = {"plain": lambda: turns.append("plain"), "ours": lambda: turns.append("ours")}
    seconds = common.alternating(programs, rounds=2, calls=2, before=lambda: turns.append("|"))
    assert turns == ["|", "plain", "plain", "|", "ours", "ours"] * 3
    assert [len(each) for each in seconds.values()] == [
        2,
        2,
    ]
    said = common.compared(
        {"plain": [0.1, 0.2, 0.3], "ours": [0.1, 0.1, 0.1]}, "plain", {"ours": 1.15}
    )
    assert said == "plain 200 ms; ours 2.00x (1.00-3.00, target 1.15x)"


SHAPE = ("data.num_train=512", "data.num_test=16", "data.shape=[3,8,8]")
MODEL = ("model=tiny_cnn", "data.num_train=256", "data.num_test=16")
TINY_GRID = alone.Grid(
    (alone.Case("tiny", ("model=tiny_cnn", *SHAPE), {}),), batches=(4,), rounds=2
)


AS_SCRIPT = """#!/bin/sh
while [ "${{1%bench.py}}" = "$1" ]; do shift; done
exec {python} -c 'import runpy, sys
sys.argv, sys.path[:0] = sys.argv[1:], ["{scripts}"]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""  # forks take modules and code alone


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands and their workers in forks, one epoch for all strategies, and a process that keeps
    its threads.
    """

    def run(command: list[str], folder: str) -> None:
        words = [word for word in command[1:] if not word.startswith("launch.")]
        ended = running.bsweep(
            *words, "launch=inline", "strategy=single", "data=synthetic", *SHAPE, cwd=Path(folder)
        )
        assert not ended.returncode, ended.stderr
        # As if it had been launched by itself.
        for path in list(Path(folder).glob("results/bench/b8*"))[:1]:
            RunPaths(path).launcher_log.touch()

    @functools.cache
    def one_epoch() -> dict[str, Any]:
        found = of_strategy("num_workers=1", "model=tiny_cnn")
        return {**found, "exchange_seconds": 0.1}

    def forked(name: str) -> str:
        return str(getattr(running.forks(), name))

    of_strategy, own_tools = bench.one_epoch, Path(sys.executable).parent
    monkeypatch.setattr(split, "tool", lambda name: str(own_tools / name))
    python = tmp_path / "python"
    python.write_text(AS_SCRIPT.format(python=forked("python"), scripts=ROOT / "scripts"))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(bench, "tool", forked)
    monkeypatch.setattr(together, "tool", forked)
    monkeypatch.setattr(bench, "run_command", run)
    monkeypatch.setattr(bench, "one_epoch", lambda *overrides: one_epoch())
    monkeypatch.setattr(report, "write", lambda study: None)  # has tests of its own
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory", MODEL),
        ("alone", (TINY_GRID,)),
        ("accumulation", (TINY_GRID,)),
        ("parts", (TINY_GRID,)),
        ("together", (TINY_GRID,)),
        ("noise", (TINY_GRID,)),
        pytest.param("split", (2,), marks=pytest.mark.nightly),
        ("step", MODEL),
        ("exchange", ("model=tiny_cnn", *SHAPE)),
        ("strategies", (1,)),
        ("start", (1, ("local_batch=8,16",))),
        ("points", ((2, 3), 80, 1)),
        ("analysis", ((1, 2, 3), 1)),
    ],
)
@pytest.mark.usefixtures("cheap")
def test_each_bench_runs_and_what_takes_twice_as_long_is_named(
    name: str, arguments: tuple[Any, ...]
) -> None:
    found = {name: getattr(bench, f"bench_{name}")(*arguments)}
    once = steady(json.loads(json.dumps(found)))
    assert against.compared(found, found)[1] > 0
    slower, _ = against.compared(steady(found, 2), once)
    assert {line.partition(": ")[0] for line in slower} == {
        " / ".join(case) for case, _ in against.cases(found)
    }


def steady(found: dict[str, Any], factor: int = 1) -> dict[str, Any]:
    """The same without noise, and so many times as much of all that is bsweep's."""
    return {
        name: _steady(value, 1 if name in against.NOT_OURS else factor)
        for name, value in found.items()
    }


def _steady(value: Any, factor: int) -> Any:
    if isinstance(value, dict):
        return steady(value, factor)
    return [factor * statistics.median(value)] if isinstance(value, list) else factor * value


def test_all_benches_have_a_cheap_case_and_a_grid_is_chosen_by_words() -> None:
    (mark,) = (
        m
        for m in test_each_bench_runs_and_what_takes_twice_as_long_is_named.pytestmark
        if m.name == "parametrize"
    )
    assert [getattr(case, "values", case)[0] for case in mark.args[1]] == [*bench.NAMES]
    assert [case.name for case in bench.models_of("vgg16,resnet18_cifar")] == [
        "resnet18 cifar",
        "vgg16",
    ]
    assert bench.batches_of("64,8") == (8, 64)
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"vgg: unknown\. Known: resnet18_imagenet, "
    ):
        bench.models_of("vgg")


def test_the_plain_loop_runs_as_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    seen: list[bool] = []
    bench.with_tf32(lambda: seen.append(torch.backends.cudnn.allow_tf32))()
    assert seen == [True]
    assert not torch.backends.cudnn.allow_tf32
