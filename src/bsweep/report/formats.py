"""A report's tables as Markdown, LaTeX, HTML and text for a terminal."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bsweep.config.values import did_you_mean

_MOST_ROOMY = 8  # columns of a table in LaTeX that fit in small type
_HEADING_WIDTH = 9  # characters in a line of a heading in LaTeX
_MAX_ROWS = 300  # of a table on the page


@dataclass(frozen=True)
class Table:
    caption: str
    cells: pd.DataFrame  # text under headings; empty if the caption says everything


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


def as_latex(title: str, tables: Sequence[Table], columns: Sequence[str] = ()) -> list[str]:
    """Return each table that has cells as LaTeX code with a label, in small type with long headings
    broken into lines.

    Args:
        title: The name of the study, which begins each caption and label.
        tables: The tables.
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
    texts = []
    for number, table in enumerate((table for table in tables if not table.cells.empty), 1):
        kept = [name for name in columns if name in table.cells]
        shown = replace(table, cells=table.cells[kept]) if kept else table
        are_numbers = _are_numbers(shown)
        _, *body = (" & ".join(row) + r" \\" for row in _rows(shown, _tex))
        head = " & ".join(map(_tex_heading, map(str, shown.cells.columns), are_numbers)) + r" \\"
        size = r"\scriptsize" if len(are_numbers) > _MOST_ROOMY else r"\small"
        label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
        lines = [
            r"\begin{table}",
            rf"\centering{size}\setlength{{\tabcolsep}}{{3pt}}\setlength{{\belowcaptionskip}}{{1ex}}",
            rf"\caption{{{_tex(title)}: {_tex(table.caption)}}}\label{{tab:{label}-{number}}}",
            rf"\begin{{tabular}}{{{''.join('r' if one else 'l' for one in are_numbers)}}}",
            r"\hline", head, r"\hline", *body,
            r"\hline", r"\end{tabular}", r"\end{table}",
        ]  # fmt: skip
        texts.append("\n".join(lines) + "\n")
    return texts


def as_html(table: Table) -> str:
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
    kind = "text" if "message" in table.cells else "numbers"
    left_out = (
        f" The first {_MAX_ROWS} of {count} rows; the files beside this page have all rows."
        if count > _MAX_ROWS
        else ""
    )
    caption = html.escape(f"{table.caption}{left_out}")
    table_ = f"<table class={kind}><caption>{caption}</caption><tr>{heads}</tr>{rows}</table>"
    return f"<div class=wide>{table_}</div>"


def as_text(table: Table) -> str:
    rows = list(_rows(table, str))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join([textwrap.fill(table.caption, 100), "", *lines])


def _rows(table: Table, escape: Callable[[str], str]) -> Iterator[list[str]]:
    """Yield the heading and the rows of a table, escaped for a format."""
    for row in (table.cells.columns, *table.cells.to_numpy()):
        yield [escape(str(cell)) for cell in row]


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


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.)])-(?=\d)", "$-$", escaped)


def _tex_heading(text: str, is_number: bool) -> str:
    lines = textwrap.wrap(text, _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    stacked = r" \\ ".join(map(_tex, lines))
    return rf"\shortstack[{'r' if is_number else 'l'}]{{{stacked}}}"
