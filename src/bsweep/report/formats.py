"""A report's tables as Markdown, LaTeX, HTML and text for a terminal."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bsweep.config.values import did_you_mean
from bsweep.core.words import aligned

_HEADING_WIDTH = 9  # characters in a line of a heading in LaTeX
_MAX_ROWS = 300  # of a table on the page


@dataclass(frozen=True)
class Table:
    caption: str
    cells: pd.DataFrame  # text under headings; empty if the caption says everything
    name: str = ""  # ends the table's label in LaTeX and the name of its file


def as_markdown(title: str, tables: Sequence[Table]) -> str:
    blocks = [f"# {title}\n"]
    for table in tables:
        if table.cells.empty:
            blocks.append(f"{table.caption}\n")
            continue
        lines = [
            f"| {' | '.join(row)} |" for row in _rows(table, lambda cell: cell.replace("|", "\\|"))
        ]
        lines.insert(
            1, f"| {' | '.join('---:' if numbers else ':---' for numbers in _are_numbers(table))} |"
        )
        blocks.append(table.caption + "\n\n" + "\n".join(lines) + "\n")
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
    texts = {}
    for table in tables:
        if table.cells.empty:
            continue
        kept = [name for name in columns if name in table.cells]
        shown = replace(table, cells=table.cells[kept]) if kept else table
        label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
        lines = [
            r"\begin{table}",
            r"\centering\small\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{1ex}",
            rf"\caption{{{tex(title)}: {tex(table.caption)}}}\label{{tab:{label}-{table.name}}}",
            _tabular(shown),
            r"\end{table}",
        ]
        texts[table.name] = "\n".join(lines) + "\n"
    return texts


def _tabular(table: Table) -> str:
    """Return the environment `tabular` of a table."""
    looks = "".join("r" if is_number else "l" for is_number in _are_numbers(table))
    head = map(_tex_heading, map(str, table.cells.columns), looks)
    rows = (map(tex, map(str, row)) for row in table.cells.to_numpy())
    lines = (" & ".join(row) + r" \\" for row in rows)
    return "\n".join([
        rf"\begin{{tabular}}{{{looks}}}",
        r"\hline", " & ".join(head) + r" \\", r"\hline", *lines, r"\hline", r"\end{tabular}",
    ])  # fmt: skip


def as_html(
    table: Table,
    others: str = "The files beside this page have all rows.",
) -> str:
    """Return a table as HTML.

    Args:
        table: The table.
        others: Says where the rows are that are too many for a page.
    """
    if table.cells.empty:
        return f"<p>{html.escape(table.caption)}</p>"
    shown, count = replace(table, cells=table.cells[:_MAX_ROWS]), len(table.cells)
    head, *body = _rows(shown, html.escape)
    looks = ["" if numbers else " class=word" for numbers in _are_numbers(table)]
    heads = "".join(
        f"<th scope=col{look}>{cell}</th>" for look, cell in zip(looks, head, strict=True)
    )
    rows = ""
    for row in body:
        cells = (f"<td{look}>{cell}</td>" for look, cell in zip(looks, row, strict=True))
        rows += f"<tr>{''.join(cells)}</tr>"
    is_text = "message" in table.cells or not any(_are_numbers(table))
    kind = "text" if is_text else "numbers"
    caption = table.caption
    if count > _MAX_ROWS:
        caption += f" The first {_MAX_ROWS} of {count} rows. {others}"
    caption = html.escape(caption)
    table_ = f"<table class={kind}><caption>{caption}</caption><tr>{heads}</tr>{rows}</table>"
    return f"<div class=wide tabindex=0>{table_}</div>"


def as_text(table: Table) -> str:
    lines = aligned(list(_rows(table, str)), left=[0])
    return "\n".join([textwrap.fill(table.caption, 100), "", *lines])


def _rows(table: Table, escape: Callable[[str], str]) -> Iterator[list[str]]:
    """Yield the heading and the rows of a table, escaped for a format."""
    for row in (table.cells.columns, *table.cells.to_numpy()):
        yield [escape(cell if isinstance(cell, str) else str(cell)) for cell in row]


def _are_numbers(table: Table) -> list[bool]:
    """Return a list with True for each column of a table that holds numbers, and False for each
    other column.

    Numbers are aligned on the right.
    """
    return [
        all(
            re.fullmatch(r"-|[\d.,/e+-]+( ± .*|, [\d.,e+-]+| to [\d.,e+-]+)?", text)
            for text in values
        )
        for _, values in table.cells.items()
    ]


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
