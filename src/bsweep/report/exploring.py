"""The interactive page of a study within a notebook."""

from __future__ import annotations

import base64
import html
import io
from functools import cached_property
from pathlib import Path

from bsweep import plots
from bsweep.analysis import Study, load
from bsweep.report.document import document
from bsweep.report.interactive import html_of

_HEIGHT = 900  # pixels of the page in a notebook


class Exploration:
    """The interactive page of a study, which notebooks show as the output of a cell.

    Jupyter, VS Code and Colab run it. Where scripts are not run, as on GitHub, a picture stands in
    its place: the study's first figure.
    """

    def __init__(self, study: Study) -> None:
        """Make the page.

        Args:
            study: The study.
        """
        self._study = study
        self._page = html_of(document(study))

    def __repr__(self) -> str:
        return f"The interactive page of {self._study.name}; a notebook shows it."

    @cached_property
    def _picture(self) -> tuple[bytes, str] | None:
        """The study's first figure as PNG, with its caption; None if it has no figure."""
        figure_of = next(iter(plots.figures(self._study).values()), None)
        if figure_of is None:
            return None
        figure, buffer = figure_of(self._study), io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue(), plots.caption(figure)

    def _repr_png_(self) -> bytes | None:
        return self._picture[0] if self._picture else None

    def _repr_html_(self) -> str:
        picture, name = "", html.escape(self._study.name)
        if self._picture:
            data, said = base64.b64encode(self._picture[0]).decode(), html.escape(self._picture[1])
            picture = f'<img alt="{said}" src="data:image/png;base64,{data}">'
        # Where the frame is run, the picture goes. Browsers show no `data:` address of some MB.
        return (
            f'<div>{picture}<iframe title="{name}" '
            f'srcdoc="{html.escape(self._page)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0" '
            "onload=\"const picture = this.parentNode.querySelector('img'); "
            'if (picture) picture.remove()"></iframe></div>'
        )


def explore(study: Study | str | Path) -> Exploration:
    """Return the interactive page of a study, for the output of a notebook's cell.

    Args:
        study: The study or its folder.

    Returns:
        An object that a notebook shows as the page.

    Raises:
        ValueError: See `bsweep.load`.
        FileNotFoundError: See `bsweep.load`.
    """
    return Exploration(study if isinstance(study, Study) else load(study))
