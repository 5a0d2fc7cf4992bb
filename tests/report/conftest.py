"""Spares the tests of reports what only one of them looks at."""

from __future__ import annotations

import pytest

from bsweep import plots
from bsweep.analysis.conclusions import recommendations


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw one figure only, where the test is about something else."""
    monkeypatch.setattr(plots, "FIGURES", {"loss_by_epoch": plots.loss_by_epoch})
    monkeypatch.setattr(recommendations, "MOST_ANSWERS", 0)
