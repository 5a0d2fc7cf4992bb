"""The interactive page of a study within a notebook."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

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

    def _repr_html_(self) -> str:
        figure_of = next(iter(plots.figures(self._study).values()), None)
        picture = ""
        if figure_of:
            figure, buffer = figure_of(self._study), io.BytesIO()
            figure.savefig(buffer, format="png", dpi=100)
            data = base64.b64encode(buffer.getvalue()).decode()
            said = html.escape(plots.caption(figure))
            picture = f'<img alt="{said}" src="data:image/png;base64,{data}">'
        # Where the frame is run, the picture goes. Browsers show no `data:` address of some MB.
        return (
            f'<div>{picture}<iframe title="{html.escape(self._study.name)}" '
            f'srcdoc="{html.escape(self._page)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0" '
            "onload=\"const picture = this.parentNode.querySelector('img'); "
            'if (picture) picture.remove()"></iframe></div>'
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


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
