"""`scripts/stress_predict.py`: its table, and what predictions are worth in the nine worlds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.running import ROOT
from tests.support.worlds import WORLDS

sys.path.insert(0, str(ROOT / "scripts"))
import stress_predict


def test_a_study_far_off_counts_with_or_without_a_warning() -> None:
    rows = [(0.0, 0), (0.04, 0), (0.3, 0), (0.5, 1), (np.inf, 1)]
    table = pd.DataFrame(rows, columns=["regret", "warnings"])
    of = stress_predict.summary(table.assign(world="law", coverage=0.9, cost_share=0.1)).loc["law"]
    assert of["within 5 %"] == pytest.approx(0.4)
    assert of["far off"] == 3
    assert of["far off, warned"] == pytest.approx(2 / 3)
    assert of["warned"] == pytest.approx(0.4)


def test_studies_that_have_a_row_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv, played = tmp_path / "studies.csv", []

    def study(world: str, number: int, drift: float) -> dict[str, object]:
        played.append((world, number))
        return {"world": world, "study": number, "regret": 0.5}

    monkeypatch.setattr(stress_predict, "study", study)
    stress_predict.stressed(1, csv)
    table = stress_predict.stressed(2, csv)
    assert len(played) == len(set(played)) == len(table) == 2 * len(WORLDS)
    assert list(table["world"].unique()) == list(WORLDS)
    assert len(pd.read_csv(csv)) == len(table)


def test_worlds_change_what_their_names_say() -> None:
    made = {name: of(1) for name, of in WORLDS.items()}
    law = made["law"]
    assert made["wall"].steps(4096) < 1.05 * law.minimum_steps < law.steps(4096)
    assert made["B^0.7"].steps(16) < law.steps(16)
    assert not made["threshold"].reaches(1024)
    assert made["cliff"].step_seconds(256, 1) > 1.2 * law.step_seconds(256, 1)
    assert made["non-monotone"].step_seconds(64, 4) > 1.3 * law.step_seconds(64, 4)
    assert made["badly tuned rate"].steps(2048) > 1.9 * law.steps(2048)
    assert made["straggler"].typical(4) > made["straggler"].typical(1) > 1


@pytest.mark.nightly
def test_predictions_hold_in_worlds_outside_their_assumptions() -> None:
    studies = stress_predict.stressed(6)
    told = stress_predict.summary(studies)
    print(told.round(3).to_string())
    assert 0.82 <= studies["coverage"].mean() <= 0.97
    assert told["coverage"].min() >= 0.7
    assert (studies["regret"] <= 0.05).mean() >= 0.8
    assert told["within 5 %"].min() >= 0.5
    far = studies[studies["regret"] > 0.2]
    assert len(far) < 4 or (far["warnings"] > 0).mean() >= 0.6
