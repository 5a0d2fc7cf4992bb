"""The bench's arithmetic; its figures are for quiet machines."""

from __future__ import annotations

import sys

import pytest

from tests.running import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from benches import against, common

THEN = {
    "cpu": "one",
    "alone": {"resnet18, batch 8": {"plain": [1.0, 1.1, 1.2], "default": [0.5, 0.55, 0.6]}},
    "start": {"cold start": [3.0, 3.1, 3.2]},
}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (THEN, []),
        ({"start": {"cold start": [2.0, 2.1, 2.2]}}, []),
        ({"start": {"cold start": [3.3, 3.2, 3.1]}}, []),  # within the noise
        ({"start": {"cold start": [4.0, 4.1, 4.2]}}, ["start: cold start takes 1.32x as long: 4.1 s, was 3.1"]),
        ({"start": {"another": [9.0]}, "parts": {"x": {"data": 1.0}}}, []),
        # On a machine half as fast: both programs slowed down, and then bsweep's alone.
        ({"alone": {"resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [1.0, 1.1, 1.2]}}}, []),
        (
            {"alone": {"resnet18, batch 8": {"plain": [2.0, 2.2, 2.4], "default": [2.0, 2.2, 2.4]}}},
            ["alone / resnet18, batch 8: default takes 2.00x as long: 1 times plain, was 0.5"],
        ),
    ],
)
def test_what_got_slower_is_told_from_noise_and_other_machines(now: dict[str, object], expected: list[str]) -> None:
    assert against.slower(now, THEN) == expected


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
