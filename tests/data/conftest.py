"""A cache of its own for each test of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep import data


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    data._prepared.cache_clear()
