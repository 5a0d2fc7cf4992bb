"""Spares the tests of reports what only one of them looks at."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bsweep import plots


@pytest.fixture(autouse=True)
def _figures_are_no_pdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports write each figure as the SVG and PNG that their page may show, and as an empty
    PDF, which takes a quarter of a report.

    A report of a module's fixture has all files: it was written before this.
    """
    plain = plots.save

    def save(figure: Figure, path: Path) -> None:
        if path.suffix == ".pdf":
            path.touch()
        else:
            plain(figure, path)

    monkeypatch.setattr(plots, "save", save)
