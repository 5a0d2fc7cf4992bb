"""The looks of figures for papers: the widths, fonts and sizes of type that a venue asks for, as
`tueplots` knows them.

No style needs an installation of LaTeX. Where no font of the venue is installed, figures have
STIX, which resembles Times and comes with matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.font_manager import get_font_names

from bsweep.config.values import did_you_mean

STYLES = ("neurips", "icml", "ieee", "thesis")
_SPARE_FONTS = ("STIXGeneral", "DejaVu Sans")
_IEEE_INCHES = (7.16, 3.5)  # \textwidth and \columnwidth of the class IEEEtran: 516 and 252 points
_POINTS = 72.27  # of LaTeX, in an inch


@dataclass(frozen=True)
class Style:
    """The look of figures: its name, the width of a page's text and of one of its columns, in
    inches, and further settings of matplotlib. `column` is None where the text has one column.
    """

    name: str
    width: float
    column: float | None
    settings: Mapping[str, Any]

    @property
    def points(self) -> float:
        """The width of the text in LaTeX's points."""
        return self.width * _POINTS


def style(name: str) -> Style:
    """Return the look of figures for a venue.

    Args:
        name: `neurips`, `icml`, `ieee` or `thesis`.

    Raises:
        ValueError: If there is no such style.
    """
    from tueplots import bundles, figsizes, fonts, fontsizes

    if name == "neurips":
        return _of(name, bundles.neurips2024(usetex=False))
    if name == "icml":
        half, full = (bundles.icml2024(usetex=False, column=one) for one in ("half", "full"))
        return _of(name, full, half["figure.figsize"][0])
    if name == "ieee":  # which has fonts and sizes of type as ICML has
        width, column = _IEEE_INCHES
        size = {"figure.figsize": (width, column)}
        return _of(name, {**fonts.icml2024(), **fontsizes.icml2024(), **size}, column)
    if name == "thesis":  # of text in 11 points on A4 with margins of 2.5 cm
        larger_type = fontsizes.jmlr2001()
        return _of(name, {**fonts.neurips2024(), **larger_type, **figsizes.tue_ai_thesis()})
    raise ValueError(
        f"style {name}: unknown.{did_you_mean(name, STYLES)} Known: {', '.join(STYLES)}."
    )


def _of(name: str, bundle: Mapping[str, Any], column: float | None = None) -> Style:
    installed = {*get_font_names()}
    # Names of fonts, and not "serif", which matplotlib would look up when it writes the file.
    family = [font for font in (*bundle["font.serif"], *_SPARE_FONTS) if font in installed]
    kept = {
        key: value
        for key, value in bundle.items()
        if key.startswith(("font.", "axes.", "xtick.", "ytick.", "legend."))
    }
    small = kept["legend.fontsize"]
    more = {"font.family": family, "legend.title_fontsize": small, "mathtext.fontset": "stix"}
    return Style(name, bundle["figure.figsize"][0], column, {**kept, **more})
