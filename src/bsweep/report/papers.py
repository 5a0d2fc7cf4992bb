"""The captions of figures for a paper, and LaTeX code that shows each figure with its caption."""

from __future__ import annotations

from bsweep.analysis import Study
from bsweep.plots.styles import Style
from bsweep.report.formats import environment, label, tex


def caption(study: Study, sentences: str) -> str:
    """Return the caption of a figure in a paper: the sentences that say what it shows and how often
    each point was measured, what bars mean, and the hardware.

    Args:
        study: The study.
        sentences: The figure's caption in a report.
    """
    runs = study.runs[study.runs["status"] == "completed"]
    hardware = "; ".join(sorted({*runs["hardware"]} - {""})) or "not recorded"
    # Figures of single curves and of predictions do not count their runs themselves.
    counted = "" if "n = " in sentences else f" n = {len(runs)} completed runs in all."
    return f"{sentences}{counted} Hardware: {hardware}."


def figure(title: str, name: str, said: str, inches: float, style: Style) -> str:
    """Return LaTeX code that shows a figure with its caption and a label.

    Args:
        title: The name of the study, which begins the label.
        name: The name of the figure and of its file, without the suffix.
        said: The caption.
        inches: The width of the figure.
        style: The paper.
    """
    kind = environment("figure", style, inches)
    return "\n".join([
        "% \\usepackage{graphicx}",
        rf"\begin{{{kind}}}",
        r"\centering",
        rf"\includegraphics{{{name}.pdf}}",
        rf"\caption{{{tex(said)}}}\label{{fig:{label(title)}-{name.replace('_', '-')}}}",
        rf"\end{{{kind}}}",
        "",
    ])  # fmt: skip
