"""The scripts of research run: over a small grid of known laws, and in synthetic worlds."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from bsweep.config.target import target_of
from tests.support.running import ROOT
from tests.support.synthetic_study import write_run
from tests.support.synthetic_targets import TARGET, Truth, write_target_run

sys.path.insert(0, str(ROOT / "scripts"))
import policies
import stress_predict
import truth

pytestmark = pytest.mark.full

LAW = Truth(minimum_steps=2000, scatter=0.0)
GRID = (32, 128, 512)


def test_rules_are_played_over_a_measured_grid(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for batch in GRID:
            write_target_run(
                tmp_path / "runs", LAW, batch=batch, seed=seed, noise_scale=180.0,
                every_examples=2000,
            )  # fmt: skip
            for workers in (1, 2):
                write_run(
                    tmp_path / "steps", local_batch=batch // workers, num_workers=workers, seed=seed
                )
    truth.main(tmp_path, target_of(accuracy=TARGET))
    rules = pd.read_csv(tmp_path / "rules.csv").groupby("rule")
    assert rules["error"].median()["bsweep recommend"] < 0.3
    assert rules["coverage"].median()["bsweep recommend"] > 0.8
    assert rules["regret"].max()["bsweep recommend"] < 0.05
    assert rules["regret"].max()["the grid with one seed"] == 0
    assert rules["settled_share"].median()["Zeus on the most workers"] < math.inf
    assert len(pd.read_csv(tmp_path / "without_a_batch.csv")) > 0


def test_policies_are_held_against_the_best_fixed_batch(tmp_path: Path) -> None:
    for policy, batch, needed in (("fixed", 32, 1.0), ("fixed", 128, 1.0), ("goodput", 64, 0.5)):
        for seed in (1, 2, 3):
            write_target_run(
                tmp_path / "policies", LAW, batch=batch, seed=seed, needed=needed,
                settings={"batching.name": policy}, every_examples=2000,
            )  # fmt: skip
    policies.main(tmp_path, target_of(accuracy=TARGET))
    table = pd.read_csv(tmp_path / "policies.csv").set_index("rule")
    assert set(table["best_fixed"]) == {"fixed 32"}
    goodput = table.loc["goodput from 64"]
    assert goodput["low"] < goodput["ratio"] < goodput["high"] < 1
    assert goodput["p_holm"] == goodput["p_sooner"] < 0.05, "of one policy"
    assert table["ratio"]["fixed 128"] > 1


def test_predictions_hold_in_worlds_outside_their_assumptions() -> None:
    rows = [stress_predict.study(world, 0) for world in ("law", "B^0.7", "cliff")]
    told = stress_predict.summary(pd.DataFrame(rows))
    assert told["coverage"].min() >= 0.7
    assert told["cost"].max() < 0.2
    assert all(float(str(row["regret"])) <= 0.2 or row["warnings"] for row in rows)
