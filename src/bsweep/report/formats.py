"""A report's tables as Markdown, LaTeX and text for a terminal; the pages' template has them as
HTML.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bsweep.analysis.study.numbers import spread
from bsweep.config.values import did_you_mean
from bsweep.core.words import aligned

_HEADING_WIDTH = 9  # characters in a line of a heading in LaTeX


@dataclass(frozen=True)
class Table:
    """A table of text under headings; one without cells is a caption that says everything.

    `name` ends the table's label in LaTeX and the name of its file.
    """

    caption: str
    cells: pd.DataFrame
    name: str = ""

    @property
    def rows(self) -> list[list[str]]:
        """The headings, and then the rows."""
        return [[*map(str, row)] for row in (self.cells.columns, *self.cells.to_numpy())]

    @property
    def are_numbers(self) -> list[bool]:
        """For each column True if it holds numbers, which are aligned on the right."""
        columns = self.cells.map(str).items()
        return [bool(values.str.fullmatch(_NUMBERS).all()) for _, values in columns]


_NUMBERS = r"-|[\d.,/e+-]+( ± .*|, [\d.,e+-]+| to [\d.,e+-]+)?"


def spreads(means: pd.DataFrame, name: str, decimals: int | None = None) -> list[str]:
    """Return the means of a column as text, with their intervals or the values of two seeds."""
    columns = (means[name], means[f"{name}_ci95"], means[f"{name}_points"])
    return [spread(*row, decimals) for row in zip(*columns, strict=True)]


def as_markdown(title: str, tables: Sequence[Table]) -> str:
    blocks = [f"# {title}\n"]
    for table in tables:
        blocks.append(f"{table.caption}\n")
        if len(table.cells):
            looks = ["---:" if is_number else ":---" for is_number in table.are_numbers]
            head, *body = ([cell.replace("|", "\\|") for cell in row] for row in table.rows)
            lines = [f"| {' | '.join(row)} |" for row in (head, looks, *body)]
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def as_latex(title: str, tables: Sequence[Table], columns: Sequence[str] = ()) -> dict[str, str]:
    """Return each table that has cells as LaTeX code with a label, by the table's name.

    Long headings are broken into lines.

    Args:
        title: The name of the study, which begins each caption and label.
        tables: The tables, each with another name.
        columns: The headings of the columns to keep, in order. A table with none of them keeps all.

    Raises:
        ValueError: If one of these headings is in no table.
    """
    headings = dict.fromkeys(str(name) for table in tables for name in table.cells)
    for name in columns:
        if name not in headings:
            raise ValueError(
                f"--columns {name}: no table has this heading."
                f"{did_you_mean(name, [*headings])} The headings: {', '.join(headings)}"
            )
    label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
    texts = {}
    for table in tables:
        if len(table.cells):
            kept = [name for name in columns if name in table.cells]
            shown = replace(table, cells=table.cells[kept]) if kept else table
            caption = rf"\caption{{{tex(title)}: {tex(table.caption)}}}"
            lines = [
                r"\begin{table}",
                r"\centering\small\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{1ex}",
                rf"{caption}\label{{tab:{label}-{table.name}}}",
                f"{_tabular(shown)}\\end{{table}}\n",
            ]
            texts[table.name] = "\n".join(lines)
    return texts


def _tabular(table: Table) -> str:
    """Return the environment `tabular` of a table, whose rules need no package."""
    looks = ["r" if is_number else "l" for is_number in table.are_numbers]
    heads = [*map(_tex_heading, map(str, table.cells), looks)]
    texts = table.cells.map(lambda cell: tex(str(cell))).set_axis(heads, axis="columns")
    code = texts.to_latex(index=False, escape=False, column_format="".join(looks))
    return re.sub(r"\\(top|mid|bottom)rule", r"\\hline", code)


def as_text(table: Table) -> str:
    lines = aligned(table.rows, left=[0])
    return "\n".join([textwrap.fill(table.caption, 100), "", *lines])


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "²": r"$^2$",
    "\N{MINUS SIGN}": "$-$", "\N{EN DASH}": "--",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def tex(text: str) -> str:
    """Return a text as LaTeX code that shows it."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    # After a line break, LaTeX takes [ and * for arguments of the break.
    return re.sub(r"^(?=[\[*])", "{}", re.sub(r"(?<![\w.)])-(?=\d)", "$-$", escaped))


def _tex_heading(text: str, look: str) -> str:
    lines = textwrap.wrap(text, _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    stacked = r" \\ ".join(map(tex, lines))
    return rf"\shortstack[{look}]{{{stacked}}}"
