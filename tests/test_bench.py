"""The bench's arithmetic; its figures are for quiet machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.running import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench
from benches import against, common

THEN = {
    "cpu": "one",
    "cores": 2,
    "alone": {"resnet18, batch 8": {"plain": [1.0, 1.1, 1.2], "default": [0.5, 0.55, 0.6]}},
    "start": {"cold start": [3.0, 3.1, 3.2]},
    "strategies": {"step": {"ddp": [0.1, 0.1], "allreduce": [0.1, 0.1]}},
    "together": {"steps": {"a": {"DDP": [0.1, 0.1], "Horovod's wrapper": [0.1, 0.1], "horovod": [0.1, 0.1]}}},
    "points": {"exponent of points": [-0.276], "steep": {"exponent of runs": [1.3]}},
    "memory": {"peak_bytes": 500_000_000},
    "parts": {"x": {"data": 0.001, "backward": 0.05, "step": 0.1}},
}
NUM_VALUES = 10  # of THEN, without references and hardware


@pytest.mark.parametrize(
    ("now", "expected", "num_compared"),
    [
        (THEN, [], NUM_VALUES),
        ({"start": {"cold start": [2.0, 2.1, 2.2]}}, [], 1),
        ({"start": {"cold start": [3.3, 3.2, 3.1]}}, [], 1),  # within the noise
        ({"start": {"cold start": [4.0, 4.1, 4.2]}}, ["start: cold start takes 1.32x as long: 4.1 s, was 3.1"], 1),
        ({"cores": 9, "start": {"another": [9.0]}, "parts": {"y": {"data": 1.0}}}, [], 0),
        # On a machine half as fast: both programs slowed down, and then bsweep's alone.
        ({"alone": {"resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [1.0, 1.1, 1.2]}}}, [], 1),
        (
            {"alone": {"resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [2.0, 2.2, 2.4]}}},
            ["alone / resnet18, batch 8: default takes 2.00x as long: 1 times plain, was 0.5"],
            1,
        ),
        ({"strategies": {"step": {"ddp": [0.2, 0.2], "allreduce": [0.2, 0.2]}}}, [], 1),
        (
            {"strategies": {"step": {"ddp": [0.1, 0.1], "allreduce": [0.2, 0.2]}}},
            ["strategies / step: allreduce takes 2.00x as long: 2 times ddp, was 1"],
            1,
        ),
        # Horovod's own optimizer is not bsweep's.
        ({"together": {"steps": {"a": {"DDP": [0.1], "Horovod's wrapper": [0.9], "horovod": [0.1]}}}}, [], 1),
        # An exponent is no time. Below 1 it is as it should be.
        ({"points": {"exponent of points": [0.9], "steep": {"exponent of runs": [1.35]}}}, [], 2),
        ({"points": {"exponent of points": [1.2]}}, ["points: exponent of points is 1.20, was -0.28"], 1),
        ({"memory": {"peak_bytes": 500_000_001}}, [], 1),
        ({"memory": {"peak_bytes": 600_000_000}}, ["memory: peak_bytes is 1.20x as much: 600 MB, was 500"], 1),
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
    slow = {"start": {"cold start": [9.0]}, "alone": {"resnet18, batch 8": {"plain": [1.0], "default": [1.0]}}}
    lines, num_compared = against.compared(slow, THEN, same_hardware=False)
    assert num_compared == 1 and [line.partition(":")[0] for line in lines] == ["alone / resnet18, batch 8"]


def test_a_file_with_nothing_in_common_is_not_called_as_fast(capsys: pytest.CaptureFixture[str]) -> None:
    hardware = {"cpu": "one", "cores": 2, "gpus": []}
    file, then = Path("then.json"), {**THEN, "gpus": []}
    assert bench.told_against(file, then, {"start": {"another": [9.0]}}, hardware) == 2
    assert bench.told_against(file, then, {"start": {"cold start": [3.1]}}, hardware) == 0
    assert bench.told_against(file, then, {"start": {"cold start": [9.1]}}, hardware) == 1
    said = capsys.readouterr().out
    assert (
        said.startswith("nothing was compared")
        and "compared with then.json: none of 1 values got slower or larger" in said
    )


def test_programs_take_turns_and_are_compared_by_ratios_of_medians() -> None:
    turns: list[str] = []
    programs = {"plain": lambda: turns.append("plain"), "ours": lambda: turns.append("ours")}
    seconds = common.alternating(programs, rounds=2, calls=2, before=lambda: turns.append("|"))
    assert turns == ["|", "plain", "plain", "|", "ours", "ours"] * 3 and [len(each) for each in seconds.values()] == [
        2,
        2,
    ]
    said = common.compared({"plain": [0.1, 0.2, 0.3], "ours": [0.1, 0.1, 0.1]}, "plain", {"ours": 1.15})
    assert said == "plain 200 ms; ours 2.00x (1.00-3.00, target 1.15x)"
