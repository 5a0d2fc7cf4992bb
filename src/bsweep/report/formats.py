"""A report's tables as Markdown, LaTeX, HTML and text for a terminal."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bsweep.config.values import did_you_mean

_HEADING_WIDTH = 9  # characters in a line of a heading in LaTeX
_TEXT_WIDTH = 345  # points of a line of LaTeX's class article
_COLUMN_SEP = 6  # points between two columns
# How a table in LaTeX becomes narrower: its type, the points of a digit in it, and the characters
# in a line of a cell of words.
_SPACES = r"\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{1ex}"
_SIZES = ((r"\small", 4.8, 26), (r"\scriptsize", 4.2, 26), (r"\scriptsize", 4.2, 14))
_MAX_ROWS = 300  # of a table on the page


@dataclass(frozen=True)
class Table:
    caption: str
    cells: pd.DataFrame  # text under headings; empty if the caption says everything
    name: str = ""  # ends the table's label in LaTeX and the name of its file
    num_keys: int = 1  # the first columns, which name the row


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

    Long headings, and words in a wide table, are broken into lines. If a table is still wider than
    the text of the class article, it continues in further tables with the same number, which all
    begin with the columns that name the rows.

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
        shown = replace(table, cells=table.cells[kept], num_keys=1) if kept else table
        size, letters, blocks = _narrow(shown)
        label = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")
        named = rf"\label{{tab:{label}-{table.name}}}"
        captions = [
            rf"\caption{{{tex(title)}: {tex(table.caption)}}}" + named,
            *[r"\addtocounter{table}{-1}\caption{Continued.}"] * (len(blocks) - 1),
        ]
        lines = [
            line
            for caption, block in zip(captions, blocks, strict=True)
            for line in (
                r"\begin{table}",
                rf"\centering{size}" + _SPACES,
                caption,
                _tabular(replace(shown, cells=block), letters),
                r"\end{table}",
            )
        ]
        texts[table.name] = "\n".join(lines) + "\n"
    return texts


def _narrow(table: Table) -> tuple[str, int, list[pd.DataFrame]]:
    """Return how a table fits into the width of a text: its type in LaTeX, the characters in a line
    of a cell of words, and the cells of its parts.

    The widths of columns are estimated from their characters.
    """
    for size, points, letters in _SIZES:
        if sum(_widths(table, points, letters)) <= _TEXT_WIDTH:
            return size, letters, [table.cells]
    size, _, letters = _SIZES[1]
    widths = _widths(table, *_SIZES[1][1:])
    room = _TEXT_WIDTH - sum(widths[: table.num_keys])
    blocks: list[list[int]] = [[]]
    for place in range(table.num_keys, len(widths)):
        if blocks[-1] and sum(widths[one] for one in [*blocks[-1], place]) > room:
            blocks.append([])
        blocks[-1].append(place)
    keys = list(range(table.num_keys))
    return size, letters, [table.cells.iloc[:, keys + block] for block in blocks]


def _widths(table: Table, points: float, letters: int) -> list[float]:
    """Return about how many points wide each column of a table is, without its margins."""
    widths = []
    for (name, cells), is_number in zip(table.cells.items(), _are_numbers(table), strict=True):
        lines = [*cells] if is_number else [line for one in cells for line in _broken(one, letters)]
        widths.append(
            _COLUMN_SEP + points * max(map(_digits, [*lines, *_heading_lines(str(name))]))
        )
    return widths


def _digits(text: str) -> float:
    """Return about how many digits are as wide as a text in LaTeX."""
    return sum(1.7 if letter in "±%MWmw\N{MINUS SIGN}-" else 1.0 for letter in text)


def _tabular(table: Table, letters: int) -> str:
    """Return the environment `tabular` of a table.

    Args:
        table: The table.
        letters: The characters in a line of a cell of words.
    """
    are_numbers = _are_numbers(table)
    head = map(_tex_heading, map(str, table.cells.columns), are_numbers)
    rows = (
        [
            tex(cell) if is_number else _tex_lines(_broken(cell, letters))
            for cell, is_number in zip(row, are_numbers, strict=True)
        ]
        for row in table.cells.to_numpy()
    )
    lines = (" & ".join(row) + r" \\" for row in rows)
    looks = "".join("r" if is_number else "l" for is_number in are_numbers)
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
    return re.sub(r"(?<![\w.)])-(?=\d)", "$-$", escaped)


def _tex_lines(lines: Sequence[str]) -> str:
    stacked = r" \\ ".join(map(tex, lines))
    return (
        stacked
        if len(lines) < 2
        else rf"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{stacked}\end{{tabular}}"
    )


def _broken(text: str, letters: int) -> list[str]:
    return textwrap.wrap(text, letters, break_long_words=False, break_on_hyphens=False)


def _heading_lines(text: str) -> list[str]:
    return _broken(text, _HEADING_WIDTH)


def _tex_heading(text: str, is_number: bool) -> str:
    stacked = r" \\ ".join(map(tex, _heading_lines(text)))
    return rf"\shortstack[{'r' if is_number else 'l'}]{{{stacked}}}"
