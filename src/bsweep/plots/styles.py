"""The looks of figures for papers: the widths, fonts and sizes of type that a venue asks for, as
`tueplots` knows them.

No style needs an installation of LaTeX. Where no font of the venue is installed, figures have
STIX, which resembles Times and comes with matplotlib.
"""

from __future__ import annotations

from typing import Any

from matplotlib.font_manager import get_font_names

from bsweep.config.values import did_you_mean

STYLES = ("neurips", "icml", "ieee", "thesis")
_SPARE_FONTS = ("STIXGeneral", "DejaVu Sans")
_IEEE_INCHES = 7.16  # \textwidth of the class IEEEtran: 516 points


def settings_of(style: str) -> dict[Any, Any]:
    """Return the settings of matplotlib for the figures of a venue, as wide as its text.

    Args:
        style: `neurips`, `icml`, `ieee` or `thesis`.

    Raises:
        ValueError: If there is no such style.
    """
    from tueplots import bundles, figsizes, fonts, fontsizes

    if style == "neurips":
        bundle = bundles.neurips2024(usetex=False)
    elif style == "icml":
        bundle = bundles.icml2024(usetex=False, column="full")
    elif style == "ieee":  # which has fonts and sizes of type as ICML has
        size = {"figure.figsize": (_IEEE_INCHES, _IEEE_INCHES)}
        bundle = {**fonts.icml2024(), **fontsizes.icml2024(), **size}
    elif style == "thesis":  # of text in 11 points on A4 with margins of 2.5 cm
        bundle = {**fonts.neurips2024(), **fontsizes.jmlr2001(), **figsizes.tue_ai_thesis()}
    else:
        raise ValueError(
            f"style {style}: unknown.{did_you_mean(style, STYLES)} Known: {', '.join(STYLES)}."
        )
    installed = {*get_font_names()}
    # Names of fonts, and not "serif", which matplotlib would look up when it writes the file.
    family = [font for font in (*bundle["font.serif"], *_SPARE_FONTS) if font in installed]
    kept = ("figure.figsize", "font.", "axes.", "xtick.", "ytick.", "legend.")
    settings = {key: value for key, value in bundle.items() if key.startswith(kept)}
    small = settings["legend.fontsize"]
    more = {"font.family": family, "legend.title_fontsize": small, "mathtext.fontset": "stix"}
    return {**settings, **more}
