"""What the tests of this room share."""

from __future__ import annotations

import pytest

from bsweep.analysis.prediction import fitting


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a prediction draw 400 times, which is a tenth of its time. Fixtures that tests of a file
    share and the tests of the statistics draw as often as a user's.
    """
    monkeypatch.setattr(fitting.fit, "__defaults__", (400,))
