"""A report's tables as Markdown, LaTeX, HTML and text for a terminal."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bsweep.config.values import did_you_mean
from bsweep.plots.styles import Style

_HEADING_WIDTH = 9  # characters in a line of a heading in LaTeX
_TEXT_WIDTH = 345  # points of a line of LaTeX's class article
_COLUMN_SEP = 6  # points between two columns
# How a table in LaTeX becomes narrower: its type, the points of a digit in it, and the characters
# in a line of a cell of words.
_SPACES = r"\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{1ex}"
_SIZES = ((r"\small", 4.8, 26), (r"\scriptsize", 4.2, 26), (r"\scriptsize", 4.2, 14))
_MAX_ROWS = 300  # of a table on the page
_PACKAGES = "% \\usepackage{booktabs,siunitx}\n"  # that a table for a paper needs


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


def as_latex(
    title: str,
    tables: Sequence[Table],
    columns: Sequence[str] = (),
    style: Style | None = None,
) -> dict[str, str]:
    """Return each table that has cells as LaTeX code with a label, by the table's name.

    Long headings, and words in a wide table, are broken into lines. If a table is still wider than
    the text of the class article, it continues in further tables with the same number, which all
    begin with the columns that name the rows. For a paper, the width is that of its text, and
    numbers stand in columns of the package siunitx, aligned at their decimal points.

    Args:
        title: The name of the study, which begins each caption and label.
        tables: The tables, each with another name.
        columns: The headings of the columns to keep, in order. A table with none of them keeps all.
        style: The paper for which the tables are made, if they are.

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
        size, letters, blocks = _narrow(shown, style.points if style else _TEXT_WIDTH)
        kind = environment("table", style)
        named = rf"\label{{tab:{label(title)}-{table.name}}}"
        captions = [
            rf"\caption{{{tex(title)}: {tex(table.caption)}}}" + named,
            *[r"\addtocounter{table}{-1}\caption{Continued.}"] * (len(blocks) - 1),
        ]
        lines = [
            line
            for caption, block in zip(captions, blocks, strict=True)
            for line in (
                rf"\begin{{{kind}}}",
                rf"\centering{size}" + _SPACES,
                caption,
                _tabular(replace(shown, cells=block), letters, style is not None),
                rf"\end{{{kind}}}",
            )
        ]
        texts[table.name] = _PACKAGES * bool(style) + "\n".join(lines) + "\n"
    return texts


def label(title: str) -> str:
    """Return the name of a study as part of a label in LaTeX."""
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")


def environment(kind: str, style: Style | None, inches: float = math.inf) -> str:
    """Return the name of LaTeX's environment for a `figure` or `table` of a width: that with a star
    if it is wider than one of several columns of text.
    """
    return f"{kind}*" if style and style.column and inches > style.column else kind


def _narrow(table: Table, text_points: float) -> tuple[str, int, list[pd.DataFrame]]:
    """Return how a table fits into the width of a text: its type in LaTeX, the characters in a line
    of a cell of words, and the cells of its parts.

    The widths of columns are estimated from their characters.
    """
    for size, points, letters in _SIZES:
        if sum(_widths(table, points, letters)) <= text_points:
            return size, letters, [table.cells]
    size, _, letters = _SIZES[1]
    widths = _widths(table, *_SIZES[1][1:])
    room = text_points - sum(widths[: table.num_keys])
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


def _tabular(table: Table, letters: int, has_siunitx: bool) -> str:
    """Return the environment `tabular` of a table.

    Args:
        table: The table.
        letters: The characters in a line of a cell of words.
        has_siunitx: Align numbers at their decimal points, by the package siunitx.
    """
    are_numbers = _are_numbers(table)
    looks = [
        (_siunitx(cells) if has_siunitx else "r") if is_number else "l"
        for is_number, (_, cells) in zip(are_numbers, table.cells.items(), strict=True)
    ]
    top, middle, bottom = (
        (r"\toprule", r"\midrule", r"\bottomrule") if has_siunitx else [r"\hline"] * 3
    )
    names = map(_tex_heading, map(str, table.cells.columns), are_numbers)
    head = [
        f"{{{name}}}" if look[0] == "S" else name for name, look in zip(names, looks, strict=True)
    ]
    rows = (
        [
            _tex_lines(_broken(cell, letters)) if look == "l" else _tex_number(cell, look)
            for cell, look in zip(row, looks, strict=True)
        ]
        for row in table.cells.to_numpy()
    )
    lines = (" & ".join(row) + r" \\" for row in rows)
    return "\n".join([
        rf"\begin{{tabular}}{{{''.join(looks)}}}",
        top, " & ".join(head) + r" \\", middle, *lines, bottom, r"\end{tabular}",
    ])  # fmt: skip


_ONE_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?: ± (\d+)(?:\.(\d+))?)?")


_SEPARATE = ",separate-uncertainty,table-align-uncertainty=false"


def _siunitx(cells: pd.Series[str]) -> str:
    """Return a column of siunitx with room for the longest of these numbers, or `r` if fewer than
    half of the cells are single numbers.
    """
    found = [match for cell in cells if (match := _ONE_NUMBER.fullmatch(cell))]
    if not found or 2 * len(found) < len(cells):
        return "r"
    sign = "-" * any(match[1] for match in found)
    whole, decimals = (max(len(match[part] or "") for match in found) for part in (2, 3))
    uncertain = max(len(_uncertainty(match)) for match in found)
    form = f"{sign}{whole}.{decimals}" + f"({uncertain})" * bool(uncertain)
    return f"S[table-format={form}{_SEPARATE * bool(uncertain)}]"


def _uncertainty(number: re.Match[str]) -> str:
    """Return the digits of a number's uncertainty, in units of the number's last digit."""
    if number[4] is None:
        return ""
    decimals = len(number[3] or "")
    return (number[4] + (number[5] or "").ljust(decimals, "0")[:decimals]).lstrip("0") or "0"


def _tex_number(cell: str, look: str) -> str:
    if look == "r":
        return tex(cell)
    match = _ONE_NUMBER.fullmatch(cell)
    if not match:
        return f"{{{tex(cell)}}}"
    number = cell.partition(" ")[0]
    return number + f"({_uncertainty(match)})" * (match[4] is not None)


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
