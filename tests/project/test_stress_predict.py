"""`scripts/stress_predict.py`: its table, and what predictions are worth in the nine worlds."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from tests.support.running import ROOT

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


@pytest.mark.full
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
