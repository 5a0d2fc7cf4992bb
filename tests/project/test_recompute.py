"""`recompute_published.py`: the published numbers, computed anew from their records."""

from __future__ import annotations

import sys

import pytest

from tests.support.running import ROOT

sys.path.insert(0, str(ROOT / "results/measured"))
import recompute_published


def test_the_published_tables_follow_from_their_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert recompute_published.main() == 0, capsys.readouterr().out
