"""`recompute_published.py`: the published numbers, computed anew from their records."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT

sys.path.insert(0, str(ROOT / "results/measured"))
import recompute_published


def test_the_published_tables_follow_from_their_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert recompute_published.main() == 0, capsys.readouterr().out


def test_a_number_that_was_changed_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(recompute_published.MEASURED / "stragglers", tmp_path / "stragglers")
    page = tmp_path / "stragglers/README.md"
    text = page.read_text(encoding="utf-8")
    assert text.count("12.2 ± 0.6 | 0.255") == 1
    page.write_text(text.replace("12.2 ± 0.6 | 0.255", "12.3 ± 0.6 | 0.255"), encoding="utf-8")
    monkeypatch.setattr(recompute_published, "MEASURED", tmp_path)
    monkeypatch.setattr(recompute_published, "PARTS", [recompute_published.of_stragglers])
    assert recompute_published.main() == 1
    assert "stragglers, `allreduce`: 12.3 ± 0.6; anew: 12.24" in capsys.readouterr().out
