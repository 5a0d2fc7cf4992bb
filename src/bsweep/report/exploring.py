"""The interactive page of a study within a notebook: as the output of `explore`, and below what a
study or a prediction says of itself.
"""

from __future__ import annotations

import base64
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
from bsweep.report.page import html_from

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
        self._study, data = study, document(study)
        if prediction is not None:
            data["chosen"] = _chosen(prediction, data["target"])
        self._page = html_of(data)

    def __repr__(self) -> str:
        return f"The interactive page of {self._study.name}; a notebook shows it."

    @cached_property
    def _picture(self) -> tuple[bytes, str] | None:
        """The study's first figure as PNG, with its caption; None if it has no figure."""
        draw = next(iter(plots.figures(self._study).values()), None)
        if draw is None:
            return None
        figure, buffer = draw(self._study), io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue(), plots.caption(figure)

    def _repr_png_(self) -> bytes | None:
        return self._picture[0] if self._picture else None

    def _repr_html_(self) -> str:
        data, caption = self._picture or (b"", "")
        return html_from(
            "notebook.html",
            name=self._study.name,
            page=self._page,
            height=_HEIGHT,
            caption=caption,
            picture=base64.b64encode(data).decode(),
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


def _chosen(prediction: Prediction, target: Mapping[str, Any] | None) -> str:
    """Return a prediction's target and objective as the fragment of a link, as far as a reader can
    choose them on the page.
    """
    chosen = {}
    if target and target["metric"] == prediction.target.metric:
        chosen["target"] = f"{prediction.target.value:.12g}"
    if prediction.objective.minimize != "money":  # its price is not known
        chosen["objective"] = prediction.objective.minimize
    return urlencode(chosen)
