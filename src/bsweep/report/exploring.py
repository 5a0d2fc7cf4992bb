"""The interactive page of a study within a notebook: as the output of `explore`, and below what a
study or a prediction says of itself.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bsweep import plots
from bsweep.analysis import Prediction, Study, load
from bsweep.report.document import document
from bsweep.report.interactive import html_of

_HEIGHT = 900  # pixels of the page in a notebook


class Exploration:
    """The interactive page of a study, which notebooks show as the output of a cell.

    Jupyter, VS Code and Colab run it. Where scripts are not run, as on GitHub, a picture stands in
    its place: the study's first figure.
    """

    def __init__(self, study: Study, prediction: Prediction | None = None) -> None:
        """Make the page.

        Args:
            study: The study.
            prediction: A prediction for the study, whose target and objective the page shows first.
        """
        self._study, told = study, document(study)
        if prediction is not None:
            told["chosen"] = _chosen(prediction, told["target"])
        self._page = html_of(told)

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


def as_html(shown: Study | Prediction) -> str:
    """Return what a notebook shows of a study or a prediction: its tables, and the interactive page
    below.

    Args:
        shown: The study, or a prediction for it.

    Returns:
        The HTML of a cell's output.
    """
    page = Exploration(shown) if isinstance(shown, Study) else Exploration(shown.seen.study, shown)
    return shown._repr_html_() + page._repr_html_()


def _chosen(prediction: Prediction, of_study: Mapping[str, Any] | None) -> str:
    """Return a prediction's target and objective as the fragment of a link, as far as a reader can
    choose them on the page.
    """
    chosen = {}
    if of_study and of_study["metric"] == prediction.target.metric:
        chosen["target"] = f"{prediction.target.value:.12g}"
    if prediction.objective.minimize != "money":  # its price is not known
        chosen["objective"] = prediction.objective.minimize
    return urlencode(chosen)
